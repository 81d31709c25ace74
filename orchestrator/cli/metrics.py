"""``soong metrics``: what an operator watches, in Prometheus' text form, once."""

import asyncio

from soong.orchestrator.cli.console import emit_text
from soong.orchestrator.cli.ids import opened_store
from soong.shared.core.settings import Settings, load_settings


def command() -> None:
    """Print the metrics of the deployment, or of this home's service, from the current rows."""
    emit_text(asyncio.run(_text(load_settings())).decode())


async def _text(settings: Settings) -> bytes:
    from soong.orchestrator.client.bootstrap import opened_metrics
    from soong.orchestrator.telemetry.metrics import collect, text
    from soong.shared.core.clock import SystemClock

    async with opened_store(settings) as store, opened_metrics(settings) as metrics:
        return text(await collect(store, metrics, SystemClock()))
