"""``soong orchestrator``: an owner of sessions without embedded parts, for deployments named by two URLs."""

import asyncio
import signal

from orchestrator.cli.console import say
from orchestrator.logs import configure_logs
from shared.errors import UsageError
from shared.settings import Settings, load_settings


def command() -> None:
    """Own sessions of SOONG_DATABASE_URL and SOONG_REDIS_URL until told to stop. Several may run beside each other."""
    settings = load_settings()
    missing = [f"SOONG_{name.upper()}" for name in ("database_url", "redis_url") if not getattr(settings, name)]
    if missing:
        raise UsageError(f"{' and '.join(missing)} must be set; for a service on this machine alone run `soong up`")
    configure_logs(settings)
    asyncio.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    from orchestrator.bootstrap import build  # Celery and SQLAlchemy, not needed for --help

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    orchestrator = await build(settings)
    await orchestrator.start()
    say("soong orchestrator is ready")
    try:
        await stop.wait()
    finally:
        await orchestrator.stop()
