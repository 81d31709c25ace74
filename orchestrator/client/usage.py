"""What agents have used, summed over the runs that have ended: by day, session, task, agent or model (DIS-11)."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Final

from soong.shared.core.clock import utc_date
from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.engine.runs.record import Run, Usage
from soong.shared.engine.runs.store import RunStore

PAGE: Final = 1000


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


async def usage_totals(runs: RunStore, by: UsageBy, *, since_us: int = 0, session_id: str = "") -> list[UsageTotal]:
    """Return the sums over the agents' runs that were made since then, the largest cost first, then most tokens."""
    totals: dict[str, UsageTotal] = {}
    async for run in _runs(runs, since_us, session_id):
        if run.usage.requests:
            for key, used in _parts(run, by):
                totals.setdefault(key, UsageTotal(key)).add(used)
    if by is UsageBy.DAY:
        return sorted(totals.values(), key=lambda one: one.key, reverse=True)
    return sorted(totals.values(), key=lambda one: (one.cost_usd, one.input_tokens + one.output_tokens), reverse=True)


def _parts(run: Run, by: UsageBy) -> Iterable[tuple[str, Usage]]:
    """Return what a run counts for, by key: of one that fell back, each model has its own part."""
    if by is UsageBy.MODEL and run.usage.by_model:
        return run.usage.by_model.items()
    return ((_KEYS[by](run), run.usage),)


async def _runs(runs: RunStore, since_us: int, session_id: str) -> AsyncIterator[Run]:
    """Yield runs, newest first, up to the first page that is too old; clocks of several machines may differ."""
    before = ""
    while page := await runs.run_page(session_id=session_id, before=before, limit=PAGE):
        recent = [run for run in page if run.created_us >= since_us]
        for run in recent:
            yield run
        if not recent:
            return
        before = page[-1].id


def _day(run: Run) -> str:
    return utc_date(run.created_us)


_KEYS: Final[Mapping[UsageBy, Callable[[Run], str]]] = {
    UsageBy.DAY: _day,
    UsageBy.SESSION: lambda run: run.identity.session_id,
    UsageBy.TASK: lambda run: run.identity.task_id,
    UsageBy.AGENT: lambda run: run.identity.definition,
    UsageBy.MODEL: lambda run: run.identity.model,
}
