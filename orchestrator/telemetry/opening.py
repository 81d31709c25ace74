"""Telemetry of an orchestrator, as the OTEL_* variables ask for it. Without them nothing here is imported or run."""

import asyncio
from collections.abc import Callable
from typing import Final

from soong.orchestrator.event_log.follower import EventFollower, Followers
from soong.orchestrator.telemetry.metrics_consumer import MetricsConsumer
from soong.orchestrator.telemetry.span_consumer import SpanConsumer
from soong.shared.core import timing
from soong.shared.core.clock import Clock
from soong.shared.core.installation import install_line
from soong.shared.core.log import get_logger
from soong.shared.core.telemetry import TelemetrySettings
from soong.shared.storage.store import Store

log = get_logger(__name__)

NOT_INSTALLED: Final = f"OpenTelemetry is not installed; {install_line('otel')}"


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
