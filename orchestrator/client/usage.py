"""What agents have used, in the order in which people read it (DIS-11)."""

from collections.abc import Sequence

from soong.shared.engine.runs.record import UsageBy, UsageTotal
from soong.shared.engine.runs.store import RunStore


async def usage_totals(runs: RunStore, by: UsageBy, *, since_us: int = 0, session_id: str = "") -> Sequence[UsageTotal]:
    """Return the sums over the agents' runs that were made since then, the largest cost first, then most tokens."""
    totals = await runs.usage_totals(by, since_us=since_us, session_id=session_id)
    if by is UsageBy.DAY:
        return sorted(totals, key=lambda one: one.key, reverse=True)
    return sorted(totals, key=lambda one: (one.cost_usd, one.input_tokens + one.output_tokens), reverse=True)
