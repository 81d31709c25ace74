"""Rows and hints shared by the callers who wait for the same: two hundred browsers cost one reading and one connection.

A waiting request reads the rows itself, at every hint and at least every second. So a lost hint costs a second, and
rows alone decide what is sent.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from soong.shared.core import timing
from soong.shared.core.log import get_logger
from soong.shared.engine.wire.notifier import NullSubscription, Subscriber, Subscription

T = TypeVar("T")

KEPT: Final = 1_000

log = get_logger(__name__)
CHANGED: Final = ("",)
Load = Callable[[], Awaitable[object]]
MOST_SUBJECTS: Final = 40
"""Subscriptions with their own connection, at most 64 in each process; later ones poll every second."""
KEPT_HINTS: Final = 200
"""What a listener gets of all that was heard since it waited last."""


@dataclass(slots=True)
class SharedReads:
    """Readings by key. A caller gets what was read after it asked, never what was known before."""

    _next: dict[Hashable, "asyncio.Task[Any]"] = field(default_factory=dict)
    """What begins soon: those who ask until then share it."""
    _began_s: dict[Hashable, float] = field(default_factory=dict)

    async def read(self, key: Hashable, load: Callable[[], Awaitable[T]]) -> T:
        """Return what ``load`` does; its failure reaches all who share it."""
        if key not in self._next:
            self._next[key] = asyncio.get_running_loop().create_task(self._load(key, load))
        return cast(T, await asyncio.shield(self._next[key]))

    async def _load(self, key: Hashable, load: Callable[[], Awaitable[T]]) -> T:
        now_s = asyncio.get_running_loop().time
        try:
            await asyncio.sleep(max(0.0, self._began_s.get(key, float("-inf")) + timing.LEAST_PAUSE_S - now_s()))
        finally:
            del self._next[key]
        if len(self._began_s) >= KEPT:
            self._began_s.clear()
        self._began_s[key] = now_s()
        return await load()


@dataclass(slots=True, eq=False)
class _WatchedRead:
    """One reading. ``version`` grows whenever it gives another value than before, and when it fails."""

    load: Load
    version: int = 0
    watchers: int = 0
    following: "asyncio.Task[None] | None" = None
    _value: object = None
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self, subscribe: Callable[[], Awaitable[Subscription]]) -> None:
        """Read at each hint and at least each second, until cancelled."""
        subscription = await subscribe()
        try:
            while True:
                await self._look()
                await asyncio.sleep(timing.LEAST_PAUSE_S)
                await subscription.wait(timing.POLL_ROWS_S)
        finally:
            await subscription.close()

    async def until(self, version: int) -> None:
        """Return once the version is another."""
        while self.version == version:
            await self._moved.wait()

    async def _look(self) -> None:
        try:
            value = await self.load()
        except Exception as error:  # noqa: BLE001  # those who wait read again, and are told what they meet
            log.debug("watched_read_failed", error=str(error))
            value = None
        if self.version and value is not None and value == self._value:
            return
        self._value = value
        self.wake()

    def wake(self) -> None:
        """Let all who wait read again."""
        self.version += 1
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


@dataclass(slots=True, eq=False)
class _ReadSubscription:
    """One caller's part in a reading. Implements ``soong.shared.engine.wire.notifier.Subscription``."""

    read: _WatchedRead
    leave: Callable[[], Awaitable[None]]
    seen: int

    async def wait(self, timeout_s: float) -> Sequence[str]:
        """Return something when the rows may have changed since the last call, nothing after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.read.until(self.seen)
        except TimeoutError:
            return ()
        self.seen = self.read.version
        return CHANGED

    async def close(self) -> None:
        await self.leave()


@dataclass(slots=True)
class WatchedReads:
    """Readings by key; the first who waits begins one, the last one ends it."""

    _open: dict[Hashable, _WatchedRead] = field(default_factory=dict)

    def watch(self, key: Hashable, load: Load, subscribe: Callable[[], Awaitable[Subscription]]) -> Subscription:
        """Hear of changes of what ``load`` gives, from now on: read the rows after this call, then wait."""
        read = self._open.get(key)
        if read is None:
            read = self._open[key] = _WatchedRead(load)
            read.following = asyncio.get_running_loop().create_task(read.follow(subscribe))
        read.watchers += 1

        async def leave() -> None:
            read.watchers -= 1
            if not read.watchers and self._open.get(key) is read:
                del self._open[key]
                await _end(read)

        return _ReadSubscription(read, leave, read.version)

    def wake(self) -> None:
        """Let everybody look again: the server stops."""
        for read in self._open.values():
            read.wake()

    async def close(self) -> None:
        reads, self._open = list(self._open.values()), {}
        for read in reads:
            await _end(read)


async def _end(read: _WatchedRead) -> None:
    if read.following is not None:
        read.following.cancel()
        await asyncio.gather(read.following, return_exceptions=True)


@dataclass(slots=True)
class _Subject:
    """One subscription and all who listen with it."""

    subscription: Subscription
    listeners: dict["SharedSubscription", None] = field(default_factory=dict)
    claim_loop: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        while True:
            if heard := await self.subscription.wait(60.0):
                for listener in self.listeners:
                    listener.take(heard)


@dataclass(slots=True, eq=False)
class SharedSubscription:
    """One listener's part in a subscription. Implements ``soong.shared.engine.wire.notifier.Subscription``."""

    leave: Callable[["SharedSubscription"], Awaitable[None]]
    rung: asyncio.Event = field(default_factory=asyncio.Event)
    heard: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_HINTS))

    def take(self, heard: Sequence[str]) -> None:
        self.heard.extend(heard)
        self.rung.set()

    async def wait(self, timeout_s: float) -> Sequence[str]:
        try:
            async with asyncio.timeout(timeout_s):
                await self.rung.wait()
        except TimeoutError:
            return ()
        self.rung.clear()
        heard = tuple(self.heard)
        self.heard.clear()
        return heard

    async def close(self) -> None:
        await self.leave(self)


