"""Feeds of rows, read once for all their followers: two hundred browsers cost one reading and one connection.

A feed reads the rows at each notification and at least each second. So a lost notification costs a second, and rows
alone decide what is sent. A follower gets the newest value, never one that was read before it asked; a slow follower
delays nobody.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, cast

from soong.orchestrator.client.responder import cancelled
from soong.shared.core import timing
from soong.shared.core.log import get_logger
from soong.shared.engine.wire.notifier import Subscriber, Subscription

T = TypeVar("T")
U = TypeVar("U")

PAUSE_PER_LOOK: Final = 10
"""The least pause of a feed as a multiple of a reading's duration: it takes at most a tenth of a core."""
EAGER_LOOKS: Final = 6
"""The first readings of a feed follow without a pause: a short task ends within them."""
MOST_SUBJECTS: Final = 40
"""Subscriptions with their own connection, at most 64 in each process; later ones poll every second."""
KEPT_HINTS: Final = 200
"""The most hints that a listener gets of those since its last wait."""

log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class Listener:
    """One listener's part in a subscription. Implements ``soong.shared.engine.wire.notifier.Subscription``."""

    leave: Callable[["Listener"], None]
    rung: asyncio.Event = field(default_factory=asyncio.Event)
    hints: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_HINTS))

    def take(self, hints: Sequence[str] = ()) -> None:
        self.hints.extend(hints)
        self.rung.set()

    async def wait(self, timeout_s: float) -> Sequence[str]:
        try:
            async with asyncio.timeout(timeout_s):
                await self.rung.wait()
        except TimeoutError:
            return ()
        self.rung.clear()
        hints = tuple(self.hints)
        self.hints.clear()
        return hints

    async def opened(self, timeout_s: float) -> None:
        """Return once the subscription is open, or after ``timeout_s``; what came is left for the next wait."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.rung.wait()

    async def close(self) -> None:
        self.leave(self)


@dataclass(slots=True, eq=False)
class Subject:
    """The listeners of one subscription, and the task that reads it."""

    listeners: dict[Listener, None]
    serving: "asyncio.Task[None]"


@dataclass(slots=True)
class SubscriptionPool:
    """Subscriptions by subject; the first listener opens one, the last one closes it.

    A listener is rung once its subscription is open: read the rows again then, and nothing is missed.
    """

    subscriber: Subscriber
    _subjects: dict[str, Subject] = field(default_factory=dict)
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    def run(self, run_id: str) -> Listener:
        return self._listener(run_id, lambda: self.subscriber.subscribe_run(run_id))

    def answer(self, run_id: str) -> Listener:
        # The rest of the connections is for logs, which nothing else replaces.
        return self._listener(f"{run_id} answer", lambda: self.subscriber.subscribe_answer(run_id), MOST_SUBJECTS // 2)

    def session(self, session_id: str) -> Listener:
        return self._listener(session_id, lambda: self.subscriber.subscribe_session(session_id))

    def questions(self) -> Listener:
        """Listen to questions of all sessions."""
        return self._listener("", self.subscriber.subscribe_permissions)

    async def close(self) -> None:
        await cancelled(*self._running)

    def _listener(
        self, name: str, opened: Callable[[], Awaitable[Subscription]], most: int = MOST_SUBJECTS
    ) -> Listener:
        subject = self._subjects.get(name)
        if subject is None:
            if len(self._subjects) >= most:
                return Listener(lambda _listener: None)
            listeners: dict[Listener, None] = {}
            subject = Subject(listeners, started(self._serve(opened, listeners), self._running))
            self._subjects[name] = subject

        def leave(listener: Listener) -> None:
            subject.listeners.pop(listener, None)
            if not subject.listeners and self._subjects.get(name) is subject:
                del self._subjects[name]
                subject.serving.cancel()

        listener = Listener(leave)
        subject.listeners[listener] = None
        return listener

    async def _serve(self, opened: Callable[[], Awaitable[Subscription]], listeners: dict[Listener, None]) -> None:
        subscription = await opened()
        try:
            hints: Sequence[str] = ()
            while True:
                for listener in listeners:
                    listener.take(hints)
                while not (hints := await subscription.wait(timing.MINUTE_S)):
                    pass
        finally:
            await subscription.close()


@dataclass(slots=True, eq=False)
class Feed(Generic[T]):
    """One thing that is read. ``version`` grows whenever its value is another, and when a reading fails."""

    load: Callable[[], Awaitable[T]]
    listen: Callable[[], Listener]
    is_quick: bool
    followers: int = 0
    version: int = 0
    running: "asyncio.Task[None] | None" = None
    read: int = 0
    """The number of the last reading that has ended."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a reading has ended that somebody waits for, or the version is another; each time it is a new one."""
    _value: T | None = None
    _failure: Exception | None = None
    _begun: int = 0
    _awaited: int = 0
    """The number of the reading that a newcomer waits for."""
    _listener: Listener | None = None
    _made: dict[Hashable, "asyncio.Task[Any]"] = field(default_factory=dict)

    async def run(self) -> None:
        """Read until cancelled."""
        self._listener = self.listen()
        try:
            while True:
                began_s = time.monotonic()
                await self._look()
                least_s = timing.HINTS_S if self.is_quick else timing.LEAST_PAUSE_S
                if self._begun > EAGER_LOOKS:
                    took_s = time.monotonic() - began_s
                    await asyncio.sleep(max(least_s, min(timing.PUT_OFF_S, PAUSE_PER_LOOK * took_s)))
                if self._awaited <= self.read:
                    await self._listener.wait(timing.POLL_ROWS_S)
        finally:
            for making in self._made.values():
                making.cancel()
            await self._listener.close()

    async def _look(self) -> None:
        self._begun += 1
        value, failure = self._value, None
        try:
            value = await self.load()
        except Exception as error:  # noqa: BLE001  # every follower raises it
            log.debug("feed_failed", error=str(error))
            failure = error
        is_same = self.version > 0 and failure is None is self._failure and value == self._value
        self._value, self._failure, self.read = value, failure, self._begun
        if not is_same:
            self.change()
        elif self._awaited == self.read:
            self._wake()

    def change(self) -> None:
        """Let all followers have the value, again if it is the same."""
        self.version += 1
        self._made.clear()
        self._wake()

    def _wake(self) -> None:
        moved, self.moved = self.moved, asyncio.Event()
        moved.set()

    def joined(self) -> "Following[T]":
        self._awaited = self._begun + 1
        if self._listener is not None:
            self._listener.take()
        return Following(self, self._awaited)

    @property
    def value(self) -> T:
        """The newest value. Raises: what the reading raised."""
        if self._failure is not None:
            raise self._failure
        return cast(T, self._value)

    async def once(self, key: Hashable, make: Callable[[], Awaitable[U]]) -> U:
        """Return what ``make`` gives, made once for all followers and kept until the value changes."""
        if key not in self._made:
            self._made[key] = asyncio.ensure_future(make())
        try:
            return cast(U, await asyncio.shield(self._made[key]))
        except Exception:
            self._made.pop(key, None)
            raise


