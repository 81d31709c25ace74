"""Statuses of tasks and steps as data: one table each, from which tests and the pictures in the docs are made.

Idea after h11's state tables: the table is the only place that defines the legal changes.
"""

from collections.abc import Mapping
from enum import StrEnum

from soong.shared.core.errors import InvalidTransitionError


class StepStatus(StrEnum):
    """The status of a step (DAG-04)."""

    PENDING = "pending"
    """Waits for dependencies (``open_deps`` > 0) or for its retry time."""
    READY = "ready"
    RUNNING = "running"
    """Claimed: its run has a worker."""
    BLOCKED = "blocked"
    """Parked: its run waits for consent and holds no slot."""
    EXPANDING = "expanding"
    """A map step whose dependencies are done; the owner inserts its children."""
    WAITING = "waiting"
    """A map step whose children run."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"

    @property
    def is_terminal(self) -> bool:
        return self in STEP_ENDS

    @property
    def is_leased(self) -> bool:
        return self is StepStatus.RUNNING


class StepEvent(StrEnum):
    """An event that moves a step. The name is also the type of the event in the run's log (``step_<event>``)."""

    UNLOCK = "unlock"
    EXPAND = "expand"
    EXPANDED = "expanded"
    CLAIM = "claim"
    PARK = "park"
    UNPARK = "unpark"
    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"
    EXPIRE = "expire"
    QUARANTINE = "quarantine"
    RETRY = "retry"
    CANCEL = "cancel"
    SKIP = "skip"


STEP_ENDS = frozenset({StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.CANCELLED, StepStatus.SKIPPED})

_S, _E = StepStatus, StepEvent

STEP_TRANSITIONS: Mapping[tuple[StepStatus, StepEvent], StepStatus] = {
    (_S.PENDING, _E.UNLOCK): _S.READY,
    (_S.PENDING, _E.EXPAND): _S.EXPANDING,
    (_S.EXPANDING, _E.EXPANDED): _S.WAITING,
    (_S.EXPANDING, _E.COMPLETE): _S.COMPLETED,
    (_S.EXPANDING, _E.FAIL): _S.FAILED,
    (_S.WAITING, _E.COMPLETE): _S.COMPLETED,
    (_S.WAITING, _E.FAIL): _S.FAILED,
    (_S.READY, _E.CLAIM): _S.RUNNING,
    (_S.RUNNING, _E.COMPLETE): _S.COMPLETED,
    (_S.RUNNING, _E.FAIL): _S.FAILED,
    (_S.RUNNING, _E.PARK): _S.BLOCKED,
    (_S.RUNNING, _E.RELEASE): _S.READY,
    (_S.RUNNING, _E.EXPIRE): _S.READY,
    (_S.RUNNING, _E.QUARANTINE): _S.FAILED,
    (_S.BLOCKED, _E.UNPARK): _S.READY,
    (_S.COMPLETED, _E.RETRY): _S.PENDING,
    (_S.FAILED, _E.RETRY): _S.PENDING,
    (_S.CANCELLED, _E.RETRY): _S.PENDING,
    (_S.SKIPPED, _E.RETRY): _S.PENDING,
    **{(status, _E.CANCEL): _S.CANCELLED for status in StepStatus if status not in STEP_ENDS},
    (_S.PENDING, _E.SKIP): _S.SKIPPED,
    (_S.READY, _E.SKIP): _S.SKIPPED,
}


class TaskStatus(StrEnum):
    """The status of a task. A paused task starts nothing new and keeps what is done."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED)


class TaskEvent(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    RETRY = "retry"


_T, _V = TaskStatus, TaskEvent

TASK_TRANSITIONS: Mapping[tuple[TaskStatus, TaskEvent], TaskStatus] = {
    (_T.RUNNING, _V.PAUSE): _T.PAUSED,
    (_T.PAUSED, _V.PAUSE): _T.PAUSED,
    (_T.PAUSED, _V.RESUME): _T.RUNNING,
    (_T.RUNNING, _V.RESUME): _T.RUNNING,
    (_T.RUNNING, _V.COMPLETE): _T.COMPLETED,
    (_T.RUNNING, _V.FAIL): _T.FAILED,
    (_T.RUNNING, _V.CANCEL): _T.CANCELLED,
    (_T.PAUSED, _V.CANCEL): _T.CANCELLED,
    (_T.PAUSED, _V.COMPLETE): _T.COMPLETED,
    (_T.PAUSED, _V.FAIL): _T.FAILED,
    (_T.COMPLETED, _V.RETRY): _T.RUNNING,
    (_T.FAILED, _V.RETRY): _T.RUNNING,
    (_T.CANCELLED, _V.RETRY): _T.RUNNING,
}


def advance_step(status: StepStatus, event: StepEvent) -> StepStatus:
    """Return the status after ``event``. Raises: InvalidTransitionError naming both."""
    try:
        return STEP_TRANSITIONS[status, event]
    except KeyError:
        raise InvalidTransitionError("step", status, event) from None


def advance_task(status: TaskStatus, event: TaskEvent) -> TaskStatus:
    """Return the status after ``event``. Raises: InvalidTransitionError naming both."""
    try:
        return TASK_TRANSITIONS[status, event]
    except KeyError:
        raise InvalidTransitionError("task", status, event) from None
