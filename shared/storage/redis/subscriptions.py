"""Hints in: a subscription is a task that keeps listening over every outage, and a set of received hints.

After an outage a subscription reports a wake-up of its own, so that its reader reads the rows: messages on a channel
meanwhile are lost.
"""

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from soong.shared.core import timing
from soong.shared.core.log import get_logger
from soong.shared.engine.wire.notifier import (
    MAX_LENGTH,
    OWNERS_CHANNEL,
    REQUESTS,
    LocalSubscription,
    Subscription,
    answer_channel,
    decisions_of,
    run_channel,
    session_channel,
    worker_channel,
)
from soong.shared.storage.redis.client import DirectConnection

log = get_logger(__name__)

BATCH = 500
MAX_ID_CHARS = 64
_ID = f"[!-~]{{1,{MAX_ID_CHARS}}}"
MAX_PAYLOAD_CHARS = 2 * 1024 * 1024
"""The size of a hint: ten thousand sessions with their marks."""
MAX_STREAM_BYTES = 4 * MAX_PAYLOAD_CHARS
"""The size of a stream before any of it is read: a stream of our maximum length takes a fifth of that."""
LATEST_ENTRY = 10**15
"""An entry whose time is later was added under an id of somebody's choice: beyond the last id nobody can add any."""
IDLE_CHANNELS = 4
"""Connections for channels that a subscriber keeps while nothing listens on them."""

ANSWER_PIECES_KEPT = 200
"""Pieces that are kept for a slow reader; it loses older ones."""


