"""The API of an embedded service from the settings in its environment to its end."""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable

from soong.orchestrator.client.logs import configure_logs
from soong.orchestrator.embedded.http_port import sign
from soong.shared.core.errors import SoongError
from soong.shared.core.settings import load_settings
from soong.shared.core.startup import begin, settle_gc
from soong.shared.core.terminal import guard_streams


def serve(listener: socket.socket, lock: int, when_parent_ends: Callable[[Callable[[], object]], None]) -> int:
    """Serve until a signal comes or the service ends, of which ``when_parent_ends`` tells; return the exit code."""
    sign(lock)
    guard_streams()
    begin()
    from soong.orchestrator.http.running import run  # after it: FastAPI makes many objects

    settings = load_settings()
    configure_logs(settings, "http")

    async def until_told() -> None:
        settle_gc()
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        when_parent_ends(lambda: loop.call_soon_threadsafe(stop.set))
        await stop.wait()

    try:
        asyncio.run(run(settings, listener, until_told))
    except SoongError as error:
        sys.stderr.write(f"soong http: {error}\n")
        return 1
    return 0
