"""The HTTP API of an embedded service, as its child: ``python -P -m orchestrator.http LISTENER PARENT``.

Both are inherited descriptors: the bound socket, and a pipe whose end says that the service has ended. The rest is in
the environment, as for every process of a service.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence

from orchestrator.logs import configure_logs
from shared.errors import SoongError
from shared.settings import load_settings
from shared.startup import collect_seldom


def main(arguments: Sequence[str]) -> int:
    collect_seldom()
    from orchestrator.http.running import run  # after it: FastAPI makes many objects

    listener, parent = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    settings = load_settings()
    configure_logs(settings, "http")
    for descriptor in (listener.fileno(), parent):
        os.set_inheritable(descriptor, False)

    async def until_told() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        loop.add_reader(parent, stop.set)  # nothing is ever written to it: readable means closed
        await run(settings, listener, stop.wait())

    try:
        asyncio.run(until_told())
    except SoongError as error:
        sys.stderr.write(f"soong http: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
