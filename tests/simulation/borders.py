"""The border between a simulated process and all that it shares with others: each crossing is a place for faults.

Faults have a likelihood in one run, and are counted. Hints and the queues of dispatches, which Redis carries, are lost,
doubled, delayed and so out of order.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Sequence
from enum import StrEnum
from random import Random
from typing import Any, Final, Protocol, cast

from soong.shared.core.errors import SoongError, UnavailableError
from soong.shared.engine.sessions.session import HeartbeatWriter
from soong.shared.engine.wire.notifier import OWNERS_CHANNEL, REQUESTS, Notifier
from soong.shared.storage.store import Store
from tests.model.memory import MemoryBus
from tests.waiting import others_run


class Fault(StrEnum):
    # at the border of a transaction
    UNAVAILABLE = "store: not reached"
    SLOW = "store: slow"
    CRASH_BEFORE = "crash before commit"
    CRASH_AFTER = "crash after commit"
    PAUSE_AFTER = "pause after commit"
    APPLIED_BUT_ERROR = "applied but reported as error"
    # on the way of a message
    CRASH_AT_PUBLISH = "crash at publish"
    HINT_LOST = "notification lost"
    HINT_DOUBLED = "notification duplicated"
    HINT_DELAYED = "notification delayed"
    MESSAGE_LOST = "message lost"
    MESSAGE_DOUBLED = "message duplicated"
    MESSAGE_DELAYED = "message delayed"
    BROKER_AWAY = "broker not reached"
    # from outside
    DATABASE_DOWN = "database down"
    REDIS_DOWN = "redis down"
    REDIS_EMPTY = "redis back empty"
    WORKER_KILLED = "worker killed"
    WORKER_PAUSED = "worker paused"
    WORKER_STALLED = "worker loop stalled"
    HEARTBEAT_HUNG = "worker beat hangs"
    WORKER_STOPPED = "worker asked to stop"
    OWNER_KILLED = "owner killed"
    OWNER_PAUSED = "owner paused"
    OWNER_STOPPED = "owner asked to stop"
    CLOCK_JUMPED = "wall clock jumped"


_AT_BORDERS: Final = {
    Fault.UNAVAILABLE: 0.05,
    Fault.SLOW: 0.05,
    Fault.CRASH_BEFORE: 0.01,
    Fault.CRASH_AFTER: 0.015,
    Fault.PAUSE_AFTER: 0.01,
    Fault.APPLIED_BUT_ERROR: 0.1,
    Fault.CRASH_AT_PUBLISH: 0.02,
    Fault.HINT_LOST: 0.3,
    Fault.HINT_DOUBLED: 0.2,
    Fault.HINT_DELAYED: 0.3,
    Fault.MESSAGE_LOST: 0.2,
    Fault.MESSAGE_DOUBLED: 0.2,
    Fault.MESSAGE_DELAYED: 0.3,
    Fault.BROKER_AWAY: 0.05,
}
"""The highest chance of each fault at each border that it can strike at."""

FROM_OUTSIDE: Final = tuple(fault for fault in Fault if fault not in _AT_BORDERS)


class Dice:
    """Says whether a fault strikes. After :meth:`calm` none does any more."""

    def __init__(self, random: Random) -> None:
        self.random = random
        share = random.choice((0.15, 0.4, 0.7))
        self._risks = {
            fault: highest * random.random() for fault, highest in _AT_BORDERS.items() if random.random() < share
        }
        self.outside = [fault for fault in FROM_OUTSIDE if random.random() < share]
        self.struck: Counter[Fault] = Counter()
        self.is_calm = False

    def strikes(self, fault: Fault, share: float = 1.0) -> bool:
        """Say whether a fault strikes here; ``share`` is the part of its usual chance that it has here."""
        risk = self._risks.get(fault)
        if risk is None or self.is_calm or self.random.random() >= risk * share:
            return False
        self.struck[fault] += 1
        return True

    def calm(self) -> None:
        self.is_calm = True


Method = Callable[..., Coroutine[Any, Any, Any]]

LATENCY_S = 0.01
SLOW_S = 3.0
PAUSE_S = 60.0

READ_SHARE = 0.1
"""Most of what owners do is looking; a fault there tells little, so it has a smaller share of them."""

RARE_SHARE = 6.0
RARE = frozenset({
    "expire_worker", "expire_owner", "write_verdict", "begin_expansion", "retry_step", "settle_failure",
    "retry_task", "cancel_task", "pause_task", "resume_task", "release", "set_worker_state", "release_owner", "park",
    "decide", "raise_request", "start_call", "withdraw",
})  # fmt: skip
"""What happens seldom, and decides much when it does: faults are drawn to it."""

READS = frozenset({
    "task", "list_tasks", "task_with_steps", "status", "session_work", "last_runs", "events_of",
    "steps", "step", "result", "counts", "interrupts", "backlog", "steps_in", "failures",
    "open_tasks", "owners", "session", "list_sessions", "busy_sessions", "responders", "take_commands", "command",
    "workers",
    "run", "list_runs", "nodes", "events", "is_tainted", "calls", "request", "pending", "answer_of", "decision_of",
    "open_questions", "settled", "still_pending", "signing_key", "signing_keys",
})  # fmt: skip
"""The methods that change no row."""


class Crossing(Protocol):
    """The process that crosses, as the borders see it."""

    kind: str

    @property
    def dice(self) -> Dice: ...

    @property
    def is_database_down(self) -> bool: ...

    def check_running(self) -> None:
        """Raises CancelledError when the simulation is over."""

    def kill(self) -> None: ...

    def pause(self, for_s: float) -> None: ...

    def hit(self, border: str, fault: Fault) -> None:
        """Count that a fault struck at a border."""

    def crossed(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], outcome: object) -> None:
        """Be told what was committed, or why nothing was, before anybody else does anything."""


async def never() -> None:
    """Wait for ever: the process has been killed."""
    await asyncio.get_running_loop().create_future()


class _Borders:
    """Methods that are crossings; any name that is asked for is one."""

    def __init__(self, inner: object, process: Crossing) -> None:
        self._inner = inner
        self._process = process

    def __getattr__(self, name: str) -> Method:
        method: Method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._cross(name, method, args, kwargs)

        setattr(self, name, call)
        return call

    async def _cross(self, name: str, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _strikes(self, name: str, fault: Fault) -> bool:
        share = READ_SHARE if name in READS else RARE_SHARE if name in RARE else 1.0
        if not self._process.dice.strikes(fault, share):
            return False
        self._process.hit(f"{self._process.kind}.{name}", fault)
        return True

    async def _perhaps_crash(self, name: str, fault: Fault) -> None:
        if self._strikes(name, fault):
            self._process.kill()
            await never()


class _BorderPart(_Borders):
    async def _cross(self, name: str, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        process = self._process
        process.check_running()
        await self._travel(name)
        if process.is_database_down or self._strikes(name, Fault.UNAVAILABLE):
            raise UnavailableError("simulated: the database does not answer")
        await self._perhaps_crash(name, Fault.CRASH_BEFORE)
        try:
            outcome = await method(*args, **kwargs)
        except SoongError as error:
            process.crossed(name, args, kwargs, error)
            raise
        process.crossed(name, args, kwargs, outcome)
        await self._perhaps_crash(name, Fault.CRASH_AFTER)
        if self._strikes(name, Fault.PAUSE_AFTER):
            process.pause(process.dice.random.uniform(0.0, PAUSE_S))
            await others_run()
        if self._strikes(name, Fault.APPLIED_BUT_ERROR):
            raise UnavailableError("simulated: it was applied, and the answer was lost")
        return outcome

    async def _travel(self, name: str) -> None:
        random = self._process.dice.random
        if self._strikes(name, Fault.SLOW):
            await asyncio.sleep(random.uniform(0.0, 4 * SLOW_S if name in RARE else SLOW_S))
        elif random.random() < (0.2 if name in READS else 0.6):
            await asyncio.sleep(random.uniform(0.0, LATENCY_S))


class _BorderStore:
    """A store whose parts have borders."""

    def __init__(self, inner: Store, process: Crossing) -> None:
        self._inner = inner
        self._process = process

    def __getattr__(self, name: str) -> _BorderPart:
        part = _BorderPart(getattr(self._inner, name), self._process)
        setattr(self, name, part)
        return part

    def heartbeat_writer(self) -> HeartbeatWriter:
        return _BorderHeartbeatWriter(self._inner.heartbeat_writer(), self._process)

    async def close(self) -> None:
        """The rows outlive their users."""


class _BorderHeartbeatWriter:
    """A heart is blocking: it cannot wait, but it can fail and die."""

    def __init__(self, inner: HeartbeatWriter, process: Crossing) -> None:
        self._inner = inner
        self._process = process

    def beat(self, worker_id: str, left_over: str = "") -> bool:
        self._process.check_running()
        if self._process.is_database_down or self._strikes(Fault.UNAVAILABLE):
            raise UnavailableError("simulated: the database does not answer")
        self._perhaps_crash(Fault.CRASH_BEFORE)
        outcome = self._inner.beat(worker_id, left_over)
        self._process.crossed("beat", (worker_id,), {}, outcome)
        self._perhaps_crash(Fault.CRASH_AFTER)
        if self._strikes(Fault.APPLIED_BUT_ERROR):
            raise UnavailableError("simulated: it was applied, and the answer was lost")
        return outcome

    def close(self) -> None: ...

    def _perhaps_crash(self, fault: Fault) -> None:
        if self._strikes(fault):
            self._process.kill()
            raise UnavailableError("simulated: the process has been killed")

    def _strikes(self, fault: Fault) -> bool:
        if not self._process.dice.strikes(fault):
            return False
        self._process.hit(f"{self._process.kind}.beat", fault)
        return True


class _BorderNotifier(_Borders):
    async def _cross(self, name: str, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._process.check_running()
        await self._perhaps_crash(name, Fault.CRASH_AT_PUBLISH)
        result = await method(*args, **kwargs)
        await self._perhaps_crash(name, Fault.CRASH_AT_PUBLISH)
        return result


def border_store(inner: Store, process: Crossing) -> Store:
    """Return the store as that process reaches it."""
    return cast(Store, _BorderStore(inner, process))


def border_notifier(inner: Notifier, process: Crossing) -> Notifier:
    """Return the ring as that process reaches it."""
    return cast(Notifier, _BorderNotifier(inner, process))


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

    def _notify(self, subject: str, ids: Sequence[str]) -> None:
        if self.is_down or self._dice.strikes(Fault.HINT_LOST):
            return
        for _ in range(2 if self._dice.strikes(Fault.HINT_DOUBLED) else 1):
            delay_s = self._dice.random.uniform(0.0, DELAY_S) if self._dice.strikes(Fault.HINT_DELAYED) else 0.001
            self._later(delay_s, lambda: self._arrive(subject, ids))

    def _arrive(self, subject: str, ids: Sequence[str]) -> None:
        if not self.is_down:
            super()._notify(subject, ids)

    def come_back(self) -> None:
        """Redis answers again: every subscription that was away says so."""
        self.is_down = False
        for subject in list(self._listeners):
            own = "" if subject in (OWNERS_CHANNEL, REQUESTS) else subject.rpartition(":")[2]
            super()._notify(subject, (own,))


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
