"""``soong orchestrator``: an owner of sessions without embedded parts, for deployments named by two URLs."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import typer

from soong.orchestrator.cli.console import say
from soong.orchestrator.client.logs import configure_logs
from soong.shared.core.clock import SystemClock
from soong.shared.core.errors import UsageError
from soong.shared.core.open_files import raise_open_files
from soong.shared.core.settings import Settings, load_settings
from soong.shared.core.startup import settle_gc
from soong.shared.storage.store import Store


def command(
    *,
    metrics_port: int | None = typer.Option(
        None, "--metrics-port", min=0, max=65535, help="Answer /metrics and /healthz there [SOONG_METRICS_PORT]."
    ),
    metrics_address: str | None = typer.Option(
        None, "--metrics-address", help="Address of that port, loopback by default [SOONG_METRICS_ADDRESS]."
    ),
) -> None:
    """Own sessions of SOONG_DATABASE_URL and SOONG_REDIS_URL until stopped. Several may run at once."""
    settings = load_settings(metrics_port=metrics_port, metrics_address=metrics_address)
    missing = [f"SOONG_{name.upper()}" for name in ("database_url", "redis_url") if not getattr(settings, name)]
    if missing:
        raise UsageError(f"{' and '.join(missing)} must be set; for a service on this machine alone run `soong up`")
    configure_logs(settings)
    raise_open_files()
    asyncio.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    from soong.orchestrator.owner.bootstrap import build  # Celery and SQLAlchemy, not needed for --help

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    orchestrator = await build(settings)
    await orchestrator.start()
    try:
        async with _metrics(settings, orchestrator.parts.store):
            settle_gc()
            say("soong orchestrator is ready")
            await stop.wait()
    finally:
        await orchestrator.stop()


@asynccontextmanager
async def _metrics(settings: Settings, store: Store) -> AsyncIterator[None]:
    """Answer at the metrics' address, if there is one."""
    if not settings.metrics_port:
        yield
        return
    from soong.orchestrator.client.bootstrap import open_metrics
    from soong.orchestrator.telemetry.metrics import collect, text
    from soong.orchestrator.telemetry.metrics_endpoint import MetricsEndpoint

    metrics, clock = open_metrics(settings), SystemClock()

    async def read() -> bytes:
        return text(await collect(store, metrics, clock))

    endpoint = MetricsEndpoint(read)
    try:
        endpoint.start(settings.metrics_address, settings.metrics_port)
        yield
    finally:
        await endpoint.stop()
        await metrics.close()
