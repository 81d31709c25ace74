"""Calls of foreign code (step functions, tools, hooks, callbacks), blocking calls off the event loop, unfinished work.

Any exception of foreign code is its own failure. Not all exceptions are an ``Exception``: an exception group,
``SystemExit``, a panic of a Rust extension. One that leaves a call unnoticed takes the slot, the event loop or the
process with it. Some lose their way: ``StopIteration`` cannot be set on a future, so its awaiting task never continues.
Everything that calls foreign code goes through this module. A cancellation and the Ctrl-C of this process still pass.

Owns the threads of a process for looks at its files. Unlike those of the loop's own executor they are daemons, so a
file system that does not answer holds up nobody's exit.

The unfinished work of a run is :mod:`soong.shared.core.step_work`.
"""

import asyncio
import importlib
import os
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

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
MAX_TRACEBACK_CHARS: Final = 64 * 1024
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


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception as Python prints it, from the first line of foreign code on."""
    original = _original(error)
    behind = own = original.__traceback__
    while behind is not None:
        own, behind = (behind.tb_next if behind.tb_frame.f_code.co_filename == __file__ else own), behind.tb_next
    try:
        lines = traceback.format_exception(type(original), original, own)
    except BaseException as second:  # noqa: BLE001  # its own code failed: its type and place say enough
        contained(second)
        lines = [*traceback.format_tb(own), type(original).__name__]
    return "".join(lines)[-MAX_TRACEBACK_CHARS:]


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
