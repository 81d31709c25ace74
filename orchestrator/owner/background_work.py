"""What an owner does in the background: begun at once or later, ended together."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from soong.shared.core.errors import UnavailableError
from soong.shared.core.log import get_logger

T = TypeVar("T")
Routine = Callable[[], Coroutine[Any, Any, None]]
"""A part of an owner's work. It is called when it starts: what is stopped before leaves no coroutine behind."""

log = get_logger(__name__)


class BackgroundWork:
    """The tasks and timers of one owner. After :meth:`stop` nothing begins any more, also from a timer set before."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        """In the order they began: they are stopped in it."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_stopped = False

    def begin(self, work: Routine) -> None:
        """Begin a part that must not fail; :func:`safely` makes it one."""
        if self._is_stopped:
            return
        task = asyncio.get_running_loop().create_task(_start(work))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def begin_safely(self, work: Routine) -> None:
        """Begin a part; one that fails is logged."""
        self.begin(lambda: safely(work()))

    def begin_later(self, name: str, delay_s: float, work: Routine) -> None:
        """Begin a part after a time, instead of the one of this name that was to begin."""
        self.cancel_later(name)

        def begin() -> None:
            self._timers.pop(name, None)
            self.begin_safely(work)

        self._timers[name] = asyncio.get_running_loop().call_later(delay_s, begin)

    def begin_soon(self, name: str, delay_s: float, work: Routine) -> None:
        """Begin a part after a time, unless one of this name is to begin already."""
        if name not in self._timers:
            self.begin_later(name, delay_s, work)

    def cancel_later(self, name: str) -> None:
        """Have the part of this name not begin, if it is still to."""
        if (planned := self._timers.pop(name, None)) is not None:
            planned.cancel()

    async def stop(self) -> None:
        """Cancel every part, in the order they began, and wait for their ends."""
        self._is_stopped = True
        for name in list(self._timers):
            self.cancel_later(name)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _start(work: Routine) -> None:
    await work()


async def safely(work: Awaitable[None]) -> None:
    """Do one look; one that fails is logged and made good by the next sweep: an owner never stops looking."""
    await within(work, None)


async def within(work: Awaitable[T], instead: T) -> T:
    """Return what one part of a look finds, or ``instead`` when it fails: that is logged and ends no other part."""
    try:
        return await work
    except UnavailableError as error:
        log.warning("reconcile_unanswered", error=str(error))
    except Exception:  # a fault in one session's look must not end the loops that all sessions live by
        log.exception("reconcile_failed")
    return instead
