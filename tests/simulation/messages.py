"""What Redis carries: hints and the queues of dispatches, lost, doubled, delayed and so out of order."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

from soong.shared.core.errors import UnavailableError
from soong.shared.engine.wire.notifier import OWNERS_CHANNEL, REQUESTS
from tests.model.memory import MemoryBus
from tests.simulation.borders import Crossing
from tests.simulation.faults import Dice, Fault

DELAY_S = 10.0

Later = Callable[[float, Callable[[], None]], None]
"""Calls something after so many seconds, whatever becomes of who asked."""


class LossyBoard(MemoryBus):
    """The hints of one deployment."""

    def __init__(self, dice: Dice, later: Later) -> None:
        super().__init__()
        self._dice = dice
        self._later = later
        self.is_down = False

    def _ring(self, subject: str, ids: Sequence[str]) -> None:
        if self.is_down or self._dice.strikes(Fault.HINT_LOST):
            return
        for _ in range(2 if self._dice.strikes(Fault.HINT_DOUBLED) else 1):
            delay_s = self._dice.random.uniform(0.0, DELAY_S) if self._dice.strikes(Fault.HINT_DELAYED) else 0.001
            self._later(delay_s, lambda: self._arrive(subject, ids))

    def _arrive(self, subject: str, ids: Sequence[str]) -> None:
        if not self.is_down:
            super()._ring(subject, ids)

    def come_back(self) -> None:
        """Redis answers again: every subscription that was away says so."""
        self.is_down = False
        for subject in list(self._ears):
            own = "" if subject in (OWNERS_CHANNEL, REQUESTS) else subject.rpartition(":")[2]
            super()._ring(subject, (own,))


class Consumer(Protocol):
    """A Celery worker as the queue sees it: it takes a message when one of its threads is free."""

    pools: tuple[str, ...]

    @property
    def is_consuming(self) -> bool: ...

    def take(self) -> None: ...


class Queues:
    """The queues of dispatches, one a pool."""

    def __init__(self, dice: Dice, later: Later) -> None:
        self._dice = dice
        self._later = later
        self._waiting: defaultdict[str, list[str]] = defaultdict(list)
        self.consumers: list[Consumer] = []
        self.is_down = False

    def queued(self, pool: str) -> int:
        return len(self._waiting[pool])

    def send(self, pool: str, dispatch_id: str) -> None:
        if self._dice.strikes(Fault.MESSAGE_LOST):
            return
        for _ in range(2 if self._dice.strikes(Fault.MESSAGE_DOUBLED) else 1):
            if self._dice.strikes(Fault.MESSAGE_DELAYED):
                self._later(self._dice.random.uniform(0.0, DELAY_S), lambda: self._arrive(pool, dispatch_id))
            else:
                self._arrive(pool, dispatch_id)

    def _arrive(self, pool: str, dispatch_id: str) -> None:
        if not self.is_down:
            self._waiting[pool].append(dispatch_id)
            self._later(0.001, self.deliver)

    def deliver(self) -> None:
        """Give waiting messages to whoever takes them."""
        for pool, waiting in self._waiting.items():
            while waiting and not self.is_down:
                free = [one for one in self.consumers if pool in one.pools and one.is_consuming]
                if not free:
                    break
                waiting.pop(0)
                self._dice.random.choice(free).take()

    def empty(self) -> None:
        self._waiting.clear()


class SimBroker:
    """The queues as one owner's dispatcher reaches them."""

    def __init__(self, queues: Queues, process: Crossing) -> None:
        self._queues = queues
        self._process = process

    def queued(self, pool: str) -> int:
        self._check()
        return self._queues.queued(pool)

    def send(self, pool: str, dispatch_ids: Sequence[str]) -> None:
        for dispatch_id in dispatch_ids:
            self._check()
            self._perhaps_crash()
            self._queues.send(pool, dispatch_id)
            self._perhaps_crash()

    def close(self) -> None: ...

    def _check(self) -> None:
        if self._queues.is_down or self._strikes(Fault.BROKER_AWAY):
            raise UnavailableError("simulated: the broker does not answer")

    def _perhaps_crash(self) -> None:
        if self._strikes(Fault.CRASH_AT_PUBLISH):
            self._process.kill()
            raise UnavailableError("simulated: the process has been killed")

    def _strikes(self, fault: Fault) -> bool:
        if not self._process.dice.strikes(fault):
            return False
        self._process.hit(f"{self._process.kind}.dispatch", fault)
        return True
