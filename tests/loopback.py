"""Servers on the loopback that leave nothing behind: no connection outlives their block."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import ThreadingHTTPServer
from socketserver import BaseRequestHandler
from ssl import SSLContext

from tests.waiting import others_run

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

ACCEPTING_TURNS = 10
"""Turns of the loop after which what had been accepted has reached its handler: asyncio takes three."""


@asynccontextmanager
async def listening(serve: Serve, ssl: SSLContext | None = None) -> AsyncIterator[int]:
    """Serve each connection in a task of its own, on a free port, which is yielded; end them all with the block."""
    served: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of ours: of one that it starts itself, Python 3.11 reports the cancellation as a failure.
        task = asyncio.create_task(handle(reader, writer))
        served[task] = writer
        task.add_done_callback(served.pop)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=ssl)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await others_run(ACCEPTING_TURNS)
        for task, writer in served.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)


@contextmanager
def http_on_a_thread(handler: Callable[..., BaseRequestHandler], port: int = 0) -> Iterator[int]:
    """Serve HTTP from a thread, and yield the port."""
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
