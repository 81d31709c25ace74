"""How tasks and steps are named by agents and shown to them: one form for every tool."""

import hashlib
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, TypeVar

from soong.shared.agents.model import SCRIPT
from soong.shared.core.errors import ConflictError, LimitExceededError, UnavailableError, UsageError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.spec import StepStatus, TaskKind
from soong.shared.engine.tasks.step import Step, StepResult, Task
from soong.shared.engine.tasks.store import TaskStore
from soong.shared.tools.definition import Handler, Permission, ToolContext, ToolDefinition, Traits
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.tools.schema import string

if TYPE_CHECKING:
    from soong.shared.engine.tasks.service import TaskService


TAGS: Final = frozenset({"internal", "agent", "readonly"})
"""Writing core state is not an outside effect: the task tools are readonly and never asked (DAG-01)."""

MAX_SHOWN_STEPS: Final = 100

STEP_ID: Final = string("Id of the step in its task.", minLength=1, maxLength=200)
TASK_ID: Final = string(
    "Id of the task. Left out: the one that is yours; one who plans leaves it out while there is one.",
    minLength=1,
    maxLength=64,
)

T = TypeVar("T")


def changes_state(_call_input: JsonObject) -> Traits:
    """Return the traits of a tool that changes task state: readonly, and never in parallel with another call."""
    return Traits(is_read_only=True, is_concurrency_safe=False)


def step_line(step: Step) -> dict[str, Json]:
    return {"id": step.step_id, "title": step.title, "kind": step.kind.value, "status": step.status.value}


def task_tool(
    name: str,
    title: str,
    description: str,
    hint: str,
    properties: JsonObject,
    required: tuple[str, ...],
    handler: Handler,
    **more: Any,
) -> ToolDefinition:
    """Return a tool over tasks or agents; ``more`` are more fields of its definition."""
    schema: JsonObject = {"type": "object", "properties": properties, "required": list(required)}
    permission = Permission.READONLY
    return ToolDefinition(name, description, schema, handler, permission, TAGS, title=title, search_hint=hint, **more)


def task_facts(task: Task, counts: Mapping[StepStatus, int]) -> dict[str, Json]:
    by_status: dict[str, Json] = {status.value: count for status, count in counts.items() if count}
    facts: dict[str, Json] = {"id": task.id, "title": task.title, "status": task.status.value, "steps": by_status}
    if task.reason:
        facts["reason"] = task.reason
    return facts


def step_facts(step: Step, step_ids: Mapping[str, str]) -> dict[str, Json]:
    """Return what planning agents get about a step; ``step_ids`` are the ids of the task's steps by key."""
    facts = step_line(step)
    facts["depends_on"] = [step_ids.get(key, key) for key in step.depends_on]
    facts["attempt"] = step.attempt
    if step.kind.traits.is_agent:
        facts["agent"] = step.definition
    for name, value in (("progress", step.progress), ("priority", step.priority)):
        if value:
            facts[name] = value
    if step.outcome is not None:
        facts["outcome"] = step.outcome.value
    if step.error is not None:
        facts["error"] = step.error.as_json()
    return facts


def result_facts(result: StepResult) -> dict[str, Json]:
    """Return what a step came to: its output, and of an unclean one what it was refused and left (DAG-10)."""
    facts: dict[str, Json] = {"output": result.output}
    if result.denials:
        facts["denials"] = list(result.denials)
    if result.unknown_effects:
        facts["unknown_effects"] = list(result.unknown_effects)
    if result.partial is not None:
        facts["partial"] = result.partial
    return facts


async def task_named(store: TaskStore, context: ToolContext, call_input: JsonObject) -> Task:
    """Return the task that a call names, or the session's one open task when it names none. Raises: ToolError."""
    session_id, asked = context.identity.session_id, str(call_input.get("task_id", ""))
    # An ask is what its agent itself works on, and no task of its making.
    tasks = [task for task in await store.list_tasks(session_id=session_id, limit=1000) if task.kind is TaskKind.PLAN]
    if not asked:
        tasks = [task for task in tasks if not task.status.is_terminal] or tasks[:1]
        if len(tasks) == 1:
            return tasks[0]
        problem = "there are several tasks" if tasks else "your session has no task"
        raise ToolError(ErrorType.INVALID_INPUT, problem, hint="name one by task_id; agent.task_list shows them")
    found = next((task for task in tasks if task.id == asked), None)
    if found is None:
        problem = f"your session has no task {asked[:80]!r}"
        raise ToolError(ErrorType.INVALID_INPUT, problem, hint="agent.task_list shows its tasks")
    return found


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
    """Refuse models that only the agent has chosen: its content would be sent to them.

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
    return named("cmd", context)


async def refused_as_error(asking: Awaitable[T]) -> T:
    """Wait for the service; its refusal becomes the tool's error, in its words."""
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