@dataclass(slots=True)
class SubscriptionPool:
    """Subscriptions by subject; the first listener opens one, the last one closes it."""

    subscriber: Subscriber
    _subjects: dict[str, _Subject] = field(default_factory=dict)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def subscribe_run(self, run_id: str) -> Subscription:
        return await self._listener(run_id, lambda: self.subscriber.subscribe_run(run_id))

    async def subscribe_answer(self, run_id: str) -> Subscription:
        if len(self._subjects) >= MOST_SUBJECTS // 2:
            return NullSubscription()  # the rest of the connections is for logs, which nothing else replaces
        return await self._listener(f"{run_id} answer", lambda: self.subscriber.subscribe_answer(run_id))

    async def subscribe_session(self, session_id: str) -> Subscription:
        return await self._listener(session_id, lambda: self.subscriber.subscribe_session(session_id))

    async def subscribe_questions(self) -> Subscription:
        """Hear that some question was raised, in whichever session."""
        return await self._listener("", self.subscriber.subscribe_permissions)

    async def close(self) -> None:
        subjects, self._subjects = self._subjects, {}
        for subject in subjects.values():
            await _closed(subject)

    async def _listener(self, name: str, opened: Callable[[], Awaitable[Subscription]]) -> Subscription:
        async with self._opening:
            subject = self._subjects.get(name)
            if subject is None:
                if len(self._subjects) >= MOST_SUBJECTS:
                    return NullSubscription()
                subject = self._subjects[name] = _Subject(await opened())
                subject.claim_loop = asyncio.get_running_loop().create_task(subject.listen())

            async def leave(listener: SharedSubscription) -> None:
                subject.listeners.pop(listener, None)
                if not subject.listeners and self._subjects.get(name) is subject:
                    del self._subjects[name]
                    await _closed(subject)

            subscription = SharedSubscription(leave)
            subject.listeners[subscription] = None
            return subscription


async def _closed(subject: _Subject) -> None:
    if subject.claim_loop is not None:
        subject.claim_loop.cancel()
        await asyncio.gather(subject.claim_loop, return_exceptions=True)
    await subject.subscription.close()
