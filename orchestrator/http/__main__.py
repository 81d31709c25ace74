"""The HTTP API of an embedded service, as its child: ``python -P -m soong.orchestrator.http LISTENER PARENT``.

Both are inherited descriptors: the bound socket, and a pipe whose end says that the service has ended. The rest is in
the environment, as for every process of a service.
"""

import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress


class ServiceEndWatcher:
    """Watches the pipe from the first moment: until the API serves, the end of the service is ours at once.

    A child that is still starting would otherwise hold the port for as long as its start takes.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._tell: Callable[[], object] = lambda: os._exit(0)
        threading.Thread(target=self._wait, name="soong-parent", daemon=True).start()

    def when_ended(self, tell: Callable[[], object]) -> None:
        """From now on call ``tell``, in another thread, instead of ending this process."""
        with self._lock:
            self._tell = tell

    def _wait(self) -> None:
        select.select([self._descriptor], [], [])  # nothing is ever written to it: readable means closed
        with self._lock, suppress(RuntimeError):  # the loop that would be told has ended: nothing is left to tell
            self._tell()


def main(arguments: Sequence[str]) -> int:
    listener, parent = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    for descriptor in (listener.fileno(), parent):
        os.set_inheritable(descriptor, False)
    return serve(listener, ServiceEndWatcher(parent).when_ended)


def serve(listener: socket.socket, when_parent_ends: Callable[[Callable[[], object]], None]) -> int:
    """Serve until a signal comes or the service ends, of which ``when_parent_ends`` tells; return the exit code."""
    # Imports take seconds on a busy machine: the pipe is watched meanwhile.
    import asyncio
    import signal

    from soong.orchestrator.client.logs import configure_logs
    from soong.shared.core.errors import SoongError
    from soong.shared.core.settings import load_settings
    from soong.shared.core.startup import begin, guard_streams, settle_gc

    guard_streams()
    begin()
    from soong.orchestrator.http.server import run  # after it: FastAPI makes many objects

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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
