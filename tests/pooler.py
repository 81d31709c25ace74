"""A connection pooler in front of PostgreSQL, as small as can be: it speaks the wire and shares server connections."""

import asyncio
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from sqlalchemy import make_url

from tests.loopback import listening

_STARTUP: Final = 196_608
_ENCRYPTION: Final = frozenset({80_877_103, 80_877_104})
"""Codes by which a client asks for TLS or GSSAPI before its startup message."""

_SENT_TOGETHER: Final = frozenset({b"Q", b"S"})
"""Messages that the server answers with ReadyForQuery: a query and a sync."""


class Mode(StrEnum):
    """When a server connection becomes free: at the end of the client's connection, of a transaction, of a query."""

    SESSION = "session"
    TRANSACTION = "transaction"
    STATEMENT = "statement"


class Order(StrEnum):
    """Which free server connection is taken."""

    LAST_USED = "last used"
    LONGEST_UNUSED = "longest unused"


@dataclass
class _Server:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass
class _Client:
    writer: asyncio.StreamWriter
    server: _Server | None = None
    unanswered: int = 0
    is_between_messages: bool = True
    """Whether everything sent so far will be answered with ReadyForQuery."""
    relay: "asyncio.Task[None] | None" = None


@dataclass
class Pooler:
    """Serves one database to one user, both named by ``url``, with at most ``size`` server connections."""

    url: str
    mode: Mode
    size: int = 4
    order: Order = Order.LAST_USED
    resets: bool = False
    """Whether a server connection forgets everything at the end of each transaction."""
    transactions: dict[int, int] = field(default_factory=dict)
    """How many transactions each server connection has run."""
    _free: list[_Server] = field(default_factory=list)
    _all: list[_Server] = field(default_factory=list)
    _opened: list[_Server] = field(default_factory=list)
    """Every server connection that there ever was."""
    _greeting: bytes = b""

    def __post_init__(self) -> None:
        parsed = make_url(self.url)
        self._socket = Path(str(parsed.query["host"])) / ".s.PGSQL.5432"
        self._database, self._user = str(parsed.database), str(parsed.username)
        self._change = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it goes."""
        client = _Client(writer)
        try:
            await _read_startup(reader, writer)
            await self._greet(client)
            while (message := await _message(reader))[0:1] != b"X":
                await self._forward(client, message)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            await self._leave(client)

    async def close(self) -> None:
        for server in self._opened:
            server.writer.close()
        for server in self._opened:
            with suppress(OSError):
                await server.writer.wait_closed()

    async def _greet(self, client: _Client) -> None:
        if not self._greeting:
            await self._give_back(await self._take())
        client.writer.write(self._greeting)

    async def _forward(self, client: _Client, message: bytes) -> None:
        client.is_between_messages = message[:1] in _SENT_TOGETHER
        client.unanswered += client.is_between_messages
        if client.server is None:
            client.server = await self._take()
            client.relay = asyncio.create_task(self._relay(client, client.server))
        client.server.writer.write(message)
        await client.server.writer.drain()

    async def _relay(self, client: _Client, server: _Server) -> None:
        """Pass answers on until the server connection becomes free."""
        while True:
            message = await _message(server.reader)
            if message[:1] == b"Z":
                client.unanswered -= 1
                is_idle = message[-1:] == b"I"
                if self.mode is Mode.STATEMENT and not is_idle:
                    client.writer.write(_error("transaction blocks not allowed in statement pooling mode"))
                    client.writer.close()
                    return
                if is_idle and client.is_between_messages and not client.unanswered:
                    number = self._all.index(server)
                    self.transactions[number] = self.transactions.get(number, 0) + 1
                    if self.resets:
                        await _reset(server)
                    if self.mode is not Mode.SESSION:
                        client.server = client.relay = None
                        await self._give_back(server)
                        client.writer.write(message)
                        return
            client.writer.write(message)
            await client.writer.drain()

    async def _take(self) -> _Server:
        async with self._change:
            await self._change.wait_for(lambda: self._free or len(self._all) < self.size)
            if self._free:
                return self._free.pop(-1 if self.order is Order.LAST_USED else 0)
            server = await self._connect()
            self._all.append(server)
            return server

    async def _give_back(self, server: _Server) -> None:
        async with self._change:
            self._free.append(server)
            self._change.notify()

    async def _connect(self) -> _Server:
        server = _Server(*await asyncio.open_unix_connection(str(self._socket)))
        self._opened.append(server)
        words = ("user", self._user, "database", self._database, "")
        body = struct.pack("!i", _STARTUP) + b"".join(word.encode() + b"\0" for word in words)
        server.writer.write(struct.pack("!i", len(body) + 4) + body)
        greeting = b""
        while (message := await _message(server.reader))[:1] != b"Z":
            greeting += message
        self._greeting = self._greeting or greeting + message
        return server

    async def _leave(self, client: _Client) -> None:
        """End the server connection that a client leaves in the middle of something, or of its session."""
        if client.relay is not None:
            client.relay.cancel()
        if client.server is not None:
            async with self._change:
                client.server.writer.close()
                self._all.remove(client.server)
                self._change.notify()


@contextmanager
def pooler(
    url: str, mode: Mode, size: int = 4, order: Order = Order.LAST_USED, *, resets: bool = False
) -> Iterator[str]:
    """Run a pooler before the database of ``url`` in a thread of its own; yield the URL of the same database by it."""
    ready, stop = threading.Event(), threading.Event()
    ports: list[int] = []

    async def serve() -> None:
        made = Pooler(url, mode, size, order, resets)
        async with listening(made.serve) as port:
            ports.append(port)
            ready.set()
            await asyncio.to_thread(stop.wait)
        await made.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield make_url(url).set(host="127.0.0.1", port=ports[0], query={}).render_as_string(hide_password=False)
    finally:
        stop.set()
        thread.join()


async def _read_startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        (length,) = struct.unpack("!i", await reader.readexactly(4))
        (code,) = struct.unpack("!i", (await reader.readexactly(length - 4))[:4])
        if code == _STARTUP:
            return
        if code not in _ENCRYPTION:
            raise ConnectionError
        writer.write(b"N")


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Return one message: its type, its length, its body."""
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)


async def _reset(server: _Server) -> None:
    body = b"DISCARD ALL\0"
    server.writer.write(b"Q" + struct.pack("!i", len(body) + 4) + body)
    while (await _message(server.reader))[:1] != b"Z":
        pass


def _error(text: str) -> bytes:
    body = b"SFATAL\0VFATAL\0C08P01\0M" + text.encode() + b"\0\0"
    return b"E" + struct.pack("!i", len(body) + 4) + body
