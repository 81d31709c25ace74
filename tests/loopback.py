"""TCP servers on the loopback that leave nothing behind: no connection outlives their block.

A connection that is being accepted while its server closes would otherwise be an unclosed transport, which Python tells
of whenever it likes, in whatever test runs then.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

ACCEPTING_TURNS = 10
"""Turns of the loop after which what had been accepted has reached its handler: asyncio takes three."""


@asynccontextmanager
async def listening(serve: Serve, ssl: SSLContext | None = None) -> AsyncIterator[int]:
    """Serve each connection in a task of its own, on a free port, which is yielded; end them all with the block."""
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            await serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            handlers.discard(task)
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=ssl)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for _ in range(ACCEPTING_TURNS):
            await asyncio.sleep(0)
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
