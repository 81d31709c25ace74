"""``soong serve``: the HTTP API in a process of its own. ``soong console``: the same, and a signed-in browser.

``soong acp``: an orchestrator for editors that speak the Agent Client Protocol, on standard input and output.
"""

import asyncio
import os
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import typer

from soong.orchestrator.cli.options import MODEL, SLOTS, WORKERS
from soong.orchestrator.client.logs import configure_logs
from soong.orchestrator.client.responder import cancelled
from soong.orchestrator.embedded.control import ControlClient
from soong.orchestrator.embedded.folders import prepare_home
from soong.orchestrator.embedded.listening import address_of, is_loopback, listen
from soong.orchestrator.embedded.service_file import read_record
from soong.orchestrator.embedded.starter import Attachment, attach, deployment
from soong.orchestrator.terminal.console import say
from soong.orchestrator.terminal.held_service import Interrupts
from soong.shared.core import timing
from soong.shared.core.amounts import WorkerRange
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.tasks.plan.plan import ORCHESTRATOR

PORT = 8437

AUTH_FILE = "flower.auth"
LOOPBACK = "127.0.0.1"


async def command(
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
    with closing(listen(settings.http_host, wanted, settings.http_allow_hosts)) as listener:

        def tell() -> None:
            address = address_of(listener)
            say(f"HTTP API: {address}/v1/   a token: soong tokens create --principal NAME --right read")
            if not is_loopback(settings.http_host):
                say("  it listens beyond this machine: put TLS in front of it")

        await _serve(await attach(settings, may_start=False), listener, tell)


async def _serve(attachment: Attachment, listener: socket.socket, ready: Callable[[], None]) -> None:
    from soong.orchestrator.http.server import run  # FastAPI and uvicorn, not needed for --help

    try:
        await run(attachment.settings, listener, partial(until_told, attachment.control), ready)
    finally:
        await attachment.release()


async def until_told(control: ControlClient | None, what: str = "the HTTP API") -> None:
    """Return at a signal, or when the service that is served has ended."""
    interrupts = Interrupts()
    interrupts.listen()
    told = asyncio.create_task(interrupts.wait(1))
    ended = None if control is None else asyncio.create_task(control.ended())
    await asyncio.wait(filter(None, (told, ended)), return_when=asyncio.FIRST_COMPLETED)
    if ended is not None and ended.done():
        say(f"the service has ended, and {what} with it")
    await cancelled(told, ended)


async def console(
    *,
    port: int = typer.Option(0, "--port", min=0, max=65535, help="Port to serve it on; 0: a free one."),
    url: str = typer.Option("", "--url", metavar="URL", help="Open the console of this running API instead."),
    no_open: bool = typer.Option(False, "--no-open", help="Print the link, and open no browser."),
) -> None:
    """Open the web console: tasks, agents, workers, and the questions that wait for an answer.

    It starts a service if none is running. The link signs you in once, within a minute.
    """
    settings = load_settings()
    # Without a screen for a window, a text browser would take the terminal.
    has_screen = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    opens = not no_open and has_screen
    with _redirecting() as page:
        if url:
            _show(await _link(settings, _checked(url)), page if opens else None)
            await asyncio.sleep(timing.CLOSE_LIMIT_S if opens else 0)
            return
        configure_logs(settings, "http")
        with closing(listen("127.0.0.1", port, ())) as listener:
            attachment = await attach(settings, tell=say)
            links = LinkMaker(attachment.settings, address_of(listener))
            try:
                await _serve(attachment, listener, partial(links.start, page if opens else None))
            finally:
                await links.close()


@dataclass(slots=True)
class LinkMaker:
    """Makes a link at the start, and one whenever Enter is pressed: a page that is loaded again forgets its token."""

    settings: Settings
    address: str
    _making: set[asyncio.Task[None]] = field(default_factory=set)

    def start(self, page: Path | None) -> None:
        self._make(page)
        if sys.stdin is not None and sys.stdin.isatty():
            with suppress(OSError):  # a terminal that cannot be waited for gives one link
                asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._on_enter)
                say("  Enter: another link    Ctrl-C: stop")

    def _on_enter(self) -> None:
        if sys.stdin.readline():
            self._make(None)
        else:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def _make(self, page: Path | None) -> None:
        async def make() -> None:
            _show(await _link(self.settings, self.address), page)

        task = asyncio.get_running_loop().create_task(make())
        self._making.add(task)
        task.add_done_callback(self._making.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._making, return_exceptions=True)


