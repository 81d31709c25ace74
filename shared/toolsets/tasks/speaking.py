"""How agents ask the task service for something: as whom, under which name, and what a refusal becomes."""

import hashlib
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from soong.shared.agents.model import SCRIPT
from soong.shared.core.errors import ConflictError, LimitExceededError, UnavailableError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.step import Step
from soong.shared.tools.definition import ToolContext
from soong.shared.tools.result import ErrorType, ToolError

if TYPE_CHECKING:
    from soong.shared.engine.tasks.service import TaskService

T = TypeVar("T")


def as_principal(service: "TaskService", context: ToolContext) -> "TaskService":
    """Return the service as the principal that the run acts for: the result is theirs, and as foreign."""
    principal = context.identity.origin.principal
    return replace(service, principal=principal, may_approve=False) if principal else service


async def check_models(
    service: "TaskService",
    context: ToolContext,
    models: Iterable[str],
    more: Iterable[Step] = (),
    *,
    is_fork: bool = False,
) -> None:
    """Refuse models that nobody but the agent has chosen: what it works on would be sent to them.

    Permitted are those of definitions, of the configuration, and of its own task and ``more`` steps. A fork takes the
    conversation along: it remains with the provider of its run.
    """
    own = context.identity.model
    wanted = {model for model in models if model not in ("", SCRIPT, own)}
    if not wanted or own == SCRIPT:  # a script is code of a person
        return
    planner = await service.planner.at(str(context.run_dirs.project))
    steps = [*more, *await service.store.tasks.steps(context.identity.task_id)]
    known = {own, planner.default_model, *planner.known.choosable_models, *(step.model for step in steps)} - {""}
    for model in sorted(wanted):
        if not any(fnmatchcase(model, pattern) for pattern in known):
            hint = f"name one of: {', '.join(sorted(known))}"
            raise ToolError(ErrorType.INVALID_INPUT, f"agents may not choose the model {model!r}", hint=hint[:2000])
        if is_fork and model.partition(":")[0] != own.partition(":")[0]:
            problem = f"a fork takes your conversation along, and {model!r} is of another provider than {own!r}"
            raise ToolError(ErrorType.INVALID_INPUT, problem, hint="leave `model` out, or create a sub-agent")


def models_of(steps: Json) -> Iterator[str]:
    """Yield the models that steps and attempts name, those of the step of a map too."""
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, Mapping):
            yield from (
                str(one["model"]) for one in (step, step.get("step")) if isinstance(one, Mapping) and one.get("model")
            )


def named(kind: str, context: ToolContext) -> str:
    """Return the id of what a call makes: the same whenever the same call is made again."""
    return f"{kind}_{digest_of_call(context)[:32]}"


def digest_of_call(context: ToolContext) -> str:
    """Return the SHA-256 of a call's effect id, in hexadecimal digits."""
    effect = context.effect_id or f"{context.identity.run_id}/{context.tool_call_id}"
    return hashlib.sha256(effect.encode()).hexdigest()


def command_id(context: ToolContext) -> str:
    """Return the id of the command that a call sends."""
    return named("cmd", context)


async def refused_as_error(asking: Awaitable[T]) -> T:
    """Wait for the service; what it refuses becomes the tool's error, in its words."""
    try:
        return await asking
    except LimitExceededError as error:
        raise ToolError(ErrorType.LIMIT_EXCEEDED, str(error), hint="continue with the existing steps") from error
    except UsageError as error:
        hint = "agent.plan_template shows how it is written"
        raise ToolError(ErrorType.INVALID_INPUT, str(error), hint=hint) from error
    except (ConflictError, UnavailableError) as error:
        hint = "agent.task_get shows the state of the task"
        raise ToolError(ErrorType.EXECUTION_FAILED, str(error), hint=hint) from error
