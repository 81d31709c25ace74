"""A connection that its user keeps, for hints: they come one after another all the time.

A client of redis-py takes a connection out of its pool for each command or pipeline and gives it back, under locks and
time limits of its own: half of the CPU time that a hint costs its sender. Its ``PubSub`` has as much around each
read.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

from soong.shared.storage.redis.client import COMMAND_LIMIT_S

Command: TypeAlias = Sequence[str | int]
"""Its name and arguments."""


class DirectConnection:
    """One connection of a client's pool, from its first use to ``close``. For one task at a time.

    After an error it is cut, and the next use connects again.
    """

    def __init__(self, client: "Redis") -> None:
        self._pool: Any = client.connection_pool  # partly untyped
        self._connection: AbstractConnection | None = None

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one round trip and return what each answers.

        Raises:
            RedisError, OSError, TimeoutError: Redis is away, or it refused one; those after that have been executed.
        """
        # One limit for all: one for each answer would take longer than to read it.
        async with asyncio.timeout(COMMAND_LIMIT_S):
            connection = await self._ready()
            await connection.send_packed_command([_packed(command) for command in commands])
            answers = [await _answer(connection) for _ in commands]
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise answer
        return answers

    async def send(self, *command: str) -> None:
        """Send a command whose answer, and all that the server says after it, :meth:`receive` returns.

        Raises:
            RedisError, OSError, TimeoutError: Redis is away.
        """
        if self._connection is None:
            self._connection = await self._pool.get_connection()
        await self._connection.send_command(*command)

    async def receive(self, limit_s: float = math.inf) -> Any:
        """Return what the server says next; None when it has said nothing for so long.

        Raises:
            RedisError, OSError, TimeoutError: Redis is away, or it refuses a command that was sent.
        """
        assert self._connection is not None  # something has been sent
        return await self._connection.read_response(timeout=limit_s, disconnect_on_error=False)

    async def close(self) -> None:
        """Cut the connection and give its place back. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)

    async def _ready(self) -> AbstractConnection:
        """Return the connection. It is made again if it was cut while nothing was sent, or has something to read."""
        if self._connection is None:
            self._connection = await self._pool.get_connection()
        else:
            await self._pool.ensure_connection(self._connection)
        return self._connection


def _packed(command: Command) -> bytes:
    """Return a command as the server reads it."""
    words = [str(word).encode(errors="replace") for word in command]
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)])


async def _answer(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response(timeout=math.inf)
    except ResponseError as refused:  # the answers to the commands after it are still to be read
        return refused
