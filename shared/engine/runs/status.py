"""Status and end of a run as data (DIS-05)."""

from collections.abc import Mapping
from enum import StrEnum

from soong.shared.core.errors import InvalidTransitionError


class RunStatus(StrEnum):
    QUEUED = "queued"
    """Its row exists; nobody works on it (not claimed yet, handed back, or its lease expired)."""
    RUNNING = "running"
    PARKED = "parked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


class RunEvent(StrEnum):
    START = "start"
    PARK = "park"
    UNPARK = "unpark"
    RELEASE = "release"
    """Handed back or expired: the run keeps its id and continues with a higher fence."""
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    RETRY = "retry"
    """A task is tried again and its root run continues. The run of a step never does: its next attempt is a new run."""


class EndReason(StrEnum):
    """Why a run ended. Closed (DIS-05)."""

    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED_TOOLS = "aborted_tools"
    CANCELLED = "cancelled"
    MAX_TURNS = "max_turns"
    TOKEN_LIMIT = "token_limit"
    COST_LIMIT = "cost_limit"
    TIME_LIMIT = "time_limit"
    LEASE_LOST = "lease_lost"
    SCHEMA_UNSUPPORTED = "schema_unsupported"
    PROVIDER_FAILED = "provider_failed"
    STOPPED_BY_HOOK = "stopped_by_hook"


_R, _E = RunStatus, RunEvent

RUN_TRANSITIONS: Mapping[tuple[RunStatus, RunEvent], RunStatus] = {
    (_R.QUEUED, _E.START): _R.RUNNING,
    (_R.RUNNING, _E.PARK): _R.PARKED,
    (_R.PARKED, _E.UNPARK): _R.QUEUED,
    (_R.RUNNING, _E.RELEASE): _R.QUEUED,
    (_R.RUNNING, _E.COMPLETE): _R.COMPLETED,
    (_R.RUNNING, _E.FAIL): _R.FAILED,
    (_R.QUEUED, _E.FAIL): _R.FAILED,
    **{(status, _E.CANCEL): _R.CANCELLED for status in (_R.QUEUED, _R.RUNNING, _R.PARKED)},
    (_R.COMPLETED, _E.RETRY): _R.RUNNING,
    (_R.FAILED, _E.RETRY): _R.RUNNING,
    (_R.CANCELLED, _E.RETRY): _R.RUNNING,
}


def advance_run(status: RunStatus, event: RunEvent) -> RunStatus:
    """Return the status after ``event``. Raises: InvalidTransitionError naming both."""
    try:
        return RUN_TRANSITIONS[status, event]
    except KeyError:
        raise InvalidTransitionError("run", status, event) from None
