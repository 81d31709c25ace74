"""What stands between a simulated process and all that it shares with others: each crossing is a place for faults.

A method of the store is one transaction, so it has two borders: before its commit and after it. A ring has the same
two around its publishing.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

from soong.shared.core.errors import SoongError, UnavailableError
from soong.shared.engine.sessions.session import HeartbeatWriter
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.storage.store import Store
from tests.simulation.faults import Dice, Fault
from tests.waiting import others_run

Method = Callable[..., Coroutine[Any, Any, Any]]

LATENCY_S = 0.01
SLOW_S = 3.0
PAUSE_S = 60.0

READ_SHARE = 0.1
"""Most of what owners do is looking; a fault there tells little, so it has a smaller share of them."""

RARE_SHARE = 6.0
RARE = frozenset({
    "expire_worker", "expire_owner", "expand", "begin_expansion", "fail_expansion", "retry_step", "settle_failure",
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
