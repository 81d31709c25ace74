"""Connections to Redis, and the notifications that are sent over one.

One pool is for short commands, one for reads that block: a time limit that suits a command ends a blocking read
(redis-py's default is 5 s). Nothing is retried below us: each caller decides whether to wait, to drop or to read the
rows instead. Bootstrap makes the pools and closes them.

The limit of a command is not the ``socket_timeout`` of its connection: redis-py applies that to writes by
``asyncio.wait_for``, which before Python 3.12 loses a cancellation that comes as the write ends (python/cpython#86296),
and a cancelled run then continues.

Hints are sent behind the caller's back, many in one round trip, never an error. A caller is not held up by Redis: hints
gather while one round trip runs, equal ones count once, and while Redis is away they wait, up to a limit, for its
return. Dropped hints are counted; the sweep makes up for them.

Every call of every agent notifies those who follow its run, who are people. Such a hint waits for ``HINT_S``, and until
``HINTS_S`` after the last round trip, for any other hint, which begins the next one at once. Sent alone it would hold
up a question that is raised a moment later, until Redis has answered. Redis answers with the number of receivers. After
0, hints of the same run are left out for ``UNFOLLOWED_S``: a reader that begins to follow the run then looks at its
rows, and again within a second.
"""

import asyncio
import json
import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Final, Self, TypeAlias

from redis import __version__ as redis_version
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import RedisError, ResponseError

from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.log import get_logger
from soong.shared.engine.wire.notifier import (
    MAX_LENGTH,
    OWNERS_CHANNEL,
    REQUESTS,
    answer_channel,
    decisions_of,
    run_channel,
    session_channel,
    worker_channel,
)

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
        Raises: InvalidConfigError, not such a URL.
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
        packed = []  # as the server reads them
        for command in commands:
            words = [str(word).encode(errors="replace") for word in command]
            packed += [b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)]
        # One limit for all: one for each answer would take longer than to read it.
        async with asyncio.timeout(timing.COMMAND_LIMIT_S):
            if self._connection is None:
                self._connection = await self._pool.get_connection()
            else:  # it is made again if it was cut while nothing was sent, or has something to read
                await self._pool.ensure_connection(self._connection)
            await self._connection.send_packed_command([b"".join(packed)])
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
        Raises: RedisError, OSError, TimeoutError, Redis is away.
        """
        if self._connection is None:
            self._connection = await self._pool.get_connection()
        await self._connection.send_command(*command)

    async def receive(self, limit_s: float = math.inf) -> Any:
        """Return the server's next message; None when it has sent nothing for so long.
        Raises: RedisError, OSError, TimeoutError, Redis is away, or it refuses a command that was sent.
        """
        assert self._connection is not None  # something has been sent
        return await self._connection.read_response(timeout=limit_s, disconnect_on_error=False)

    async def close(self) -> None:
        """Cut the connection and give its place back. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)


log = get_logger(__name__)

MAX_WAITING = 10_000
MAX_EXPIRIES = 1_000
"""Streams whose last expiry command we remember."""
MAX_UNFOLLOWED = 10_000

_RUNS: Final = run_channel("")
"""The start of the channels of runs."""


