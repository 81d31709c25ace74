"""Calls of foreign code (step functions, tools, hooks, callbacks), blocking calls off the event loop, unfinished work.

Any exception of foreign code is its own failure. Not all exceptions are an ``Exception``: an exception group,
``SystemExit``, a panic of a Rust extension. One that leaves a call unnoticed takes the slot, the event loop or the
process with it. Some lose their way: ``StopIteration`` cannot be set on a future, so its awaiting task never continues.
Everything that calls foreign code goes through this module. A cancellation and the Ctrl-C of this process still pass.

Owns the threads of a process for looks at its files. Unlike those of the loop's own executor they are daemons, so a
file system that does not answer holds up nobody's exit.

A thread cannot be ended, and a coroutine can ignore its cancellation. Such work of a run outlives the call that awaited
it. Its register is here; the holder of the run (a worker's slot) waits for all of it before the run ends.
"""

import asyncio
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar, cast

from soong.shared.core import timing

P = ParamSpec("P")
T = TypeVar("T")

MAX_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
"""As many as an event loop's own executor has."""

_ThreadCall = tuple["asyncio.Future[Any]", Context, Callable[[], Any]]


class CallThreads:
    """The threads of a process for one kind of calls, started when no other is idle and never more than ``limit``."""

    def __init__(self, name: str, limit: float) -> None:
        self._name = name
        self._limit = limit
        self.reset()
        os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Begin without threads, as a process that was forked."""
        self._calls: SimpleQueue[_ThreadCall] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = self._count = 0

    def submit(self, loop: asyncio.AbstractEventLoop, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Make a call in the current context; its result or error is the future's."""
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put((future, copy_context(), call))
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._count < self._limit:
                self._count += 1
                threading.Thread(target=self._run, name=f"{self._name}-{self._count}", daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            self._make(*self._calls.get())
            with self._lock:
                # A call that waits is this thread's next one; nobody has counted on it as idle.
                if self._calls.empty():
                    self._idle += 1

    def _make(self, future: "asyncio.Future[Any]", context: Context, call: Callable[[], Any]) -> None:
        if future.done():  # cancelled before its turn
            return
        settle: Callable[[], None]
        try:
            settle = partial(future.set_result, context.run(call))
        except StopIteration as error:  # which no future takes
            settle = partial(future.set_exception, RuntimeError(f"the call raised {error!r}"))
        except BaseException as error:  # noqa: BLE001  # raised where the call is awaited
            settle = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            future.get_loop().call_soon_threadsafe(lambda: None if future.done() else settle())


_CALL_THREADS: Final = CallThreads("soong-call", MAX_THREADS)


def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
    """Make a blocking call on a thread, in the caller's context; its result or error is the future's.

    A future that is cancelled takes its call back where it has not begun, and otherwise lets it run to its end. An
    event loop that is not asyncio's makes its calls where its own executor does.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, asyncio.BaseEventLoop):
        context = copy_context()
        return loop.run_in_executor(None, lambda: context.run(function, *args, **kwargs))
    return _CALL_THREADS.submit(loop, lambda: function(*args, **kwargs))


MAX_WORDS: Final = 2000
_IMPORT_FILES: Final = ("<frozen importlib", importlib.__file__)
MEMBERS_SHOWN: Final = 3
"""How many exceptions of a group are named."""


class ForeignError(Exception):
    """Stands for an exception of foreign code that is not an ordinary ``Exception``; ``original`` is that one."""

    def __init__(self, original: BaseException) -> None:
        self.original = original
        super().__init__(words_of(original))


def call_foreign(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a plain function, here or on a thread of an executor.
    Raises: ForeignError, it raised an exception that is not an ordinary one, a cancellation among them; Exception, it
    raised that.
    """
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        if (stand_in := contained(error)) is error:
            raise
        raise stand_in from error


async def await_foreign(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call and await what it returns, within the caller's own asyncio task.
    Raises: asyncio.CancelledError, the task is being cancelled; ForeignError, Exception, as :func:`call_foreign`.
    """
    try:
        return await call()
    except BaseException as error:
        is_cancelled = isinstance(error, asyncio.CancelledError) and is_interrupted()
        if is_cancelled or (stand_in := contained(error)) is error:
            raise
        raise stand_in from error


def contained(error: BaseException) -> Exception:
    """Return what to handle in place of an exception of foreign code: itself, or the ForeignError that stands for it.
    Raises: KeyboardInterrupt, a person interrupts this process; only the main thread ever gets it.
    """
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error
    is_ordinary = isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration)
    return error if is_ordinary and isinstance(error, Exception) else ForeignError(error)


def is_interrupted() -> bool:
    """Say whether somebody cancels the current task, rather than something in it raising CancelledError."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def words_of(error: BaseException) -> str:
    """Return type and message of an exception, also of one without a readable text, and of a group's first ones."""
    error = _original(error)
    group = error.exceptions[:MEMBERS_SHOWN] if isinstance(error, BaseExceptionGroup) else ()
    members = "; ".join(map(_line_of, group))
    return ": ".join(part for part in (_line_of(error), members) if part)[:MAX_WORDS]


def name_of(error: BaseException) -> str:
    return type(_original(error)).__name__


def origin_of(function: object) -> str:
    """Return where a function is defined: a module imported under two names registers the same function again."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def place_of(error: BaseException, own_file: str = "") -> str:
    """Return ``file:line`` where an exception was raised; empty when no line of foreign code raised it.

    ``own_file`` is the file of the function that was called: its innermost line comes first, as the raise itself may
    be deep in a library.
    """
    original = _original(error)
    places = _own_places(original.__traceback__)
    if not places:  # Python itself raised it, such as for a coroutine that raised StopIteration
        return place_of(original.__cause__, own_file) if original.__cause__ is not None else ""
    own = [place for place in places if place[0] == own_file]
    raised = "{}:{}".format(*places[-1])
    return f"{own[-1][0]}:{own[-1][1]}, raised at {raised}" if own and own[-1] != places[-1] else raised


def shown(value: object, limit: int = 200) -> str:
    """Return how a foreign value shows itself, also when it cannot."""
    try:
        return f"{value!r:.{limit}}"
    except BaseException as error:  # noqa: BLE001  # its own code failed: its type says enough
        contained(error)
        return f"<{type(value).__name__}>"


def _original(error: BaseException) -> BaseException:
    return error.original if isinstance(error, ForeignError) else error


def _line_of(error: BaseException) -> str:
    text = _text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as second:  # noqa: BLE001  # its own code failed: its type says enough
        contained(second)
        return f"its text cannot be read ({type(second).__name__})"


def _own_places(traceback: TracebackType | None) -> list[tuple[str, int]]:
    """Return the lines behind the call of foreign code, without those by which Python imports."""
    places = list(_places(traceback))
    calls = [index for index, (file, _) in enumerate(places) if file == __file__]
    return [place for place in places[calls[-1] + 1 if calls else 0 :] if not place[0].startswith(_IMPORT_FILES)]


def _places(traceback: TracebackType | None) -> Iterator[tuple[str, int]]:
    while traceback is not None:
        yield traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next


STEP_THREADS: Final = "soong-step"
"""Name of the threads on which users' functions run."""
MAX_STACK_CHARS: Final = 4000

_ASYNCIO: Final = f"{Path(asyncio.__file__).parent}{os.sep}"
"""Frames of this folder are not shown: they do not help a reader."""
_STEP_THREADS: Final = CallThreads(STEP_THREADS, float("inf"))
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
