"""``soong serve``: the HTTP API in a process of its own. ``soong console``: the same, and a signed-in browser."""

import asyncio
import os
import signal
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import typer

from soong.orchestrator.cli.console import say
from soong.orchestrator.client.logs import configure_logs
from soong.orchestrator.embedded.listening import address_of, is_loopback, listen
from soong.orchestrator.embedded.starter import Attachment, attach
from soong.shared.core import timing
from soong.shared.core.errors import UsageError
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
    from soong.orchestrator.http.server import run  # FastAPI and uvicorn, not needed for --help

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


def console(
    *,
    port: int = typer.Option(0, "--port", min=0, max=65535, help="Port to serve it on; 0: a free one."),
    url: str = typer.Option("", "--url", metavar="URL", help="Open the console of this running API instead."),
    no_open: bool = typer.Option(False, "--no-open", help="Print the link, and open no browser."),
) -> None:
    """Open the web console: tasks, agents, workers, and the questions that wait for an answer.

    It starts a service if none is running. The link signs you in once, within a minute.
    """
    settings = load_settings()
    opens = not no_open and _has_screen()
    if url:
        asyncio.run(_open_running(settings, _checked(url), opens=opens))
        return

    configure_logs(settings, "http")
    with closing(listen("127.0.0.1", port, ())) as listener:
        asyncio.run(_serve_console(settings, listener, opens=opens))


async def _serve_console(settings: Settings, listener: socket.socket, *, opens: bool) -> None:
    from soong.orchestrator.http.server import run  # FastAPI and uvicorn, not needed for --help

    attachment = await attach(settings, tell=say)
    links = LinkMaker(attachment.settings, address_of(listener))
    try:
        with _redirecting() as page:
            ready = partial(links.start, page if opens else None)
            await run(attachment.settings, listener, partial(until_told, attachment), ready)
    finally:
        await links.close()
        await attachment.release()


async def _open_running(settings: Settings, address: str, *, opens: bool) -> None:
    link = await _link(settings, address)
    with _redirecting() as page:
        _show(link, page if opens else None)
        if opens:
            await asyncio.sleep(timing.CLOSE_LIMIT_S)


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
    from soong.orchestrator.approvals.approval import check_person
    from soong.orchestrator.cli.ids import opened_store
    from soong.shared.core.clock import SystemClock
    from soong.shared.permissions.access.token import Right, make_token

    now_us = SystemClock().now_us()
    token, code = make_token(
        settings.principal,
        [Right.RUN, Right.APPROVE],
        now_us=now_us,
        expires_us=now_us + timing.DAY_US // 2,
        sign_in_by_us=now_us + timing.HOUR_US // 60,
    )
    async with opened_store(settings) as store:
        await check_person(store.sessions, "open the console")
        await store.access.add_token(token)
    return f"{address}/#code={code}"


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


def _has_screen() -> bool:
    """Say whether a browser may have a window: without one, a text browser would take the terminal."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _checked(url: str) -> str:
    """Return an address without a slash at its end. Raises: UsageError."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc or parts.path.strip("/") or parts.query:
        raise UsageError(f"invalid --url {url!r}: expected http://HOST:PORT, such as http://127.0.0.1:8437")
    return f"{parts.scheme}://{parts.netloc}"
