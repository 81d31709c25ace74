"""The consumers that make telemetry of the logs: spans, as the OTEL_* variables ask for them, and counts.

A count is a row, written with the place in the log that it comes from. So every orchestrator reports the same totals,
and a restart neither loses nor repeats any.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from soong.orchestrator.event_log.follower import (
    EventFollower,
    Followers,
    Taken,
    UndeliveredError,
    count,
    microusd,
    word,
)
from soong.orchestrator.telemetry.run_spans import RunSpans
from soong.orchestrator.telemetry.spans import (
    OpenSpan,
    OpenWork,
    Span,
    TraceOrigin,
    keep,
    parse_trace_parent,
    span_id,
    trace_id,
)
from soong.shared.core import timing
from soong.shared.core.errors import NotFoundError
from soong.shared.core.installation import install_line
from soong.shared.core.log import TelemetrySettings, get_logger
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.runs.store import RunStore
from soong.shared.engine.tasks.event_feed import FeedCursor, FeedPart, FeedRun
from soong.shared.engine.tasks.store import TaskStore
from soong.shared.storage.store import Store

if TYPE_CHECKING:
    from soong.orchestrator.telemetry.otlp import OtlpCollector


log = get_logger(__name__)

NOT_INSTALLED: Final = f"OpenTelemetry is not installed; {install_line('otel')}"
MAX_DEPTH: Final = 20
REFUSALS: Final = 5
"""How often a collector that takes others may refuse the same spans; they are then left out, for the sake of the rest.
"""


@dataclass(slots=True)
class SpanConsumer:
    """Implements :class:`soong.orchestrator.event_log.follower.EventConsumer`."""

    collector: "OtlpCollector"
    runs: RunStore
    tasks: TaskStore
    captures_content: bool = False
    name: str = "traces"
    _origins: dict[str, TraceOrigin] = field(default_factory=dict)
    """By task id."""
    _refused: int = 0

    async def take(self, parts: Sequence[FeedPart]) -> Taken:
        spans: list[Span] = []
        cursors: list[FeedCursor] = []
        for part in parts:
            origin = await self._origin(part.run)
            reader = RunSpans(part.run, origin, OpenWork.from_json(part.run.state), self.captures_content)
            ended = [span for event in part.events for span in reader.take(event)]
            spans += ended if origin.is_sampled else ()
            cursors.append(FeedCursor(part.run.identity.run_id, part.events[-1].seq, reader.work.as_json()))
        if spans:
            await self._send(spans)
        return Taken(cursors)

    async def _send(self, spans: Sequence[Span]) -> None:
        problem = await asyncio.to_thread(self.collector.send, spans)
        if not problem:
            self._refused = 0
            return
        self._refused = 0 if await asyncio.to_thread(self.collector.send, ()) else self._refused + 1
        if self._refused < REFUSALS:
            raise UndeliveredError(f"the collector took no spans: {problem}; see OTEL_EXPORTER_OTLP_ENDPOINT")
        self._refused = 0
        log.error("spans_refused", spans=len(spans), first=spans[0].name, problem=problem)

    async def _origin(self, run: FeedRun) -> TraceOrigin:
        task_id = run.identity.task_id
        if task_id not in self._origins:
            while len(self._origins) >= 10_000:
                del self._origins[next(iter(self._origins))]
            origin = await self._found(task_id, run.trace_parent, run.planner_run_id)
            sampled = await asyncio.to_thread(self.collector.is_sampled, origin)
            self._origins[task_id] = TraceOrigin(origin.trace_id, origin.parent_id, sampled)
        return self._origins[task_id]

    async def _found(self, task_id: str, trace_parent: str, planner_run_id: str, depth: int = 0) -> TraceOrigin:
        """Return the trace that a task's submitter named, or that of the agent that planned it, or its own."""
        if named := parse_trace_parent(trace_parent):
            return named
        if planner_run_id and depth < MAX_DEPTH:
            try:
                planner = (await self.runs.run(planner_run_id)).identity
                task = await self.tasks.task(planner.task_id)
                above = (await self.runs.run(task.root_run_id)).identity.parent_run_id
            except NotFoundError:  # removed by now
                return TraceOrigin(trace_id(task_id))
            outer = await self._found(task.id, task.trace_parent, above, depth + 1)
            return TraceOrigin(outer.trace_id, span_id(planner_run_id, "segment", 1), outer.is_sampled)
        return TraceOrigin(trace_id(task_id))


def count_events(store: Store, clock: Clock, owner_id: Callable[[], str]) -> Followers:
    follower = EventFollower(store.feed, MetricsConsumer(), clock, owner_id, timing.FOLLOW_LOGS_S)
    return Followers((follower.run,))


def open_telemetry(
    settings: TelemetrySettings, store: Store, clock: Clock, owner_id: Callable[[], str], version: str
) -> Followers:
    """Return the consumers that report runs outside; nothing, with a warning, where it cannot be done."""
    if settings.problem:
        log.warning("telemetry_off", problem=settings.problem)
        return Followers()
    if not settings.traces:
        return Followers()
    try:
        from soong.orchestrator.telemetry.otlp import OtlpCollector
    except ImportError as error:
        log.warning("telemetry_off", problem=NOT_INSTALLED, error=str(error))
        return Followers()
    try:
        collector = OtlpCollector(settings.target, version)
    except OSError as error:
        log.warning("telemetry_off", problem=f"a certificate of OTEL_EXPORTER_OTLP_* cannot be used: {error}")
        return Followers()
    consumer = SpanConsumer(collector, store.runs, store.tasks, settings.captures_content)
    follower = EventFollower(store.feed, consumer, clock, owner_id, settings.interval_s)

    async def close() -> None:
        await follower.finish(timing.CLOSE_LIMIT_S)
        await asyncio.to_thread(collector.close)

    return Followers((follower.run,), (close,))


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
