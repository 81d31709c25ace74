"""Connections to Redis: one pool for short commands, one for reads that block. Bootstrap makes it and closes it.

Two pools because a time limit that suits a command ends a blocking read (redis-py's default is 5 s). Nothing is retried
below us: each caller decides whether to wait, to drop or to read the rows instead.

The limit of a command is not the ``socket_timeout`` of its connection: redis-py applies that to writes by
``asyncio.wait_for``, which before Python 3.12 loses a cancellation that comes as the write ends (python/cpython#86296),
and a cancelled run then continues.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any, Self, TypeAlias

from redis import __version__ as redis_version
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import ResponseError

from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError

COMMAND_CONNECTIONS = 16
BLOCKING_CONNECTIONS = 64

Command: TypeAlias = tuple[str | int, ...]
"""Its name and arguments."""


class LimitedRedis(Redis):
    """A client whose commands have a time limit, the wait for a connection included.

    Each command raises: TimeoutError, when it took longer than ``timing.COMMAND_LIMIT_S``.
    """

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with asyncio.timeout(timing.COMMAND_LIMIT_S):
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # of redis-py


class RedisClients:
    """The two clients of one process and loop."""

    def __init__(self, commands: "Redis", blocking: "Redis") -> None:
        self.commands = commands
        self.blocking = blocking

    @classmethod
    def of(cls, url: str, *, name: str = "soong", blocking: int = BLOCKING_CONNECTIONS) -> Self:
        """Prepare clients for ``redis://``, ``rediss://`` or ``unix:///path``; nothing is connected yet.

        ``blocking`` is how many reads may block at once; each subscription is one.

        Raises:
            InvalidConfigError: not such a URL.
        """
        try:
            return cls(
                LimitedRedis.from_pool(_pool(url, name, COMMAND_CONNECTIONS)),
                Redis.from_pool(_pool(url, f"{name}-ear", blocking)),
            )
        except ValueError as error:
            raise InvalidConfigError(f"SOONG_REDIS_URL: {error}; write redis://host:6379/0 or unix:///path") from error

    async def close(self) -> None:
        await self.commands.aclose()
        await self.blocking.aclose()


def _pool(url: str, name: str, connections: int) -> BlockingConnectionPool:
    return BlockingConnectionPool.from_url(
        url,
        max_connections=connections,
        timeout=timing.COMMAND_LIMIT_S,
        socket_timeout=None,
        socket_connect_timeout=timing.COMMAND_LIMIT_S,
        client_name=name,
        decode_responses=True,
        # A publisher can send bytes that are not text. Such a message is ignored, as any other that is not a hint.
        encoding_errors="replace",
        # One form of replies whatever the server; bundled Redis is 6.2.
        protocol=2,
        # Otherwise each connection reads its version from the metadata of the installed package.
        driver_info=DriverInfo(lib_version=redis_version),
        retry=Retry(NoBackoff(), 0),
    )


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
        async with asyncio.timeout(timing.COMMAND_LIMIT_S):
            if self._connection is None:
                self._connection = await self._pool.get_connection()
            else:  # it is made again if it was cut while nothing was sent, or has something to read
                await self._pool.ensure_connection(self._connection)
            await self._connection.send_packed_command([_packed(command) for command in commands])
            answers: list[Any] = []
            for _ in commands:
                try:
                    answers.append(await self._connection.read_response(timeout=math.inf))
                except ResponseError as refused:  # the answers to the commands after it are still to be read
                    answers.append(refused)
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise answer
        return answers

    async def send(self, *command: str) -> None:
        """Send a command whose answer, and all later messages of the server, :meth:`receive` returns.

        Raises:
            RedisError, OSError, TimeoutError: Redis is away.
        """
        if self._connection is None:
            self._connection = await self._pool.get_connection()
        await self._connection.send_command(*command)

    async def receive(self, limit_s: float = math.inf) -> Any:
        """Return the server's next message; None when it has sent nothing for so long.

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


def _packed(command: Command) -> bytes:
    """Return a command as the server reads it."""
    words = [str(word).encode(errors="replace") for word in command]
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)])