class RedisSubscription(LocalSubscription, ABC):
    """A subscription that reports ``returned`` after an outage."""

    def __init__(self, *, returned: str = "", keep: int = 0) -> None:
        super().__init__(keep)
        self._returned = returned
        self._opened = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._listen())

    async def listening(self) -> Self:
        """Return once it listens, or after a short while with Redis away: it then reports its start as a return."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timing.SHORT_LIMIT_S):
                    await self._opened.wait()
        except asyncio.CancelledError:  # nobody has it yet who could close it
            await self.close()
            raise
        return self

    @abstractmethod
    async def _open(self) -> None:
        """Begin to listen, also again after a failure. May raise, as may all below."""

    @abstractmethod
    async def _receive(self) -> Sequence[str]:
        """Wait a bounded while for hints; return their ids, perhaps none."""

    @abstractmethod
    async def _leave(self) -> None:
        """Listen no more."""

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._hang_up()

    async def _listen(self) -> None:
        failures = 0
        while True:
            try:
                await self._open()
                if failures or self._opened.is_set():
                    self.note(self._returned)
                self._opened.set()
                while True:
                    for subject in await self._receive():
                        self.note(subject)
                    failures = 0
                    await asyncio.sleep(0)  # waiters go first: asking for more costs as much as their work
            except (RedisError, OSError, TimeoutError) as error:
                if failures == 0:
                    log.warning("subscription_lost", error=str(error))
                await self._hang_up()
                await asyncio.sleep(timing.retry_s(failures))
                failures += 1

    async def _hang_up(self) -> None:
        try:
            await self._leave()
        except (RedisError, OSError, TimeoutError) as error:
            log.info("ear_not_closed", error=str(error))


class ChannelSubscription(RedisSubscription):
    """Pub/sub: only what is rung while we listen. A connection of its own, while it listens.

    ``idle`` are connections that listen to nothing just now. One of them is taken, and ours is left there: making one
    costs a client more than all else that it sends for a task.
    """

    def __init__(
        self,
        client: "Redis",
        channel: str,
        decode: Callable[[str], Sequence[str]],
        *,
        returned: str = "",
        keep: int = 0,
        idle: list[DirectConnection] | None = None,
    ) -> None:
        super().__init__(returned=returned, keep=keep)
        self._client = client
        self._channel = channel
        self._decode = decode
        self._idle = idle
        self._connection: DirectConnection | None = None
        self._is_sound = False
        """It listens, and nothing has gone wrong with its connection."""
        self._awaits_pong = False

    async def _open(self) -> None:
        while True:
            is_new = not self._idle
            self._connection = self._idle.pop() if self._idle else DirectConnection(self._client)
            self._is_sound, self._awaits_pong = False, False
            try:
                async with asyncio.timeout(timing.COMMAND_LIMIT_S):
                    await self._connection.send("SUBSCRIBE", self._channel)
                    while (await self._connection.receive())[:2] != ["subscribe", self._channel]:
                        pass  # messages of a channel before
            except (RedisError, OSError, TimeoutError):
                if is_new:
                    raise
                await self._end()  # it was cut while it lay idle: another one is made
            else:
                self._is_sound = True
                return

    async def _receive(self) -> Sequence[str]:
        assert self._connection is not None
        try:
            message = await self._connection.receive(timing.COMMAND_LIMIT_S if self._awaits_pong else timing.SILENCE_S)
            if message is None:
                if self._awaits_pong:
                    raise TimeoutError(f"the subscription to {self._channel} is dead")
                self._awaits_pong = True
                await self._connection.send("PING")
                return ()
        except (RedisError, OSError, TimeoutError):
            self._is_sound = False
            raise
        self._awaits_pong = False
        if not isinstance(message, list):  # the answer to a command outside of any subscription
            self._is_sound = False
            raise OSError(f"the connection that the subscription to {self._channel} had is gone")
        kind, channel, *data = message
        return self._decode(str(data[0])) if (kind, channel) == ("message", self._channel) else ()

    async def _leave(self) -> None:
        if self._connection is None:
            return
        if self._idle is None or len(self._idle) >= IDLE_CHANNELS or not self._is_sound:
            await self._end()
            return
        self._is_sound = False
        try:
            # The next listener skips messages that are still on their way.
            await self._connection.send("UNSUBSCRIBE", self._channel)
        except BaseException:
            await self._end()
            raise
        self._idle.append(self._connection)
        self._connection = None

    async def _end(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()


class StreamSubscription(RedisSubscription):
    """A stream from its end at first, then from where we were: a short outage loses nothing.

    ``name`` is the field of the id. ``cut_to`` entries are kept when more come at once than is read at once; 0 leaves
    that to the writer.
    """

    def __init__(self, client: "Redis", stream: str, name: str, *, cut_to: int = 0) -> None:
        super().__init__()
        self._client = client
        self._connection = DirectConnection(client)
        self._stream = stream
        self._name = name
        self._cut_to = cut_to
        self._position = ""

    async def _open(self) -> None:
        async with asyncio.timeout(timing.COMMAND_LIMIT_S):
            if self._cut_to and await self._size() > MAX_STREAM_BYTES:
                await self._cut(0)
            newest = cast("list[tuple[str, Any]]", await self._client.xrevrange(self._stream, count=1))
        end = newest[0][0] if newest else "0-0"
        if not self._position:
            self._position = end
        elif _order(end) < _order(self._position):
            self._position = "0-0"  # Redis came back without our entries: all that it has now is new to us
        await self._tidy()

    async def _receive(self) -> Sequence[str]:
        block_ms = round(timing.COMMAND_LIMIT_S * 1000)
        read = ("XREAD", "COUNT", str(BATCH), "BLOCK", str(block_ms), "STREAMS", self._stream, self._position)
        await self._connection.send(*read)
        heard: list[str] = []
        number = size = 0
        # A limit of our own above Redis's: a half-open connection never answers.
        begun_s, limit_s = asyncio.get_running_loop().time(), 2 * timing.COMMAND_LIMIT_S
        reply = await self._connection.receive(limit_s)
        if reply is None and asyncio.get_running_loop().time() - begun_s >= limit_s:
            raise TimeoutError(f"the read of {self._stream} is not answered")
        for _, entries in reply or ():
            for entry_id, words in cast("list[tuple[str, list[str] | None]]", entries):
                self._position, number, size = entry_id, number + 1, size + sum(map(len, words or ()))
                fields = dict(zip(words[::2], words[1::2], strict=False)) if words else {}
                if fields.get(self._name):
                    heard.append(fields[self._name][:MAX_ID_CHARS])
        if number:
            await self._tidy(is_full=number >= BATCH, is_large=size > MAX_PAYLOAD_CHARS)
        return heard

    async def _tidy(self, *, is_full: bool = False, is_large: bool = False) -> None:
        """Remove what fills Redis or leaves later entries no id: a process that may add to the stream chooses both."""
        if not self._cut_to:
            return
        if _order(self._position)[0] > LATEST_ENTRY:
            await self._client.delete(self._stream)
            self._position = "0-0"
        elif is_full or is_large:
            await self._cut(0 if is_large else self._cut_to)

    async def _size(self) -> int:
        with suppress(ResponseError):  # some may not ask
            return int(await self._client.memory_usage(self._stream, samples=0) or 0)
        return 0

    async def _cut(self, length: int) -> None:
        with suppress(ResponseError):  # some only read it
            await self._client.xtrim(self._stream, maxlen=length, approximate=length > 0)

    async def _leave(self) -> None:
        await self._connection.close()


def sessions_of(payload: str) -> Sequence[str]:
    """Return the sessions that a wake-up for owners names; an empty id when it names none."""
    value = _fields_of(payload)
    if value is None:
        log.warning("hint_unreadable", size=len(payload))
        return ()
    if not isinstance(value.get("sessions"), list):
        return ()
    # No database takes half a character, so only these can be ids of rows.
    return [one for one in value["sessions"] if isinstance(one, str) and re.fullmatch(_ID, one)] or [""]


def _fields_of(payload: str) -> Mapping[str, Any] | None:
    """Return the fields of a hint; None when it is none: anybody with a worker's rights may publish."""
    try:
        found = json.loads(payload) if len(payload) <= MAX_PAYLOAD_CHARS else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def called(payload: str, worker_id: str) -> Sequence[str]:
    """Return what a message asks of a worker: an empty id to fill its slots, else its id."""
    return ("",) if (_fields_of(payload) or {}).get("claim") is True else (worker_id,)


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)


