"""The waits of a call: its time limit, in which waiting for people does not count, an abort, its answer.

An early call starts before the answer that makes it has arrived (EXE-10). Nothing of it is written before the answer
is, no question is asked before, and when the answer breaks off it ends as ``stream_discarded``.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from soong.shared.core.value import Value
from soong.shared.tools.ports import Gate, GateCall, Verdict

T = TypeVar("T")


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
        return self._timeout.expired()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop the time while anybody waits in here; several may at once."""
        loop, deadline = asyncio.get_running_loop(), self._timeout.when()
        self._waits += 1
        if self._waits == 1 and deadline is not None:
            self._left_s = max(0.0, deadline - loop.time())
            self._timeout.reschedule(None)
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0 and self._left_s is not None and not self._timeout.expired():
                self._timeout.reschedule(loop.time() + self._left_s)
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
    before: int
    """How often the task was being cancelled when the call began."""
    reason: str = ""
    _is_open: bool = True
    _is_pending: bool = False

    def abort(self, reason: str) -> bool:
        """End the call alone; False when it is ending already."""
        if not self._is_open or self.reason or self.task.cancelling() > self.before:
            return False
        self.reason = aborted_by_person(reason, "call")
        self._is_pending = self.task.cancel()
        return self._is_pending

    def taken_back(self) -> bool:
        """Take a pending abort back from the task; False when there is none, or the task is cancelled for more."""
        if not self._is_pending or asyncio.current_task() is not self.task:
            return False
        self._is_pending = False
        return self.task.uncancel() <= self.before

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
    call = AbortableCall(task, task.cancelling())
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


@dataclass(slots=True, eq=False)
class EarlyCall:
    """A call that has started early: it waits until its answer is written (:meth:`keep`) or has broken off."""

    _settled: asyncio.Event = field(default_factory=asyncio.Event)
    _is_kept: bool = False

    def start(self, work: Coroutine[object, object, T]) -> "asyncio.Task[T]":
        context = copy_context()
        context.run(_EARLY.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def keep(self) -> None:
        self._is_kept = True
        self._settled.set()

    def discard(self) -> None:
        """Let it end without a trace but its event."""
        self._settled.set()

    async def is_kept(self) -> bool:
        await self._settled.wait()
        return self._is_kept


_EARLY: ContextVar[EarlyCall | None] = ContextVar("early_call", default=None)


async def answer_kept() -> bool:
    """Wait until the answer that made this call is written; False when it broke off."""
    early = _EARLY.get()
    return early is None or await early.is_kept()
