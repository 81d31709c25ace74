"""Runs as values: one execution of an agent, with its status, lineage, surface, limits and usage (DIS-05)."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final

import msgspec

from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import NewNode


class Usage(Value):
    """The usage of a run. ``cost_usd`` is None when no price is known: unknown is not zero."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    tool_calls: int = 0
    cost_usd: Decimal | None = None
    cached_tokens: int = 0
    """The input tokens that the provider took from its cache."""
    by_model: Mapping[str, "Usage"] = msgspec.field(default_factory=dict)
    """The parts of it by model, where a fallback has answered, too; else empty."""
    files: int = 0
    """The number of files that a function left in its run's folder."""

    def as_json(self) -> dict[str, Json]:
        parts: dict[str, Json] = {name: part.as_json() for name, part in self.by_model.items()}
        return {
            "requests": self.requests,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "tool_calls": self.tool_calls,
            "cached_tokens": self.cached_tokens,
            "cost_usd": None if self.cost_usd is None else str(self.cost_usd),
            **({"by_model": parts} if parts else {}),
            **({"files": self.files} if self.files else {}),
        }


class ListFilter(Value):
    """Selects the tasks or runs of a list: those that meet all that is set. Title and tag are those of the task."""

    statuses: tuple[str, ...] = ()
    title: str = ""
    """A part of it, in capitals or not."""
    since_us: int = 0
    tag: str = ""


EVERYTHING: Final = ListFilter()


class NewRun(Value):
    """A run row as its session's owner (or the client that makes the session) writes it. Workers insert none.

    ``surface`` is the effective tool set with its explanation; ``token`` proves the run to the owner.
    """

    UNSHOWN = frozenset({"token"})

    identity: RunIdentity
    surface: JsonObject = msgspec.field(default_factory=dict)
    token: str = ""
    attempt: int = 1
    retry_of: str = ""
    max_attempts: int | None = None
    """How many attempts its step may have from now on, those before among them; None: as many as it might before."""
    nodes: tuple[NewNode, ...] = ()
    """The context that it starts with: for a fork, its parent's (DIS-06)."""


class RunStatus(StrEnum):
    QUEUED = "queued"
    """Its row exists without a worker (not claimed yet, handed back, or its lease expired)."""
    RUNNING = "running"
    PARKED = "parked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


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


class Run(Value):
    """A run as stored. ``last_seq`` is the number of its last event, ``last_node`` of its last node."""

    UNSHOWN = frozenset({"token"})

    identity: RunIdentity
    status: RunStatus
    surface: JsonObject
    attempt: int
    retry_of: str
    fence: int
    worker_id: str
    last_seq: int
    last_node: int
    usage: Usage
    end_reason: EndReason | None
    created_us: int
    started_us: int | None
    ended_us: int | None
    token: str = ""
    is_tainted: bool = False
    """The run itself has read what strangers wrote; the store adds inherited taint (PER-21)."""
    malformed: str = ""
    """The part of its row that no program of ours writes; it is left out here (OPS-12)."""

    @property
    def id(self) -> str:
        return self.identity.run_id

    @property
    def model(self) -> str:
        return self.identity.chosen_model or ", ".join(self.usage.by_model)


class UnsummedUsage(Value):
    """The usage in no sum: runs of agents that have not ended, and requests whose process died, at their estimate.

    Such requests are known where a budget held.
    """

    open_runs: int = 0
    lost_requests: int = 0
    lost_tokens: int = 0
    lost_microusd: int = 0


class UsageBy(StrEnum):
    """The grouping of sums. A day is one of UTC."""

    DAY = "day"
    SESSION = "session"
    TASK = "task"
    AGENT = "agent"
    MODEL = "model"


@dataclass(slots=True)
class UsageTotal:
    """The sum of some runs. ``cost_usd`` leaves out ``unpriced`` runs, whose price is unknown."""

    key: str
    runs: int = 0
    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    tool_calls: int = 0
    cost_usd: Decimal = Decimal(0)
    unpriced: int = 0

    def add(self, used: Usage) -> None:
        """Add what a run has used, or its part of it."""
        self.runs += 1
        self.requests += used.requests
        self.input_tokens += used.input_tokens
        self.cached_tokens += used.cached_tokens
        self.output_tokens += used.output_tokens
        self.tool_calls += used.tool_calls
        self.cost_usd += used.cost_usd or 0
        self.unpriced += used.cost_usd is None


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
