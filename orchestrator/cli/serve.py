"""``soong serve``: the HTTP API in a process of its own, for the service of this home or a deployment."""

import asyncio
import signal
import socket
from functools import partial

import typer

from soong.orchestrator.cli.console import say
from soong.orchestrator.client.logs import configure_logs
from soong.orchestrator.embedded.listening import address_of, is_loopback, listen
from soong.orchestrator.embedded.starter import Attachment, attach
from soong.shared.core.settings import Settings, load_settings

PORT = 8437


def command(
    *,
    port: int | None = typer.Option(None, "--port", min=0, max=65535, help=f"Port; 0: a free one [{PORT}]."),
    host: str | None = typer.Option(None, "--host", help="Address to listen on [SOONG_HTTP_HOST]."),
    allow_host: list[str] = typer.Option([], "--allow-host", help="A name under which it may be called, too."),
    allow_origin: list[str] = typer.Option([], "--allow-origin", help="An origin whose web pages may call it."),
) -> None:
    """Serve the HTTP API until Ctrl-C, or until the service ends. `soong tokens create` makes a token for it."""
    settings = load_settings(
        http_host=host, http_allow_hosts=tuple(allow_host) or None, http_origins=tuple(allow_origin) or None
    )
    wanted = port if port is not None else settings.http_port or PORT
    configure_logs(settings, "http")
    listener = listen(settings.http_host, wanted, settings.http_allow_hosts)
    try:
        asyncio.run(_serve(settings, listener))
    finally:
        listener.close()


async def _serve(settings: Settings, listener: socket.socket) -> None:
    from soong.orchestrator.http.running import run  # FastAPI and uvicorn, not needed for --help

    attachment = await attach(settings, may_start=False)
    try:
        await run(attachment.settings, listener, partial(until_told, attachment), lambda: _tell(settings, listener))
    finally:
        await attachment.release()


async def until_told(attachment: Attachment) -> None:
    """Return at a signal, or when the service that is served has ended."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if attachment.control is None:
        await stop.wait()
        return
    told, ended = asyncio.create_task(stop.wait()), asyncio.create_task(attachment.control.ended())
    await asyncio.wait({told, ended}, return_when=asyncio.FIRST_COMPLETED)
    if ended.done():
        say("the service has ended, and the HTTP API with it")
    for task in (told, ended):
        task.cancel()
    await asyncio.gather(told, ended, return_exceptions=True)


def _tell(settings: Settings, listener: socket.socket) -> None:
    say(f"HTTP API: {address_of(listener)}/v1/   a token: soong tokens create --principal NAME --right read")
    if not is_loopback(settings.http_host):
        say("  it listens beyond this machine: put TLS in front of it")
