"""A TCP proxy that does what networks do: delays, cuts, holes, trickles. One asyncio server in the test's own loop."""

import asyncio
import random
import socket
import struct
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self

from tests.loopback import listening
from tests.waiting import until


@dataclass
class Toxics:
    """What happens to every byte that passes, both ways. Changed at any time; connections under way follow."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_s: float = 0.0
    """Bandwidth of a connection and direction; 0 is unlimited."""
    slice_bytes: int = 65_536
    """Most bytes passed on at once."""
    is_hole: bool = False
    """Nothing passes, nothing ends: as if the cable were cut."""
    is_closed: bool = False
    """New connections are reset at once."""
    close_s: float = 0.0
    """How long the end of one side is kept from the other."""


@dataclass
class Proxy:
    """``async with Proxy("127.0.0.1", 6379) as proxy``: connect to 127.0.0.1 and ``proxy.port``."""

    host: str
    target: int
    toxics: Toxics = field(default_factory=Toxics)
    seed: int = 0
    connections: int = 0
    port: int = 0
    _live: set[asyncio.StreamWriter] = field(default_factory=set)
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        self._random = random.Random(self.seed)
        self.port = await self._open.enter_async_context(listening(self._accept))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.reset()
        await self._open.aclose()

    def reset(self) -> int:
        """Reset every connection; return how many there were."""
        writers = tuple(self._live)
        for writer in writers:
            _reset(writer)
        return len(writers)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.toxics.is_closed:
            _reset(writer)
            return
        try:
            back_reader, back_writer = await asyncio.open_connection(self.host, self.target)
        except OSError:
            _reset(writer)
            return
        both = (writer, back_writer)
        self._live.update(both)
        loop = asyncio.get_running_loop()
        ways = [loop.create_task(self._pass(reader, back_writer)), loop.create_task(self._pass(back_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(self.toxics.close_s)
        finally:
            for way in ways:
                way.cancel()
            self._live.difference_update(both)
            for each in both:
                each.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(max(1, self.toxics.slice_bytes)):
                await self._delay(len(data))
                writer.write(data)
                await writer.drain()
        except OSError:
            return

    async def _delay(self, size: int) -> None:
        await until(lambda: not self.toxics.is_hole, 600)
        wait_s = self.toxics.latency_s + self._random.uniform(-1, 1) * self.toxics.jitter_s
        if self.toxics.bytes_s:
            wait_s += size / self.toxics.bytes_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset instead of a farewell."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
