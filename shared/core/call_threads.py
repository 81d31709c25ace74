"""Blocking calls off the event loop.

Owns the threads of a process for looks at its files. Unlike those of the loop's own executor they are daemons, so a
file system that does not answer holds up nobody's exit.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MAX_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
"""As many as an event loop's own executor has."""

_Call = tuple["asyncio.Future[Any]", Context, Callable[[], Any]]


class CallThreads:
    """The threads of a process for one kind of calls, started when no other is idle and never more than ``limit``."""

    def __init__(self, name: str, limit: float) -> None:
        self._name = name
        self._limit = limit
        self.reset()
        os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Begin without threads, as a process that was forked."""
        self._calls: SimpleQueue[_Call] = SimpleQueue()
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


_THREADS: Final = CallThreads("soong-call", MAX_THREADS)


def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
    """Make a blocking call on a thread, in the caller's context; its result or error is the future's.

    A future that is cancelled takes its call back where it has not begun, and otherwise lets it run to its end. An
    event loop that is not asyncio's makes its calls where its own executor does.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, asyncio.BaseEventLoop):
        context = copy_context()
        return loop.run_in_executor(None, lambda: context.run(function, *args, **kwargs))
    return _THREADS.submit(loop, lambda: function(*args, **kwargs))