class RedisNotifier:
    """Implements ``soong.shared.engine.wire.notifier.Notifier``. Bound to the loop of its first hint; ``close`` sends
    waiting hints.
    """

    def __init__(self, client: "Redis") -> None:
        self._client = client
        self._connection = DirectConnection(client)
        self._waiting: dict[Command, None] = {}
        """Hints as commands; one to owners names a session, and is sent with the others of its batch."""
        self._sending: asyncio.Task[None] | None = None
        self._sent_s = -timing.HINTS_S
        self._urgent = asyncio.Event()
        """A hint waits that work waits for, or nothing more is to come."""
        self._said_at = -timing.SILENCE_S
        self._expiries: dict[str, float] = {}
        """By stream: when its expiry was set last."""
        self._unfollowed: dict[str, float] = {}
        """By channel of a run: until when nobody follows it, as far as we know."""
        self.dropped = 0

    async def notify_owners(self, sessions: Sequence[str] = ()) -> None:
        for session_id in sessions or ("",):
            self._put("PUBLISH", OWNERS_CHANNEL, session_id)

    async def notify_worker(self, worker_id: str) -> None:
        self._put("PUBLISH", worker_channel(worker_id), _payload())

    async def call_worker(self, worker_id: str) -> None:
        self._put("PUBLISH", worker_channel(worker_id), _payload(claim=True))

    async def notify_session(self, session_id: str) -> None:
        self._put("PUBLISH", session_channel(session_id), _payload())

    async def notify_runs(self, run_ids: Sequence[str]) -> None:
        now_s = asyncio.get_running_loop().time()
        for channel in map(run_channel, run_ids):
            if self._unfollowed.get(channel, now_s) <= now_s:
                self._put("PUBLISH", channel, _payload(), is_urgent=False)

    async def publish_answer(self, run_id: str, payload: str) -> int:
        try:
            return int(await self._client.publish(answer_channel(run_id), payload))
        except (RedisError, OSError, TimeoutError):
            return 0  # nobody depends on it

    async def permission_raised(self, request_id: str, session_id: str) -> None:
        self._add(REQUESTS, "request", request_id, *(("session", session_id) if session_id else ()))

    async def permission_decided(self, request_id: str, worker_id: str) -> None:
        self._add(decisions_of(worker_id), "request", request_id)

    async def close(self) -> None:
        """Send what waits, for a short while."""
        self._urgent.set()
        if self._sending is None:
            return
        await asyncio.wait({self._sending}, timeout=timing.CLOSE_LIMIT_S)
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)
        await self._connection.close()

    def _add(self, stream: str, *fields: str) -> None:
        self._put("XADD", stream, "MAXLEN", "~", MAX_LENGTH, "*", "v", "1", *fields)

    def _put(self, *command: str | int, is_urgent: bool = True) -> None:
        self._keep(command)
        if is_urgent:
            self._urgent.set()
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        failures, loop = 0, asyncio.get_running_loop()
        while self._waiting:
            # While only followers of runs would be notified, and were a moment ago, it waits.
            wait_s = max(timing.HINT_S, self._sent_s + timing.HINTS_S - loop.time())
            if wait_s > 0 and not self._urgent.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._urgent.wait()
            self._urgent.clear()
            self._sent_s = loop.time()
            batch, self._waiting = self._waiting, {}
            try:
                await self._send_batch(batch)
            except (RedisError, OSError, TimeoutError) as error:
                self._say(error)
                self._expiries.clear()  # the server may come back without our streams
                # Older hints first, so that the limit drops the oldest.
                later, self._waiting = self._waiting, batch
                for command in later:
                    self._keep(command)
                await asyncio.sleep(timing.retry_s(failures))
                failures += 1
            else:
                failures = 0

    def _keep(self, command: Command) -> None:
        self._waiting[command] = None
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
            self.dropped += 1

    async def _send_batch(self, batch: Collection[Command]) -> None:
        sessions = [str(command[2]) for command in batch if command[1] == OWNERS_CHANNEL]
        commands: list[Command] = []
        for command in batch:
            if command[1] != OWNERS_CHANNEL:
                commands.append(command)
            if command[0] == "XADD" and command[1] != REQUESTS and self._is_expiry_due(str(command[1])):
                # Incarnations come and go: their streams end some time after their last entry.
                commands.append(("EXPIRE", command[1], timing.DAY_S))
        commands += [("PUBLISH", OWNERS_CHANNEL, _payload(sessions=[]))] if "" in sessions else []
        if named := [session_id for session_id in sessions if session_id]:
            commands.append(("PUBLISH", OWNERS_CHANNEL, _payload(sessions=named)))
        answers = zip(commands, await self._connection.execute(commands), strict=True)
        followed = [(str(command[1]), number) for command, number in answers if str(command[1]).startswith(_RUNS)]
        until_s = asyncio.get_running_loop().time() + timing.UNFOLLOWED_S
        if len(self._unfollowed) + len(followed) > MAX_UNFOLLOWED:
            self._unfollowed.clear()
        self._unfollowed |= {channel: until_s for channel, number in followed if not number}

    def _is_expiry_due(self, stream: str) -> bool:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._expiries.get(stream, -timing.LONGEST_PAUSE_S) < timing.LONGEST_PAUSE_S:
            return False
        if len(self._expiries) >= MAX_EXPIRIES:
            self._expiries.clear()
        self._expiries[stream] = now_s
        return True

    def _say(self, error: Exception) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._said_at >= timing.SILENCE_S:
            self._said_at = now_s
            log.warning("hints_wait", error=str(error), waiting=len(self._waiting), dropped=self.dropped)


def _payload(**fields: object) -> str:
    return json.dumps({"v": 1, **fields}, separators=(",", ":"))
