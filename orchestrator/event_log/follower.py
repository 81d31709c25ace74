"""Follows the logs of all runs for one consumer, from a loop of the orchestrator, and reads fields of their events.

The engine waits for nothing here: the rows are written by others, and only this loop sends anything outside.
A receiver that is away stops the loop where it is; its place in each log is in rows, so nothing is left out
when it comes back, or when another orchestrator continues.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Protocol

import msgspec

from soong.shared.core import timing
from soong.shared.core.errors import SoongError, UnavailableError
from soong.shared.core.jsontext import JsonObject, inert
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.engine.tasks.event_feed import EventFeed, FeedCursor, FeedPart, Totals

log = get_logger(__name__)

MICRO: Final = 1_000_000
LOOK_BACK: Final = timedelta(minutes=2)
"""How long after its end a task is still looked at: the clocks of its writers differ, and commits take time."""
CATCH_UP: Final = timedelta(hours=24)
"""A consumer that was away for longer than this leaves out what had ended before."""

MAX_WORD: Final = 200
MAX_COUNT: Final = 2**53 - 1


class UndeliveredError(SoongError):
    """A receiver accepted nothing: the same is sent again."""


class Taken(Value):
    """The result of a consumer for some events: its places after them, and the counts to add to the totals."""

    cursors: Sequence[FeedCursor]
    totals: Totals = msgspec.field(default_factory=dict)


class Followers(Value):
    """The loops that follow the logs from an orchestrator's start to its stop, and the closers that it awaits then."""

    background: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = ()
    closers: tuple[Callable[[], Awaitable[None]], ...] = ()


class EventConsumer(Protocol):
    """Takes the events of runs. The same ones come again where the process dies before it has noted its place."""

    @property
    def name(self) -> str: ...

    async def take(self, parts: Sequence[FeedPart]) -> Taken:
        """Raises: UndeliveredError, UnavailableError."""
        ...


@dataclass(slots=True)
class EventFollower:
    """Runs a consumer from :meth:`run` until that is cancelled; :meth:`finish` then takes what is left."""

    feed: EventFeed
    consumer: EventConsumer
    clock: Clock
    owner_id: Callable[[], str]
    interval_s: float
    _since_us: int | None = None
    """Since when ends of tasks are looked at; None while another orchestrator acts for the consumer."""
    _noted_us: int = 0
    _failures: int = 0
    _page: "asyncio.Task[bool] | None" = None

    @property
    def is_acting(self) -> bool:
        """Say whether this process acts for the consumer, as far as it knows."""
        return self._since_us is not None

    async def run(self) -> None:
        while True:
            # The first look is at once: a new consumer begins with the tasks that are open then.
            pause_s = await self._looked_s()
            await asyncio.sleep(pause_s)

    async def finish(self, within_s: float) -> None:
        """Take what is left within this time; a successor takes the rest."""
        try:
            async with asyncio.timeout(within_s):
                if self._page is not None:
                    await asyncio.wait([self._page])
                await self.look()
        except (TimeoutError, UndeliveredError, UnavailableError) as error:
            log.info("following_unfinished", consumer=self.consumer.name, error=str(error))

    async def look(self) -> None:
        """Take what is new. Raises: UndeliveredError, UnavailableError."""
        name, now_us = self.consumer.name, self.clock.now_us()
        if self._since_us is None:
            since_us = await self.feed.take_over(name, self.owner_id(), now_us=now_us)
            if since_us is None:
                return
            self._since_us = self._noted_us = max(since_us, now_us - CATCH_UP // timedelta(microseconds=1))
        while parts := await self.feed.read(name, since_us=self._since_us, limit=2000):
            self._page = asyncio.get_running_loop().create_task(self._take(parts))
            # A cancellation does not separate what was sent from the cursor that records it.
            if not await asyncio.shield(self._page):
                return
        # All that had ended by the beginning of this look was seen, but for what was still being written.
        self._since_us = max(self._since_us, now_us - LOOK_BACK // timedelta(microseconds=1))
        if self._since_us - self._noted_us > LOOK_BACK // timedelta(microseconds=1):
            await self._note(Taken(()))

    async def _take(self, parts: Sequence[FeedPart]) -> bool:
        return await self._note(await self.consumer.take(parts))

    async def _note(self, taken: Taken) -> bool:
        assert self._since_us is not None
        is_ours = await self.feed.advance(
            self.consumer.name, self.owner_id(), taken.cursors, since_us=self._since_us, totals=taken.totals
        )
        self._noted_us = self._since_us
        if not is_ours:
            self._since_us = None
        return is_ours

    async def _looked_s(self) -> float:
        """Look once; return how long to wait before the next look."""
        try:
            await self.look()
        except (UndeliveredError, UnavailableError) as error:
            self._failures += 1
            pause_s = min(
                self.interval_s * float(2 ** min(self._failures, 10)), max(timing.LONGEST_BACKOFF_S, self.interval_s)
            )
            if self._failures == 1:
                log.warning("following_failed", consumer=self.consumer.name, error=str(error))
            return pause_s
        except Exception:  # what one log holds must not end the loop for all
            log.exception("following_failed", consumer=self.consumer.name)
            return timing.LONGEST_BACKOFF_S
        if self._failures:
            log.warning("following_continues", consumer=self.consumer.name, after_failures=self._failures)
        self._failures = 0
        return self.interval_s


def word(data: JsonObject, name: str, limit: int = MAX_WORD) -> str:
    """Return a text as one that shows what it holds, cut; empty where there is none."""
    value = data.get(name)
    return inert(value[:limit]) if isinstance(value, str) else ""


def count(data: JsonObject, name: str) -> int:
    """Return a number that counts something; 0 where there is none."""
    value = data.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT else 0


def microusd(data: JsonObject, name: str = "cost_usd") -> int | None:
    """Return an amount of money in millionths; None where it is not known."""
    value = data.get(name)
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        amount = Decimal(value)
    except InvalidOperation:
        return None
    return int(amount * MICRO) if amount.is_finite() and 0 <= amount <= MICRO * MICRO else None


def provider_of(model: str) -> str:
    """Return the provider of a model's name, such as ``anthropic`` of ``anthropic:claude``."""
    return model.partition(":")[0] if ":" in model else ""
