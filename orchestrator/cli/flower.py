"""``soong flower``: Flower on the running service: read-only, behind a password, on the loopback interface.

It runs in a child: ``python -P -m soong.orchestrator.cli.flower AUTH_FILE ADDRESS PORT``. Its options are set here and
nowhere else: no command line, no FLOWER_ variables.
"""

import asyncio
import errno
import os
import secrets
import signal
import sys
from pathlib import Path

import typer

from soong.orchestrator.cli.console import say
from soong.orchestrator.embedded import die_with_parent
from soong.orchestrator.embedded.control import ControlClient
from soong.orchestrator.embedded.folders import child_environment, module_command, prepare_home
from soong.orchestrator.embedded.starter import living_service
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import Settings, load_settings

AUTH_FILE = "flower.auth"
LOOPBACK = "127.0.0.1"

PORT_TAKEN = 98


def command(
    *,
    port: int = typer.Option(5555, "--port", min=1, max=65535, help="Port to listen on."),
    address: str = typer.Option(LOOPBACK, "--address", help="Address to listen on."),
    auth_file: Path | None = typer.Option(
        None, "--auth-file", help="File with USER:PASSWORD [flower.auth in the home, made when there is none]."
    ),
) -> None:
    """Open Flower on the running service and stay until Ctrl-C or until the service ends."""
    settings = load_settings()
    file = auth_file or prepare_home(settings) / AUTH_FILE
    user = read_auth(file, may_make=auth_file is None).partition(":")[0]
    raise typer.Exit(asyncio.run(_serve(settings, file, user, address, port)))


def read_auth(file: Path, *, may_make: bool) -> str:
    """Return ``user:password``; made (0600) when there is no such file yet and it may be.

    Raises:
        UsageError: it cannot be read, is open to others, or has another form.
    """
    if may_make and not file.exists():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(f"soong:{secrets.token_urlsafe(18)}\n")
    try:
        text = file.read_text(encoding="utf-8").strip()
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--auth-file {str(file)!r} cannot be read: {error}") from error
    if may_make and mode & 0o077:
        raise UsageError(f"{str(file)!r} holds a password and is open to others; run: chmod 600 {str(file)!r}")
    user, separator, password = text.partition(":")
    if not separator or not user or not password:
        raise UsageError(f"{str(file)!r} must hold one line USER:PASSWORD")
    return text


async def _serve(settings: Settings, file: Path, user: str, address: str, port: int) -> int:
    service, control = await _service(settings)
    argv = die_with_parent.command(module_command("soong.orchestrator.cli.flower", str(file), address, str(port)))
    child = await asyncio.create_subprocess_exec(
        *argv,
        env=child_environment(service),
        # Flower reads flowerconfig.py of its folder; nobody else can have put one into the home.
        cwd=str(prepare_home(settings)),
        process_group=0,
    )
    say(f"Flower: http://{address}:{port}/   user {user}, password in {file}")
    if address not in (LOOPBACK, "localhost", "::1"):
        say("  it listens beyond this machine: put TLS in front of it")
    code = await _until_ended(child, control)
    if code == PORT_TAKEN:
        raise UsageError(f"port {port} of {address} is taken; choose another with --port")
    return max(code, 0)


async def _until_ended(child: asyncio.subprocess.Process, control: ControlClient | None) -> int:
    """Wait for a signal, the end of the service or of Flower itself; then end it. Returns its exit code, or 0."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    ended = asyncio.create_task(child.wait())
    waiting = [ended, asyncio.create_task(stop.wait())]
    service_end = asyncio.create_task(control.ended()) if control is not None else None
    await asyncio.wait([*waiting, *([service_end] if service_end else [])], return_when=asyncio.FIRST_COMPLETED)
    if ended.done():
        return ended.result()
    if service_end is not None and service_end.done():
        say("the service has ended, and Flower with it")
    child.terminate()
    try:
        async with asyncio.timeout(5):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
    return 0


async def _service(settings: Settings) -> tuple[Settings, ControlClient | None]:
    """Return settings that name the Redis to read, and a connection that tells of the service's end."""
    if settings.redis_url:
        return settings, None
    record = await living_service(settings)
    if record is None:
        raise UsageError("no service is running: start one with `soong up`, or set SOONG_REDIS_URL")
    return settings.model_copy(update={"redis_url": record.redis_url}), await ControlClient.open(record.control)


def main(auth_file: str, address: str, port: str) -> int:
    from flower.app import Flower
    from flower.options import options
    from flower.urls import settings as flower_settings

    from soong.orchestrator.client.bootstrap import open_broker
    from soong.shared.core.terminal import guard_streams

    guard_streams()
    options.basic_auth = [Path(auth_file).read_text(encoding="utf-8").strip()]
    options.read_only = True
    options.address = address
    options.port = int(port)
    options.natural_time = True
    options.max_tasks = 20_000
    flower = Flower(capp=open_broker(load_settings()), options=options, **flower_settings)
    try:
        flower.start_http_server()
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            return PORT_TAKEN
        raise
    try:
        flower.start()
    except KeyboardInterrupt:
        flower.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
