"""The abort of one call, which ends it and neither its turn nor its run (EXE-07).

It reaches the call as a cancellation of the asyncio task that makes it. What tells it from the run's own end is kept
here and not in the exception, as a handler's libraries may raise another one: what catches a cancellation takes the
abort back from the task; with a second one pending, the run is being cancelled, and that wins.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


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
