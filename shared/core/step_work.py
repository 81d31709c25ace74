"""The unfinished work of a run: calls of users' functions on threads, and coroutines.

A thread cannot be ended, and a coroutine can ignore its cancellation. Such work of a run outlives the call that awaited
it. Its register is here; the holder of the run (a worker's slot) waits for all of it before the run ends.

A coroutine of a user's runs on a thread and an event loop of its own: what blocks in it holds up no other run, and its
relative paths are those of its run. For its holder it is an asyncio task like any other.
"""

import asyncio
import os
import selectors
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, suppress
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
_STEP_THREADS: Final = CallThreads(STEP_THREADS, float("inf"))
"""Slots bound the number of calls, so no call waits for a thread."""


class _TrustedSelector(selectors.DefaultSelector):
    """Lets a coroutine's event loop continue only while its worker may: after a freeze, others may have its step."""

    def __init__(self, may_continue: Callable[[], bool]) -> None:
        super().__init__()
        self._may_continue = may_continue

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout)
        while not self._may_continue():
            time.sleep(timing.TICK_S)
        return found


@dataclass(slots=True)
class _Call:
    """One call of a user's function. ``thread_id`` is None while no thread runs it."""

    name: str
    thread_id: int | None = None
    inner: "asyncio.Task[Any] | None" = None
    """The coroutine's own task, on its own event loop."""
    is_stopped: bool = False

    def stack(self, future: "asyncio.Future[Any]") -> list[traceback.FrameSummary]:
        """Return where the call is now, outermost frame first."""
        frame = sys._current_frames().get(self.thread_id or 0)  # noqa: SLF001  # the documented way to a thread's stack
        found = list(traceback.extract_stack(frame)) if frame is not None else []
        task = self.inner or future
        if not isinstance(task, asyncio.Task) or (found and found[-1].filename != selectors.__file__):
            return found
        frames, awaited = [], cast("Any", task.get_coro())
        while (frame := getattr(awaited, "cr_frame", None)) is not None:
            frames += [] if frame.f_code.co_filename.startswith(_ASYNCIO) else [frame]
            awaited = getattr(awaited, "cr_await", None)
        return [one for frame in frames for one in traceback.extract_stack(frame)[-1:]]

    def run(
        self,
        make: Callable[[], Coroutine[Any, Any, T]],
        around: Callable[[], AbstractContextManager[Any]],
        is_trusted: Callable[[], bool],
    ) -> T:
        """Run a coroutine to its end on an event loop of this thread."""
        self.thread_id = threading.get_ident()
        selector = _TrustedSelector(lambda: self.is_stopped or is_trusted())
        with around(), asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
            loop = runner.get_loop()
            self.inner = task = loop.create_task(make())
            if self.is_stopped:
                task.cancel()
            return loop.run_until_complete(task)

    def stop(self) -> None:
        """Cancel the coroutine, from another thread."""
        self.is_stopped = True
        inner = self.inner
        if inner is not None:
            with suppress(RuntimeError):  # its loop is closed: it has ended
                inner.get_loop().call_soon_threadsafe(inner.cancel)


@dataclass(slots=True)
class StepWork:
    """The unfinished work of one run. Belongs to the event loop of its holder.

    ``is_trusted`` says whether the holder may still believe that it has the run; safe from any thread.
    """

    is_trusted: Callable[[], bool] = lambda: True
    is_given_up: bool = False
    """Nobody waits for its results any more."""
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


def work_here() -> StepWork | None:
    """Return the unfinished work of the run that the caller belongs to; None without a run."""
    return _WORK.get()


def begin_thread(name: str, function: Callable[[], T]) -> "asyncio.Future[T]":
    """Begin a call of a plain function on a thread. A caller that may be cancelled awaits it with a shield."""
    call = _Call(name)

    def run() -> T:
        call.thread_id = threading.get_ident()
        return function()

    future = _STEP_THREADS.submit(asyncio.get_running_loop(), run)
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


def begin_coroutine(
    name: str, make: Callable[[], Coroutine[Any, Any, T]], around: Callable[[], AbstractContextManager[Any]]
) -> "asyncio.Task[T]":
    """Begin a coroutine of a user's on a thread and an event loop of its own, in a context that is made there.

    Cancelling the task cancels the coroutine; the task ends when the coroutine has.
    """
    call, work = _Call(name), _WORK.get()
    is_trusted = work.is_trusted if work is not None else lambda: True

    async def ended() -> T:
        future = _STEP_THREADS.submit(asyncio.get_running_loop(), lambda: call.run(make, around, is_trusted))
        while True:
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                if future.done():
                    raise
                call.stop()

    task = asyncio.get_running_loop().create_task(ended())
    _register(call, task)
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
