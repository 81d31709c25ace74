"""The unfinished work of a run: calls of users' code on threads, and coroutines in tasks of their own.

A thread cannot be ended, and a coroutine can ignore its cancellation. Such work outlives the call that awaited it. Owns
the register of this work; the holder of the run (a worker's slot) waits for all of it before the run ends.
"""

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from soong.shared.core import timing
from soong.shared.core.foreign import CallThreads

T = TypeVar("T")

STEP_THREADS: Final = "soong-step"
"""Name of the threads on which users' functions run."""
MAX_STACK_CHARS: Final = 4000

_ASYNCIO: Final = f"{Path(asyncio.__file__).parent}{os.sep}"
"""Frames of this folder are not shown: they do not help a reader."""
_THREADS: Final = CallThreads(STEP_THREADS, float("inf"))
"""Slots bound the number of calls, so no call waits for a thread."""


@dataclass(slots=True)
class _Call:
    """One call of a user's function. ``thread_id`` is None while no thread runs it."""

    name: str
    thread_id: int | None = None

    def stack(self, future: "asyncio.Future[Any]") -> list[traceback.FrameSummary]:
        """Return where the call is now, outermost frame first."""
        if isinstance(future, asyncio.Task):
            frames, awaited = [], cast("Any", future.get_coro())
            while (frame := getattr(awaited, "cr_frame", None)) is not None:
                frames += [] if frame.f_code.co_filename.startswith(_ASYNCIO) else [frame]
                awaited = getattr(awaited, "cr_await", None)
            return [one for frame in frames for one in traceback.extract_stack(frame)[-1:]]
        frame = sys._current_frames().get(self.thread_id or 0)  # noqa: SLF001  # the documented way to a thread's stack
        return list(traceback.extract_stack(frame)) if frame is not None else []


@dataclass(slots=True)
class StepWork:
    """The unfinished work of one run. Belongs to the event loop of its holder."""

    _calls: "dict[asyncio.Future[Any], _Call]" = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def names(self) -> tuple[str, ...]:
        """The functions that have not ended. Safe from any thread."""
        return tuple(call.name for call in tuple(self._calls.values()))

    def place(self) -> str:
        """Return the innermost line of the oldest call, as ``file:line in function``; empty when it is unknown."""
        for future, call in self._calls.items():
            if frames := call.stack(future):
                return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}"
        return ""

    def stacks(self) -> str:
        texts = ["".join(traceback.format_list(call.stack(future))) for future, call in self._calls.items()]
        return "\n".join(texts)[-MAX_STACK_CHARS:]

    def cancel(self) -> None:
        """Cancel the coroutines; calls on threads continue."""
        for task in self._tasks():
            task.cancel()

    async def end_soon(self) -> bool:
        """Wait a short time for the end of the coroutines; False when a call continues, such as any on a thread."""
        if self._calls and len(tasks := self._tasks()) == len(self._calls):
            await asyncio.wait(tasks, timeout=timing.SETTLE_S)
        return not self._calls

    def _tasks(self) -> "list[asyncio.Task[Any]]":
        return [call for call in self._calls if isinstance(call, asyncio.Task)]

    async def until_ended(self) -> None:
        """Wait until nothing is left."""
        while self._calls:
            await asyncio.wait(tuple(self._calls))

    def add(self, call: _Call, future: "asyncio.Future[Any]") -> None:
        self._calls[future] = call
        future.add_done_callback(self._ended)

    def _ended(self, future: "asyncio.Future[Any]") -> None:
        self._calls.pop(future, None)
        if not future.cancelled():
            future.exception()  # read, so that asyncio does not report an error that nobody awaits any more


_WORK: "ContextVar[StepWork | None]" = ContextVar("soong_step_work", default=None)


async def holding(work: StepWork, run: Callable[[], Awaitable[T]]) -> T:
    """Await a run in this task, which begins here; its calls are added to ``work``."""
    _WORK.set(work)
    return await run()


def begin_thread(name: str, function: Callable[[], T]) -> "asyncio.Future[T]":
    """Begin a call of a plain function on a thread. A caller that may be cancelled awaits it with a shield."""
    call = _Call(name)

    def run() -> T:
        call.thread_id = threading.get_ident()
        return function()

    future = _THREADS.submit(asyncio.get_running_loop(), run)
    _register(call, future)
    return future


async def call_in_thread(name: str, function: Callable[[], T]) -> T:
    """Call a plain function on a thread. When the caller is cancelled, the call remains work of its run."""
    return await asyncio.shield(begin_thread(name, function))


def begin_task(name: str, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Begin a coroutine of a user's in a task of its own."""
    task = asyncio.get_running_loop().create_task(work)
    _register(_Call(name), task)
    return task


def _register(call: _Call, future: "asyncio.Future[Any]") -> None:
    work = _WORK.get()
    if work is not None:
        work.add(call, future)


async def call_in_task(name: str, work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine of a user's. One that ignores the caller's cancellation remains work of its run."""
    task = begin_task(name, work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await cancelled_soon(task)
        raise


async def cancelled_soon(task: "asyncio.Future[Any]") -> None:
    """Cancel a task and wait for its end, for a short time."""
    task.cancel()
    await asyncio.wait({task}, timeout=timing.SETTLE_S)
