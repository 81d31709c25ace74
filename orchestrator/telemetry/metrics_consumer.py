"""Counts what the logs contain: a consumer of the event feed whose totals are rows.

A count is written with the place in the log that it comes from. So every orchestrator reports the same totals, and a
restart neither loses nor repeats any.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from soong.orchestrator.event_log.follower import Taken, count, microusd, word
from soong.orchestrator.telemetry.spans import OpenSpan, OpenWork, keep
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.tasks.event_feed import FeedCursor, FeedPart

MAX_SERIES: Final = 500
"""Per metric. Workers choose names of tools and models: beyond this many, they are counted as ``other``."""
OTHER: Final = "other"
SUM: Final = "sum"
BUCKETS_MS: Final = (100, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000, 3_600_000, 28_800_000)

TOKENS: Final = "model_tokens"
COST: Final = "model_cost_microusd"
LATENCY: Final = "model_request_ms"
FAILURES: Final = "model_failures"
CALLS: Final = "tool_calls"
TOOL_ERRORS: Final = "tool_errors"
DECISIONS: Final = "decision_ms"
QUEUE: Final = "step_queue_ms"

Entry = tuple[str, tuple[str, ...], int]


@dataclass(slots=True)
class MetricsConsumer:
    """Implements :class:`soong.orchestrator.event_log.follower.EventConsumer`."""

    name: str = "metrics"
    _series: dict[str, set[str]] = field(default_factory=dict)

    async def take(self, parts: Sequence[FeedPart]) -> Taken:
        totals: Counter[tuple[str, tuple[str, ...]]] = Counter()
        cursors: list[FeedCursor] = []
        for part in parts:
            work = OpenWork.from_json(part.run.state)
            for event in part.events:
                for name, labels, number in counted(work, event):
                    totals[name, self._bounded(name, labels)] += number
            cursors.append(FeedCursor(part.run.identity.run_id, part.events[-1].seq, work.as_json()))
        return Taken(cursors, totals)

    def _bounded(self, name: str, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Return labels whose first, a name of somebody's choice, is one of a bounded number."""
        known = self._series.setdefault(name, set())
        if not labels or labels[0] in known:
            return labels
        if len(known) >= MAX_SERIES:
            return (OTHER, *labels[1:])
        known.add(labels[0])
        return labels


def counted(work: OpenWork, event: Event) -> Iterator[Entry]:
    """Yield what an event adds, and remember in ``work`` what a later one needs."""
    read = _READERS.get(event.type)
    if read is not None:
        yield from read(work, event)


def _timed(name: str, label: str, duration_ms: int) -> Iterator[Entry]:
    bucket = next((str(most) for most in BUCKETS_MS if duration_ms <= most), "inf")
    yield name, (label, bucket), 1
    yield name, (label, SUM), duration_ms


def _responded(_work: OpenWork, event: Event) -> Iterator[Entry]:
    model = word(event.data, "model")
    for kind in ("input", "cached", "output"):
        if number := count(event.data, f"{kind}_tokens"):
            yield TOKENS, (model, kind), number
    if cost := microusd(event.data):
        yield COST, (model,), cost
    if event.type == EventType.MODEL_RESPONDED:
        yield from _timed(LATENCY, model, count(event.data, "duration_ms"))


def _failed(_work: OpenWork, event: Event) -> Iterator[Entry]:
    if count(event.data, "attempt"):
        yield FAILURES, (word(event.data, "model"), str(count(event.data, "status") or "none")), 1


def _tool_ended(_work: OpenWork, event: Event) -> Iterator[Entry]:
    tool = word(event.data, "tool")
    yield CALLS, (tool,), 1
    if event.type != EventType.TOOL_COMPLETED:
        yield TOOL_ERRORS, (tool, word(event.data, "error") or event.type), 1


def _asked(work: OpenWork, event: Event) -> Iterator[Entry]:
    keep(work.asked, word(event.data, "request_id"), OpenSpan(event.time_us))
    yield from ()


def _decided(work: OpenWork, event: Event) -> Iterator[Entry]:
    asked = work.asked.pop(word(event.data, "request_id"), None)
    if asked is not None:
        yield from _timed(DECISIONS, word(event.data, "author"), max(0, event.time_us - asked.since_us) // 1000)


def _ready(work: OpenWork, event: Event) -> Iterator[Entry]:
    work.ready_us = event.time_us
    yield from ()


def _claimed(work: OpenWork, event: Event) -> Iterator[Entry]:
    if work.ready_us:
        yield from _timed(QUEUE, "", max(0, event.time_us - work.ready_us) // 1000)
    work.ready_us = 0


_READERS: Final[Mapping[str, Callable[[OpenWork, Event], Iterator[Entry]]]] = {
    EventType.MODEL_RESPONDED: _responded,
    EventType.CONTEXT_COMPACTED: _responded,
    EventType.MODEL_FAILED: _failed,
    EventType.TOOL_COMPLETED: _tool_ended,
    EventType.TOOL_FAILED: _tool_ended,
    EventType.TOOL_DENIED: _tool_ended,
    EventType.PERMISSION_REQUESTED: _asked,
    EventType.PERMISSION_DECIDED: _decided,
    EventType.PERMISSION_WITHDRAWN: _decided,
    EventType.STEP_READY: _ready,
    EventType.STEP_CLAIMED: _claimed,
}
