"""``soong up``: the embedded service, in the foreground, until it is stopped."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from importlib import import_module

import typer

from soong.orchestrator.cli.options import workers_option
from soong.orchestrator.client.logs import configure_logs
from soong.orchestrator.client.program import program
from soong.orchestrator.embedded.preforked_workers import PreforkedWorkers
from soong.orchestrator.embedded.service import BuiltOwner, EmbeddedService
from soong.orchestrator.embedded.service_file import ServiceHeldError
from soong.orchestrator.embedded.starter import EXIT_HELD
from soong.orchestrator.terminal.console import number_of, say
from soong.shared.core.amounts import WorkerRange
from soong.shared.core.settings import Settings, load_settings, without_password
from soong.shared.core.startup import settle_gc


def command(
    *,
    ephemeral: bool = typer.Option(False, "--ephemeral", help="End when nobody is attached and nothing runs."),
    workers: WorkerRange | None = workers_option("Worker processes; a range adds them for work [SOONG_WORKERS]."),
    slots: int | None = typer.Option(None, "--slots", min=1, help="Runs that one worker holds at once [SOONG_SLOTS]."),
    log: str = typer.Option("", "--log", hidden=True, help="The file that standard error goes to."),
    http: int | None = typer.Option(
        None, "--http", metavar="PORT", min=1, max=65535, help="Serve the HTTP API there [SOONG_HTTP_PORT]."
    ),
) -> None:
    """Start Redis, the database, an orchestrator and workers on this machine, and stay."""
    settings = load_settings(workers=workers, slots=slots, http_port=http)
    configure_logs(settings)
    preforked = PreforkedWorkers.fork(settings)
    service = EmbeddedService(settings, build_owner, is_ephemeral=ephemeral, log=log, preforked=preforked)

    def ready() -> None:
        settle_gc()
        least, most = settings.workers.least, settings.workers.most
        workers = f"{number_of(least, 'worker')} of {settings.slots} slots"
        more = f", up to {most} when there is work" if most > least else ""
        say(f"soong is up, home {settings.home}; starting {workers}{more}")
        redis = without_password(settings.redis_url) or "its own, on a socket of this machine"
        say(f"  database: {without_password(settings.effective_database_url)}; Redis: {redis}")
        if settings.http_port:
            say(f"  HTTP API: http://{settings.http_host}:{settings.http_port}/v1/")
            say(f"  a token for it: {program()} tokens create --principal NAME --right run")
        if not ephemeral:
            say(f"  run a plan from any terminal: {program()} run PLAN        stop: Ctrl-C or {program()} down")

    try:
        asyncio.run(service.run(ready))
    except ServiceHeldError as error:
        say(f"soong up: {error}")
        raise typer.Exit(EXIT_HELD) from None
    finally:
        if preforked is not None:
            preforked.close()


async def build_owner(settings: Settings) -> BuiltOwner:
    """Put an orchestrator together; its parts (Celery, SQLAlchemy) are imported now and not for ``--help``."""
    from soong.orchestrator.client.client import Client
    from soong.orchestrator.owner.bootstrap import build

    orchestrator = await build(settings)
    parts = orchestrator.parts
    client = Client(parts.store, parts.notifier, parts.subscriber, parts.clock, settings)

    async def serve(listener: socket.socket, stop: Callable[[], Awaitable[object]]) -> None:
        server = await asyncio.to_thread(import_module, "soong.orchestrator.http.server")  # with the first command
        await server.serve_home(client, listener, stop)

    return orchestrator, parts.store, serve