class RedisSubscriber:
    """Implements ``soong.shared.engine.wire.notifier.Subscriber``. ``client`` is the one for blocking reads.

    After an outage a subscription to a worker or to a session reports its id, any other subscription an empty id.
    """

    def __init__(self, client: "Redis") -> None:
        self._client = client
        self._idle: list[DirectConnection] = []

    async def subscribe_owner(self) -> Subscription:
        return await ChannelSubscription(self._client, OWNERS_CHANNEL, sessions_of).listening()

    async def subscribe_permissions(self) -> Subscription:
        return await StreamSubscription(self._client, REQUESTS, "session", cut_to=MAX_LENGTH).listening()

    async def subscribe_worker(self, worker_id: str) -> Subscription:
        return await ChannelSubscription(
            self._client, worker_channel(worker_id), lambda payload: called(payload, worker_id), returned=worker_id
        ).listening()

    async def subscribe_decisions(self, worker_id: str) -> Subscription:
        return await StreamSubscription(self._client, decisions_of(worker_id), "request").listening()

    async def subscribe_session(self, session_id: str) -> Subscription:
        return await self._subscribe(session_channel(session_id), session_id)

    async def subscribe_run(self, run_id: str) -> Subscription:
        return await self._subscribe(run_channel(run_id), run_id)

    async def _subscribe(self, channel: str, id: str) -> Subscription:
        return await ChannelSubscription(
            self._client, channel, lambda _payload: (id,), returned=id, idle=self._idle
        ).listening()

    async def subscribe_answer(self, run_id: str) -> Subscription:
        channel = answer_channel(run_id)
        return await ChannelSubscription(
            self._client, channel, lambda payload: (payload,), keep=ANSWER_PIECES_KEPT
        ).listening()
