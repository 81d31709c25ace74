"""What agents have used, summed over the runs that have ended: by day, session, task, agent or model (DIS-11)."""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from soong.shared.core.value import Value
from soong.shared.engine.runs.record import Usage


class UnsummedUsage(Value):
    """What is in no sum: runs of agents that have not ended, and requests whose process died, at their estimate.

    Such requests are known where a budget held.
    """

    open_runs: int = 0
    lost_requests: int = 0
    lost_tokens: int = 0
    lost_microusd: int = 0


class UsageBy(StrEnum):
    """What sums are made by. A day is one of UTC."""

    DAY = "day"
    SESSION = "session"
    TASK = "task"
    AGENT = "agent"
    MODEL = "model"


@dataclass(slots=True)
class UsageTotal:
    """The sum of some runs. ``cost_usd`` leaves out ``unpriced`` runs, whose price nobody knows."""

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
