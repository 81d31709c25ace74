"""Short blocking calls off the event loop, at a quarter of the CPU time of :func:`asyncio.to_thread`.

Owns the threads of a process for looks at its files. They differ from the loop's own executor in how a result comes
back: what has ended together is handed over together, and there is one future for each call instead of three. The
threads are daemons, so a file system that does not answer holds up nobody's exit.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

P = ParamSpec("P")
T = TypeVar("T")

MAX_THREADS: Final = min(32, (os.cpu_count() or 1) + 4)
"""As many as an event loop's own executor has."""

_Call = tuple["_Returns", "asyncio.Future[Any]", Context, Callable[[], Any]]


class _Returns:
    """The ends of calls on their way back to one event loop, which hears of them once until it has taken them."""

    def __init__(self) -> None:
        self._ended: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_told = False

    def put(self, future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
        """Hand over the end of a call, on its thread."""
        self._ended.append((future, result, error))
        if not self._is_told:
            self._is_told = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                future.get_loop().call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._is_told = False  # first: who puts something from here on tells again
        while self._ended:
            future, result, error = self._ended.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


class CallThreads:
    """The threads of a process for one kind of calls, started when no other is idle and never more than ``limit``."""

    def __init__(self, name: str, limit: float) -> None:
        self._name = name
        self._limit = limit
        self._returns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Returns] = WeakKeyDictionary()
        self.reset()
        os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Begin without threads, as a process that was forked."""
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = self._count = 0

    def submit(self, loop: asyncio.AbstractEventLoop, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Make a call in the current context; what it returns or raises is the future's."""
        future: asyncio.Future[T] = loop.create_future()
        returns = self._returns.get(loop)
        if returns is None:
            returns = self._returns[loop] = _Returns()
        self._calls.put((returns, future, copy_context(), call))
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

    def _make(
        self, returns: _Returns, future: "asyncio.Future[Any]", context: Context, call: Callable[[], Any]
    ) -> None:
        if future.done():  # cancelled before its turn
            return
        try:
            result = context.run(call)
        except StopIteration as error:  # which no future takes
            returns.put(future, None, RuntimeError(f"the call raised {error!r}"))
        except BaseException as error:  # noqa: BLE001  # raised where the call is awaited
            returns.put(future, None, error)
        else:
            returns.put(future, result, None)


_THREADS: Final = CallThreads("soong-call", MAX_THREADS)


def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
    """Make a blocking call on a thread, in the caller's context; what it returns or raises is the future's.

    A future that is cancelled takes its call back where it has not begun, and otherwise lets it run to its end. An
    event loop that is not asyncio's makes its calls where its own executor does.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, asyncio.BaseEventLoop):
        context = copy_context()
        return loop.run_in_executor(None, lambda: context.run(function, *args, **kwargs))
    return _THREADS.submit(loop, lambda: function(*args, **kwargs))
