"""Commands that come too late: to a session that is closed. Its owner, if it has one, need not look at it any more."""

from soong.shared.core.errors import InvalidTransitionError, NotFoundError
from soong.shared.engine.sessions.session import Command, CommandKind
from soong.shared.engine.tasks.status import TaskStatus


def outcome_in_closed_session(command: Command, status: TaskStatus | None) -> str | None:
    """Return how a command to a closed session ends at once: why it is refused, or nothing if it asks for what is so.

    None: an owner carries it out, as of a task that is open or that is tried again. ``status``: that of the task that
    the command names; None when its session has no such task.
    """
    if command.kind is CommandKind.CLOSE:
        return ""
    if command.kind is CommandKind.RETRY:
        return None
    if status is None:
        return str(NotFoundError("task", command.subject))
    return str(InvalidTransitionError("task", status, command.kind)) if status.is_terminal else None
