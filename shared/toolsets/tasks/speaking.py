"""How agents ask the task service for something: as whom, under which name, and what a refusal becomes."""

import hashlib
from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from soong.shared.core.errors import ConflictError, LimitExceededError, UnavailableError, UsageError
from soong.shared.tools.definition import ToolContext
from soong.shared.tools.result import ErrorType, ToolError

if TYPE_CHECKING:
    from soong.shared.engine.tasks.service import TaskService

T = TypeVar("T")


def as_principal(service: "TaskService", context: ToolContext) -> "TaskService":
    """Return the service as the principal that the run acts for: the result is theirs, and as foreign."""
    principal = context.identity.origin.principal
    return replace(service, principal=principal, may_approve=False) if principal else service


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
