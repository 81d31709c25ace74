"""The HTTP API of an embedded service, as its child: ``python -P -m soong.orchestrator.http LISTENER PARENT LOCK``.

All are inherited descriptors: the bound socket, a pipe whose end says that the service has ended, and the lock by which
the next service of the home knows who holds its port. The rest is in the environment, as for every process of a
service.
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
    listener, parent, lock = socket.socket(fileno=int(arguments[0])), int(arguments[1]), int(arguments[2])
    for descriptor in (listener.fileno(), parent, lock):
        os.set_inheritable(descriptor, False)
    pipe = ServiceEndWatcher(parent)
    from soong.orchestrator.http.child import (
        serve,  # imports take seconds on a busy machine: the pipe is watched meanwhile
    )

    return serve(listener, lock, pipe.when_ended)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
