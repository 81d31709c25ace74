"""Telemetry of an orchestrator, as the OTEL_* variables ask for it. Without them nothing here is imported or run."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from soong.orchestrator.event_log.follower import EventFollower, Followers, Taken, UndeliveredError
from soong.orchestrator.telemetry.metrics_consumer import MetricsConsumer
from soong.orchestrator.telemetry.run_spans import RunSpans
from soong.orchestrator.telemetry.spans import OpenWork, Span, TraceOrigin, parse_trace_parent, span_id, trace_id
from soong.shared.core import timing
from soong.shared.core.errors import NotFoundError
from soong.shared.core.installation import install_line
from soong.shared.core.log import TelemetrySettings, get_logger
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.store import RunStore
from soong.shared.engine.tasks.event_feed import FeedCursor, FeedPart, FeedRun
from soong.shared.engine.tasks.store import TaskStore
from soong.shared.storage.store import Store

if TYPE_CHECKING:
    from soong.orchestrator.telemetry.otlp import OtlpCollector

log = get_logger(__name__)

NOT_INSTALLED: Final = f"OpenTelemetry is not installed; {install_line('otel')}"
MAX_ORIGINS: Final = 10_000
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
            while len(self._origins) >= MAX_ORIGINS:
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
    """Return what counts events for the metrics of the deployment."""
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
