"""Every exception that Soong raises on purpose.

::

    SoongError
    ├── UsageError                  the caller's words are wrong; the message says where and what to do (exit code 2)
    │   ├── InvalidJsonError
    │   ├── InvalidPlanError        a plan, with the place of each problem
    │   ├── InvalidToolError        a tool definition at registration
    │   ├── InvalidConfigError      a setting or a configuration file
    │   │   └── UnsupportedPoolerError  a connection pooler that shares server processes of PostgreSQL
    │   ├── TemplateError           a reference in a plan that names nothing
    │   │   └── BudgetExceededError what a plan makes is larger than it may be
    │   ├── LimitExceededError      a total that the deployment sets
    │   └── NotFoundError           a session, task, step, run … of that id
    ├── ConflictError               the rows contradict the request
    │   ├── LeaseLostError          a stale fence or a worker incarnation declared dead
    │   ├── NotOwnerError           a stale owner epoch
    │   ├── AlreadyDecidedError     a second answer to one permission request
    │   ├── InvalidTransitionError  a status change outside the table
    │   ├── AlreadyConsumedError    a second use of one decision
    │   └── StartedByRunError       a program that a run started acts in a person's name
    ├── ForgedError                 a signature, digest or proof does not hold: a security event
    ├── ForeignEntryError           a link or the like beneath a folder that workers write: a security event
    ├── UnavailableError            Redis, the database or the service cannot be reached; may be tried again
    │   └── TooSlowError            the database ended transactions because this process computed for too long in them
    ├── SchemaVersionError          the database is newer or older than this program
    ├── ScriptFailedError           a scripted agent raised, or its calls differ from the recorded ones
    ├── ToolCallError               raised at the await of a scripted agent whose tool call failed or was denied
    └── ToolError                   raised inside a tool; the pipeline turns it into a ToolResult

A tool's failure is a value and never ends a run; cancellation is a signal and is never caught as an error.
"""

from collections.abc import Sequence
from typing import Any, Final

from soong.shared.core.value import Value


class SoongError(Exception):
    """Root of the tree. The message is one sentence for a person."""


class UsageError(SoongError):
    """The caller can fix it by another input."""


class InvalidJsonError(UsageError, ValueError):
    """Text that is not the strict JSON we read."""


class Problem(Value):
    """One thing wrong with a document: where, what, and what to do about it."""

    place: str
    problem: str
    hint: str

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}; {self.hint}"


class InvalidPlanError(UsageError):
    """A plan that cannot become a task. ``problems`` has at least one entry, in document order; ``total`` is their
    number with those that are not listed.
    """

    def __init__(self, problems: Sequence[Problem], *, total: int = 0) -> None:
        self.problems = tuple(problems)
        self.total = max(total, len(self.problems))
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> tuple[str, ...]:
        return (*map(str, self.problems), *([self.rest] if self.rest else ()))

    @property
    def rest(self) -> str:
        """The line about the problems that are not listed; empty when all are."""
        more = self.total - len(self.problems)
        return f"and {more:,} more problem{'s' if more > 1 else ''}" if more else ""


class InvalidToolError(UsageError):
    """A tool definition refused at registration."""

    def __init__(self, tool: str, problem: str) -> None:
        self.tool = tool
        self.problem = problem
        super().__init__(f"tool {tool!r}: {problem}")


class InvalidConfigError(UsageError):
    """A setting or configuration file that cannot be used."""


class UnsupportedPoolerError(InvalidConfigError):
    """A connection pooler in front of PostgreSQL that shares server processes between connections. ``problem`` is a
    sentence on what it does, ``hint`` one on what to do about it.
    """

    def __init__(self, does: str) -> None:
        self.problem = f"a connection pooler in front of PostgreSQL {does}, expected one server process per connection"
        self.hint = "connect directly, or set the pooler to session mode (PgBouncer: pool_mode = session)"
        super().__init__(f"{self.problem}; {self.hint}")


class TemplateError(UsageError):
    """A reference such as ``${survey.output.packages}`` that is malformed or names nothing, if there is one. ``code``
    is the type of the step's error that it becomes.
    """

    code = "invalid_input"

    def __init__(self, reference: str, problem: str) -> None:
        self.reference = reference if len(reference) <= 200 else f"{reference[:200]}…"
        self.problem = problem
        super().__init__(f"the reference {'${' + self.reference + '}'!r}: {problem}" if reference else problem)


class BudgetExceededError(TemplateError):
    """The result of a plan's references would exceed the limit of size or work."""

    code = "limit_exceeded"

    def __init__(self, problem: str) -> None:
        super().__init__("", problem)
        self.args = (problem,)


