"""Telemetry of an orchestrator, as the OTEL_* variables ask for it. Without them nothing here is imported or run."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from soong.orchestrator.event_log.follower import EventFollower
from soong.orchestrator.telemetry.metrics_consumer import MetricsConsumer
from soong.orchestrator.telemetry.span_consumer import SpanConsumer
from soong.shared.core import timing
from soong.shared.core.clock import Clock
from soong.shared.core.installation import install_line
from soong.shared.core.log import get_logger
from soong.shared.core.telemetry import TelemetrySettings
from soong.shared.core.value import Value
from soong.shared.storage.store import Store

log = get_logger(__name__)

LONGEST_INTERVALS: Final = 6
"""How long spans wait for a free core, in intervals of their sending."""
NOT_INSTALLED: Final = f"OpenTelemetry is not installed; {install_line('otel')}"


class Telemetry(Value):
    """What an orchestrator runs from start to stop, and what it awaits at its stop."""

    background: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = ()
    closers: tuple[Callable[[], Awaitable[None]], ...] = ()


def count_events(store: Store, clock: Clock, owner_id: Callable[[], str]) -> Telemetry:
    """Return what counts events for the metrics of the deployment."""
    follower = EventFollower(store.feed, MetricsConsumer(), clock, owner_id, timing.FOLLOW_LOGS_S)
    return Telemetry((follower.run,))


def open_telemetry(
    settings: TelemetrySettings, store: Store, clock: Clock, owner_id: Callable[[], str], version: str
) -> Telemetry:
    """Return what tells of runs outside; nothing, with a warning, where it cannot be done."""
    if settings.problem:
        log.warning("telemetry_off", problem=settings.problem)
        return Telemetry()
    if not settings.traces:
        return Telemetry()
    try:
        from soong.orchestrator.event_log.quiet_time import QuietTime
        from soong.orchestrator.telemetry.otlp import OtlpCollector
    except ImportError as error:
        log.warning("telemetry_off", problem=NOT_INSTALLED, error=str(error))
        return Telemetry()
    try:
        collector = OtlpCollector(settings.target, version)
    except OSError as error:
        log.warning("telemetry_off", problem=f"a certificate of OTEL_EXPORTER_OTLP_* cannot be used: {error}")
        return Telemetry()
    consumer = SpanConsumer(collector, store.runs, store.tasks, settings.captures_content)
    quiet = QuietTime(settings.interval_s * LONGEST_INTERVALS)
    follower = EventFollower(store.feed, consumer, clock, owner_id, settings.interval_s, quiet.wait)

    async def close() -> None:
        await follower.finish(timing.CLOSE_LIMIT_S)
        await asyncio.to_thread(collector.close)

    return Telemetry((follower.run,), (close,))
