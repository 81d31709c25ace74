"""Connections to Redis: one pool for short commands, one for reads that block. Bootstrap makes it and closes it.

Two pools because a time limit that suits a command ends a blocking read (redis-py's default is 5 s). Nothing is retried
below us: each caller knows better whether to wait, to drop or to look at the rows instead.

The limit of a command is not the ``socket_timeout`` of its connection: redis-py applies that to writes by
``asyncio.wait_for``, which before Python 3.12 loses a cancellation that comes as the write ends (python/cpython#86296),
and a cancelled run then continues.
"""

import asyncio
from typing import Any, Self

from redis import __version__ as redis_version
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo

from soong.shared.core.errors import InvalidConfigError

COMMAND_LIMIT_S = 5.0
CONNECT_LIMIT_S = 5.0
COMMAND_CONNECTIONS = 16
BLOCKING_CONNECTIONS = 64


class LimitedRedis(Redis):
    """A client whose commands have a time limit, the wait for a connection included.

    Each command raises: TimeoutError, when it took longer than ``COMMAND_LIMIT_S``.
    """

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with asyncio.timeout(COMMAND_LIMIT_S):
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
        timeout=CONNECT_LIMIT_S,
        socket_timeout=None,
        socket_connect_timeout=CONNECT_LIMIT_S,
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