class LimitExceededError(UsageError):
    """More of something than the deployment allows; the message names the setting."""


class NotFoundError(UsageError):
    """No row of that id."""

    def __init__(self, kind: str, key: str, hint: str = "") -> None:
        self.kind = kind
        self.key = key
        super().__init__(f"there is no {kind} {key!r}" + (f"; {hint}" if hint else ""))


class ConflictError(SoongError):
    """The rows do not allow it (any more)."""


class LeaseLostError(ConflictError):
    """The writer no longer holds the lease under which it writes; it stops and drops its result."""

    def __init__(self, run_id: str, fence: int) -> None:
        self.run_id = run_id
        self.fence = fence
        super().__init__(f"run {run_id} is no longer held with fence {fence}")


class NotOwnerError(ConflictError):
    """The orchestrator does not own the session (any more)."""

    def __init__(self, session_id: str, epoch: int) -> None:
        self.session_id = session_id
        self.epoch = epoch
        super().__init__(f"session {session_id} is no longer owned with epoch {epoch}")


ANSWERED: Final = "answered"
"""The state of a request that has an answer and no decision yet."""


class AlreadyDecidedError(ConflictError):
    """The request has been answered, withdrawn or has expired; ``state`` says which."""

    def __init__(self, request_id: str, state: str) -> None:
        self.request_id = request_id
        self.state = state
        super().__init__(f"permission request {request_id} is already {state}")


class AlreadyConsumedError(ConflictError):
    """The decision has been used, or has expired; a decision runs one call, once."""

    def __init__(self, decision_id: str) -> None:
        self.decision_id = decision_id
        super().__init__(f"decision {decision_id} has been used")


class StartedByRunError(ConflictError):
    """A process of a run's family wants to do what a person alone may. ``what`` is a verb phrase."""

    def __init__(self, what: str, pid: int, program: str) -> None:
        self.pid = pid
        self.program = program
        super().__init__(
            f"cannot {what} from inside a run: a run started this command (process {pid}, {program}); "
            "run it from a terminal of your own"
        )


class InvalidTransitionError(ConflictError):
    """A status change that the table does not have."""

    def __init__(self, subject: str, status: str, event: str) -> None:
        self.subject = subject
        self.status = status
        self.event = event
        super().__init__(f"a {subject} that is {str(status)!r} cannot take {str(event)!r}")


class EndedTaskError(ConflictError):
    """A task that is over cannot be steered."""

    def __init__(self, task_id: str, status: str) -> None:
        super().__init__(f"task {task_id} is {status}: it is over; `soong tasks retry` runs it again")


class ForgedError(SoongError):
    """A signature, digest or proof does not hold; ``what`` names the security event."""

    def __init__(self, message: str, *, what: str = "forged_decision") -> None:
        self.what = what
        super().__init__(message)


class ForeignEntryError(SoongError):
    """A foreign entry is in a folder that workers write, where only Soong's folders and files belong."""

    def __init__(self, path: str, found: str, expected: str) -> None:
        self.path = path
        self.found = found
        super().__init__(f"{path!r} is {found}, expected {expected}; remove it")


class UnavailableError(SoongError):
    """A part that lives elsewhere cannot be reached now; the same call may succeed later."""


class TooSlowError(UnavailableError):
    """The database ended a transaction several times because this process sent nothing for too long. Nothing was
    written. The same call fails again in the same way until the process gets more CPU time.
    """


class SchemaVersionError(SoongError):
    """The database's schema is not the one this program was written for."""


class ScriptFailedError(SoongError):
    """A scripted agent did not come to its end. ``type`` is that of the step's error."""

    def __init__(self, problem: str, *, type: str = "execution_failed", is_retryable: bool = False) -> None:
        self.type = type
        self.is_retryable = is_retryable
        super().__init__(problem)


class TaskFailedError(SoongError):
    """A task without a result. ``status`` is ``failed``, ``cancelled`` or ``paused``; ``reason`` names the step."""

    def __init__(self, task_id: str, status: str, reason: str) -> None:
        self.task_id, self.status, self.reason = task_id, status, reason
        super().__init__(f"task {task_id} is {status}" + (f": {reason}" if reason else ""))


class ToolCallError(SoongError):
    """A tool call of a scripted agent that has no result. ``status`` is ``denied`` or ``failed``, ``type`` the error's
    type, ``text`` its message; ``data`` is what the tool returned with the error, None for most.
    """

    def __init__(self, tool: str, status: str, type: str, text: str, data: Any = None) -> None:
        self.tool = tool
        self.status = status
        self.type = type
        self.text = text
        self.data = data
        super().__init__(f"{tool} {'was denied' if status == 'denied' else 'failed'}: {text}")
