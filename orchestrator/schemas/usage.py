"""Sums of what agents have used, as programs see them (DIS-11)."""

from collections.abc import Sequence
from typing import Final

from pydantic import Field

from soong.orchestrator.schemas.base import Schema
from soong.shared.engine.runs.budgets import usd_text
from soong.shared.engine.runs.record import UnsummedUsage, UsageBy, UsageTotal

MOST_SUMS: Final = 200


class UsageSum(Schema):
    """What the runs of one day, session, task, agent or model have used."""

    key: str = Field(description="The day (UTC), or the id or name of the session, task, agent or model.")
    runs: int
    requests: int = Field(description="Requests to models that were answered.")
    input_tokens: int
    cached_tokens: int = Field(description="Of the input tokens, those that came from the provider's cache.")
    output_tokens: int
    tool_calls: int
    cost_usd: str = Field(description="Cost of the runs whose price is known, a decimal number.")
    unpriced_runs: int = Field(description="Runs whose price is not known; they are not part of `cost_usd`.")

    @classmethod
    def of(cls, total: UsageTotal) -> "UsageSum":
        return cls(
            key=total.key,
            runs=total.runs,
            requests=total.requests,
            input_tokens=total.input_tokens,
            cached_tokens=total.cached_tokens,
            output_tokens=total.output_tokens,
            tool_calls=total.tool_calls,
            cost_usd=str(total.cost_usd),
            unpriced_runs=total.unpriced,
        )


class UsageSums(Schema):
    """What agents have used: the newest day first, otherwise the largest cost first."""

    by: UsageBy
    items: list[UsageSum]
    left_out: int = Field(description=f"Sums after the first {MOST_SUMS}.")
    open_runs: int = Field(description="Runs of agents under way or parked; they are in no sum.")
    lost_requests: int = Field(
        description="Requests whose process died or was cancelled, where a budget held; in no sum."
    )
    lost_tokens: int = Field(description="Their estimate in tokens.")
    lost_cost_usd: str = Field(description="Their estimate in US dollars, a decimal number.")

    @classmethod
    def of(cls, by: UsageBy, totals: Sequence[UsageTotal], unsummed: UnsummedUsage) -> "UsageSums":
        shown = [UsageSum.of(one) for one in totals[:MOST_SUMS]]
        return cls(
            by=by,
            items=shown,
            left_out=len(totals) - len(shown),
            open_runs=unsummed.open_runs,
            lost_requests=unsummed.lost_requests,
            lost_tokens=unsummed.lost_tokens,
            lost_cost_usd=usd_text(unsummed.lost_microusd),
        )