async def _link(settings: Settings, address: str) -> str:
    """Return an address that signs in the browser that opens it first, within a minute."""
    from soong.orchestrator.operations.administration import make_sign_in

    return f"{address}/#code={await make_sign_in(settings)}"


def _show(link: str, page: Path | None) -> None:
    """Print a link, and open it by a page that only this user can read: what is on a command line, everybody sees."""
    say(f"web console: {link}")
    say("  the link signs you in once, within a minute")
    if page is not None:
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={link}">\n', encoding="utf-8")
        if not webbrowser.open(page.as_uri()):
            say("  no browser could be opened; open the link yourself")


@contextmanager
def _redirecting() -> Iterator[Path]:
    """Give a file of this user alone, removed at the end."""
    descriptor, name = tempfile.mkstemp(prefix="soong-console-", suffix=".html")
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _checked(url: str) -> str:
    """Return an address without a slash at its end. Raises: UsageError."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc or parts.path.strip("/") or parts.query:
        raise UsageError(f"invalid --url {url!r}: expected http://HOST:PORT, such as http://127.0.0.1:8437")
    return f"{parts.scheme}://{parts.netloc}"


async def acp(
    *,
    agent: str = typer.Option(ORCHESTRATOR, "--agent", help="The definition of the agent that answers prompts."),
    model: str | None = MODEL,
    workers: WorkerRange | None = WORKERS,
    slots: int | None = SLOTS,
) -> None:
    """Serve an editor that speaks the Agent Client Protocol and starts this command."""
    if sys.stdin.isatty():
        words = "standard input is a terminal, and this command speaks a protocol; name it in your editor's settings"
        raise UsageError(f"{words} (docs/reference/acp.md), or give a goal with `soong ask`")
    settings = load_settings(model=model, workers=workers, slots=slots)
    from acp import run_agent  # half a second

    from soong.orchestrator.acp.agent import OrchestratorAgent
    from soong.orchestrator.http.own_api import OwnApi

    held: list[Attachment] = []

    async def attached(_may_start: bool) -> Attachment:
        held.append(await attach(settings, tell=say))
        return held[-1]

    own = OwnApi("acp", attached)
    ours = OrchestratorAgent(settings, agent, lambda: own.calls(may_start=True))
    try:
        await run_agent(ours, use_unstable_protocol=True)  # type: ignore[arg-type]  # it calls by keywords
    finally:
        await ours.close()
        await own.close()
        for attachment in held:  # an ephemeral service that nobody else needs ends
            if not await attachment.wait_until_gone(timing.PATIENCE_S):
                attachment.kill()


async def flower(
    *,
    port: int = typer.Option(5555, "--port", min=1, max=65535, help="Port to listen on."),
    address: str = typer.Option(LOOPBACK, "--address", help="Address to listen on."),
    auth_file: Path | None = typer.Option(
        None, "--auth-file", help="File with USER:PASSWORD [flower.auth in the home, made when there is none]."
    ),
) -> None:
    """Open Flower on the running service and stay until Ctrl-C or until the service ends."""
    from soong.orchestrator.http.flower import read_auth, running_flower

    settings = load_settings()
    file = auth_file or prepare_home(settings) / AUTH_FILE
    credentials = read_auth(file, may_make=auth_file is None)
    service = await deployment(settings, hint="SOONG_REDIS_URL")
    record = None if settings.redis_url else read_record(settings.home)
    control = None if record is None else await ControlClient.open(record.control)
    with running_flower(service, credentials, address, port):
        say(f"Flower: http://{address}:{port}/   user {credentials.partition(':')[0]}, password in {file}")
        if address not in (LOOPBACK, "localhost", "::1"):
            say("  it listens beyond this machine: put TLS in front of it")
        await until_told(control, "Flower")
