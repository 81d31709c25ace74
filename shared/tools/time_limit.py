"""The time limit of a step or a call: wall time of its own work, in which waiting for people does not count."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from soong.shared.core.value import Value
from soong.shared.tools.ports import Gate, GateCall, Verdict


class TimeLimit:
    """``async with TimeLimit(seconds)``: TimeoutError when the work took longer; None sets no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._waits = 0
        self._left_s: float | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._timeout.__aexit__(type_, error, traceback)

    @property
    def has_expired(self) -> bool:
        """Say whether the time ran out."""
        return self._timeout.expired()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop the time while anybody waits in here; several may at once."""
        self._stop()
        try:
            yield
        finally:
            self._go_on()

    def _stop(self) -> None:
        self._waits += 1
        deadline = self._timeout.when()
        if self._waits == 1 and deadline is not None:
            self._left_s = max(0.0, deadline - asyncio.get_running_loop().time())
            self._timeout.reschedule(None)

    def _go_on(self) -> None:
        self._waits -= 1
        if self._waits == 0 and self._left_s is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left_s)
            self._left_s = None


class UntimedGate(Value):
    """A gate whose waiting counts to no time limit."""

    gate: Gate
    limit: TimeLimit

    async def decide(self, call: GateCall) -> Verdict:
        with self.limit.suspended():
            return await self.gate.decide(call)


def aborted_by_person(reason: str, what: str = "run") -> str:
    """Return why a call ended that a person aborted, alone or with its run."""
    return f"a person aborted this {what}: {reason or 'no reason was given'}"


@dataclass(slots=True, eq=False)
class AbortableCall:
    """A call under way in ``task``. Refuses a second abort, and one while the task is being cancelled already."""

    task: "asyncio.Task[object]"
    reason: str = ""
    _is_open: bool = True
    _is_pending: bool = False
    _before: int = field(init=False)

    def __post_init__(self) -> None:
        self._before = self.task.cancelling()

    def abort(self, reason: str) -> bool:
        """End the call alone; False when it is ending already."""
        if not self._is_open or self.reason or self.task.cancelling() > self._before:
            return False
        self.reason = aborted_by_person(reason, "call")
        self._is_pending = self.task.cancel()
        return self._is_pending

    def taken_back(self) -> bool:
        """Take a pending abort back from the task; False when there is none, or the task is cancelled for more."""
        if not self._is_pending or asyncio.current_task() is not self.task:
            return False
        self._is_pending = False
        return self.task.uncancel() <= self._before

    def close(self) -> None:
        """Leave no abort behind for what the task does next, whatever the call made of it."""
        self._is_open = False
        self.taken_back()


_CURRENT: ContextVar[AbortableCall | None] = ContextVar("abortable_call", default=None)


@contextmanager
def abortable() -> Iterator[AbortableCall]:
    """Let the call that the current asyncio task makes within this be aborted alone."""
    task = asyncio.current_task()
    assert task is not None
    call = AbortableCall(task)
    token = _CURRENT.set(call)
    try:
        yield call
    finally:
        _CURRENT.reset(token)
        call.close()


def taken_back() -> str:
    """Take the abort of the current call back from its task and return the reason; empty when the run is to end."""
    call = _CURRENT.get()
    return call.reason if call is not None and call.taken_back() else ""