@dataclass(slots=True, eq=False)
class Following(Generic[T]):
    """One follower's place in a feed."""

    feed: Feed[T]
    _reading: int
    _seen: int = 0

    async def next(self) -> T:
        """Return the value as it is now, then as it is whenever it has changed; a cancelled call loses nothing.

        Raises: what the reading raised.
        """
        feed = self.feed
        while feed.read < self._reading or feed.version == self._seen:
            await feed.moved.wait()
        self._seen = feed.version
        return feed.value


@dataclass(slots=True)
class Feeds:
    """Feeds by key; the first follower opens one, the last one closes it."""

    open: dict[Hashable, Feed[Any]] = field(default_factory=dict)
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    @contextmanager
    def follow(
        self, key: Hashable, load: Callable[[], Awaitable[T]], listen: Callable[[], Listener], *, is_quick: bool = False
    ) -> Iterator[Following[T]]:
        """Follow what ``load`` gives. ``is_quick``: a reading is cheap, and a short task is not to wait for it."""
        feed = self.open.get(key)
        if feed is None:
            feed = self.open[key] = Feed(load, listen, is_quick)
            feed.running = started(feed.run(), self._running)
        feed.followers += 1
        try:
            yield feed.joined()
        finally:
            feed.followers -= 1
            if not feed.followers and feed.running is not None:
                del self.open[key]
                feed.running.cancel()

    def wake(self) -> None:
        """Let everybody look again: the server stops."""
        for feed in self.open.values():
            feed.change()

    async def close(self) -> None:
        await cancelled(*self._running)


def started(work: Any, running: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """Run a coroutine as one of these tasks, until it ends."""
    task = asyncio.get_running_loop().create_task(work)
    running.add(task)
    task.add_done_callback(running.discard)
    return task
