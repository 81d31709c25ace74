"""Readings of the rows that somebody waits to change: repeated by one for all who wait for the same.

Two hundred browsers that wait for a question otherwise look at the rows each second, each by itself, and find nothing.
A caller that is woken reads the rows again: what was found here is only compared, and never sent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

from soong.shared.core import timing
from soong.shared.core.log import get_logger
from soong.shared.engine.wire.notifier import Subscription

log = get_logger(__name__)

CHANGED: Final = ("",)

Load = Callable[[], Awaitable[object]]


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
