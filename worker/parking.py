"""Runs that wait give their slots to others: parked, for consent (PER-13), or lent, for a provider or a Celery task.

A run parks when every call of it that is under way has waited for consent for the set time. The rows are written first,
while the run still waits: only when the write succeeds is it stopped here, to continue elsewhere. After an answer that
arrives meanwhile the write fails, and the call continues. Nothing is polled: each change of what waits sets the time
again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from soong.shared.agents.run_models import LIFTED
from soong.shared.agents.runtime.call_log import StopSignal
from soong.shared.core import timing
from soong.shared.core.errors import SoongError
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.engine.tasks.claims import ClaimStore
from soong.shared.engine.tasks.step import Lease
from soong.shared.tools.ports import ToolCall

log = get_logger(__name__)


@dataclass(slots=True)
class ParkingCoordinator:
    """The shared state of all runs of a process. ``max_parked`` is per session; 0: nothing parks."""

    claims: ClaimStore
    clock: Clock
    after_s: float
    max_parked: int
    again_s: float = timing.POLL_ROWS_S
    """A run that could not park (the session has as many as it may) tries again after this at the earliest."""
    _here: dict["RunParking", None] = field(default_factory=dict)
    _is_hurried: bool = False

    @property
    def patience_s(self) -> float:
        """How long a run waits for consent before it parks."""
        return 0.0 if self._is_hurried else self.after_s

    def hurry(self) -> None:
        """Park every run that waits, now and from now on: the process is about to stop."""
        self._is_hurried = True
        for parking in list(self._here):
            parking.poll()

    @contextmanager
    def entered(self, parking: "RunParking") -> Iterator[None]:
        self._here[parking] = None
        try:
            yield
        finally:
            del self._here[parking]
            parking.close()


@dataclass(slots=True, eq=False)
class RunParking:
    """Watches the calls of one held run. ``task`` is the one that is cancelled once the run is parked.

    ``flush`` writes what the run has kept back: nothing of it can be written afterwards.
    """

    lot: ParkingCoordinator
    worker_id: str
    held: Lease
    interruption: StopSignal
    task: asyncio.Task[object]
    flush: Callable[[], Awaitable[None]]
    _under_way: int = 0
    _waiting: dict[str, float] = field(default_factory=dict)
    """By request: since when it has waited, in the loop's time."""
    _timer: asyncio.TimerHandle | None = None
    _attempt: asyncio.Task[None] | None = None
    _is_closed: bool = False

    @contextmanager
    def call(self, _call: ToolCall | None = None) -> Iterator[None]:
        self._under_way += 1
        self.poll()
        try:
            yield
        finally:
            self._under_way -= 1
            self.poll()

    @contextmanager
    def waiting(self, request_id: str) -> Iterator[None]:
        self._waiting[request_id] = asyncio.get_running_loop().time()
        self.poll()
        try:
            yield
        finally:
            self._waiting.pop(request_id, None)
            self.poll()

    def poll(self, at_least_s: float = 0.0) -> None:
        """Set the time for parking again, after a change."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._only_waits() or self._attempt is not None:
            return
        loop = asyncio.get_running_loop()
        left_s = max(self._waiting.values()) + self.lot.patience_s - loop.time()
        self._timer = loop.call_later(max(left_s, at_least_s), self._begin)

    def close(self) -> None:
        """Try no more: the run is held no longer."""
        self._is_closed = True
        for pending in (self._timer, self._attempt):
            if pending is not None:
                pending.cancel()

    def _only_waits(self) -> bool:
        is_all = 0 < self._under_way == len(self._waiting)
        return is_all and self.lot.max_parked > 0 and not (self.interruption.is_set or self._is_closed)

    def _begin(self) -> None:
        self._timer = None
        self._attempt = asyncio.get_running_loop().create_task(self._try())

    async def _try(self) -> None:
        """Park the run if it still only waits; else, or when that is refused, look again later."""
        is_parked = False
        try:
            await self.flush()
            if self._only_waits():
                is_parked = await self.lot.claims.park(
                    self.worker_id,
                    self.held,
                    list(self._waiting),
                    max_parked=self.lot.max_parked,
                    now_us=self.lot.clock.now_us(),
                )
        except SoongError as error:  # the lease is lost or the database away: whoever finds out stops the run
            log.warning("not_parked", run=self.held.run_id, error=str(error))
        except Exception:  # a run that does not park still runs
            log.exception("parking_failed", run=self.held.run_id)
        self._attempt = None
        if is_parked:
            log.info("run_parked", run=self.held.run_id, step=self.held.step_key)
            if self.interruption.stop is None:
                self.interruption.stop, self.interruption.reason = "park", "it waits for consent"
                self.task.cancel()
        else:
            self.poll(self.lot.again_s)


MAX_LENT: Final = 1000
"""Runs of a process that do without a slot; each is a row in memory and a lease."""


class Capacity(Protocol):
    """The slots of the process."""

    capacity: int

    def places(self) -> int:
        """Return how many runs more may be at work; those that wait without a slot are not."""
        ...

    async def settled_places(self) -> int:
        """Return the places that are promised to no batch under way."""
        ...

    def fill(self) -> None: ...


@dataclass(slots=True)
class LentSlots:
    """Counts the runs of a process that wait without a slot.

    ``after_s`` is how long a sleep must be, in seconds, for the slot to be worth more to others.
    """

    after_s: float = float("inf")
    count: int = 0
    """Runs that hold no slot now, with those that are to have one again."""
    sleeping: int = 0
    """Those of them that need a slot again: at most as many as the process has."""
    returning: int = 0
    """Those whose wait is over: the next places are theirs."""
    slots: Capacity | None = None
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    """A slot was given back."""
    _looking: asyncio.Task[None] | None = None
    _movable: set[str] = field(default_factory=set)
    """Ids of runs that wait for nothing of this process."""
    _stop: Callable[[str], object] | None = None

    def hand_back(self, stop: Callable[[str], object]) -> None:
        """Stop the runs that another worker can continue, now and from now on: the process is about to end."""
        self._stop = stop
        for run_id in tuple(self._movable):
            stop(run_id)

    @contextmanager
    def without_slot(self, run_id: str = "") -> Iterator[None]:
        """Give the slot to others meanwhile. It is not given back: what follows must be short, such as a step's end.

        ``run_id`` names a run that another worker can continue at any moment of this.
        """
        slots = self.slots
        if slots is None or self.count >= MAX_LENT:
            yield
            return
        self.count += 1
        self._movable.add(run_id)
        try:
            if self._stop is not None:
                self._stop(run_id)
            if self._looking is None:
                self._looking = asyncio.get_running_loop().create_task(self._look(slots))
            slots.fill()
            yield
        finally:
            self.count -= 1
            self._movable.discard(run_id)
            if not self.count and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def sleep(self, seconds: float) -> None:
        """Sleep; for a long time without a slot, which the run has again when this returns."""
        slots = self.slots
        if slots is None or seconds <= self.after_s or self.sleeping >= slots.capacity:
            await asyncio.sleep(seconds)
            return
        log.info("slot_lent", seconds=round(seconds, 1))
        self.sleeping += 1
        try:
            with self.without_slot():
                try:
                    await asyncio.sleep(seconds)
                except asyncio.CancelledError as signal:
                    if signal.args != (LIFTED,):
                        raise
                self.returning += 1
                try:
                    while await slots.settled_places() <= 0:
                        self.freed.clear()
                        await self.freed.wait()
                finally:
                    self.returning -= 1
        finally:
            self.sleeping -= 1

    async def _look(self, slots: Capacity) -> None:
        while True:
            await asyncio.sleep(timing.POLL_ROWS_S)
            slots.fill()
