"""An event loop without waiting and without chance: time jumps to the next timer, one seed orders all that is ready.

Callbacks belong to **strands**: what one thread of one simulated process would do, in its own order. Between strands
the seed decides, as the machines of a deployment would by accident. A strand can be held, as SIGSTOP holds a process:
its callbacks and timers wait. One that is never let go again has been killed.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from datetime import timedelta
from itertools import count
from random import Random
from typing import Any, TypeVar

from tests.model.clock import FakeClock

T = TypeVar("T")


class DeadlockError(RuntimeError):
    """Nothing is ready and no timer is set: whatever was waited for never comes."""


class Strand:
    """One thread of one simulated process."""

    __slots__ = ("is_held", "name", "ready", "timers")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self.is_held = False

    def next_due(self) -> int | None:
        """Return when the next timer is due (µs); those that were cancelled are dropped."""
        while self.timers and self.timers[0][2].cancelled():
            heapq.heappop(self.timers)
        return self.timers[0][0] if self.timers else None


_WORLD = Strand("world")
_strand: ContextVar[Strand] = ContextVar("strand", default=_WORLD)


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs strands to a common end. ``on_error`` is told what no task or caller has caught."""

    def __init__(self, clock: FakeClock, random: Random, on_error: Callable[[str], None]) -> None:
        self._clock = clock
        self._random = random
        self._on_error = on_error
        self._numbers = count()
        self._is_running = False
        self.world = Strand("world")
        self._strands = [self.world]
        self._known = [self.world]
        self._begun: list[asyncio.Task[Any]] = []
        """Held, so that no task of a killed process is collected, and its ``finally`` run, while others go on."""
        self.turns = 0

    # -- strands
    def strand(self, name: str) -> Strand:
        made = Strand(name)
        self._strands.append(made)
        self._known.append(made)
        return made

    def begin(self, strand: Strand, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task on a strand; all that it starts is on it too."""
        task = asyncio.Task(work, loop=self, context=self.context_of(strand))
        self._begun.append(task)
        return task

    def context_of(self, strand: Strand) -> Context:
        """Return a context in which whatever is called is done on that strand."""
        context = copy_context()
        context.run(_strand.set, strand)
        return context

    def forget(self, strand: Strand) -> None:
        """Look at a strand no more: its process has been killed, and nothing of it goes on."""
        strand.is_held = True
        self._strands.remove(strand)

    # -- running
    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until ``main``, a task of the world's own strand, has ended."""
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            task = self.begin(self.world, main)
            while not task.done():
                self._turn()
            return task.result()
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)

    def _turn(self) -> None:
        ready = [strand for strand in self._strands if strand.ready and not strand.is_held]
        if not ready:
            self._pass_time()
            return
        strand = ready[0] if len(ready) == 1 else ready[int(self._random.random() * len(ready))]
        handle = strand.ready.popleft()
        if not handle.cancelled():
            self.turns += 1
            handle._run()

    def _pass_time(self) -> None:
        """Move to the next timer of a strand that is not held, and make all ready whose time has come."""
        heads = [head for strand in self._strands if not strand.is_held and (head := strand.next_due()) is not None]
        if not heads:
            raise DeadlockError("nothing is ready and no timer is set")
        now = self._now()
        if (due := min(heads)) > now:
            self._clock.advance(timedelta(microseconds=due - now))
            now = due
        for strand in self._strands:
            while not strand.is_held and strand.timers and strand.timers[0][0] <= now:
                strand.ready.append(heapq.heappop(strand.timers)[2])

    def _now(self) -> int:
        return round(self._clock.monotonic_s() * 1_000_000)

    # -- what asyncio asks of a loop
    def time(self) -> float:
        return self._clock.monotonic_s()

    def call_soon(  # type: ignore[override]  # typeshed types the arguments by a type variable tuple
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._strand_of(context).ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads here

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        timers = self._strand_of(context).timers
        heapq.heappush(timers, (max(self._now(), round(when * 1_000_000)), next(self._numbers), handle))
        return handle

    def _strand_of(self, context: Context | None) -> Strand:
        found = _strand.get() if context is None else context.get(_strand, _WORLD)
        return self.world if found is _WORLD else found

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: a cancelled timer is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call it here and now: a thread would bring chance in."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # as an executor's future would carry it
            future.set_exception(error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._on_error(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return False

    # -- the end
    def put_down(self) -> None:
        """End every task there is, the killed ones' too, so that nothing of this run is left."""
        asyncio._set_running_loop(self)
        try:
            for _ in range(100):
                left = [task for task in asyncio.all_tasks(self) if not task.done()]
                for task in left:
                    task.cancel()
                self._run_out()
                if not left:
                    return
            raise RuntimeError("there are tasks that will not end")
        finally:
            asyncio._set_running_loop(None)

    def _run_out(self) -> None:
        for _ in range(10_000):
            ready = [strand for strand in self._known if strand.ready]
            if not ready:
                return
            for strand in ready:
                handle = strand.ready.popleft()
                if not handle.cancelled():
                    handle._run()
