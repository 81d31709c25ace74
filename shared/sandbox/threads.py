"""Work that is never left running behind: blocking work outside the event loop, and what must be waited for (EXE-05).

A thread cannot be cancelled, so the work is given an event that asks it to stop, and a cancelled caller waits until it
has. Work that loops looks at the event once a piece.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from threading import Event
from typing import TypeVar

from soong.shared.core.foreign import in_thread

T = TypeVar("T")


class WorkStoppedError(Exception):
    """Raised by the work itself when it was asked to stop; seen by nobody but :func:`run_blocking`."""


def check(stop: Event) -> None:
    """End the work here if it was asked to stop. Raises: WorkStoppedError, it was."""
    if stop.is_set():
        raise WorkStoppedError


async def run_blocking(work: Callable[[Event], T], *, keep_result: bool = False) -> T:
    """Run the work in a thread and return its result.

    When the caller is cancelled the work is asked to stop and waited for. With ``keep_result`` the result of work that
    ended all the same is returned instead of the cancellation: an effect that has happened is reported as such. Only
    for tools whose interrupt is "block", where nothing but their own time limit cancels them.
    Raises: asyncio.CancelledError, the caller was cancelled and the work stopped.
    """
    stop = Event()
    thread = in_thread(work, stop)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        stop.set()
        await over(thread)
        if keep_result and not isinstance(thread.exception(), WorkStoppedError):
            return thread.result()
        raise


async def over(work: "asyncio.Future[T]") -> None:
    """Wait until work has ended, whatever cancels the caller meanwhile; look at its error, should nobody else."""
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({work})
    if not work.cancelled():
        work.exception()


async def unbroken(work: Awaitable[T]) -> T:
    """Finish the work although the caller is being cancelled, and only then let the cancellation continue."""
    task = asyncio.ensure_future(work)
    signal: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            signal = error
    result = task.result()
    if signal is not None:
        raise signal
    return result


async def accompanied(work: Awaitable[T], report: Callable[[float], Awaitable[object]], *, every: timedelta) -> T:
    """Await work and report meanwhile how many seconds it has taken. Left when the work has ended, whatever interrupts:
    a cancelled caller, or a report that fails, ends the work first.
    """
    task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
    begun = loop.time()
    try:
        while not (await asyncio.wait({task}, timeout=every.total_seconds()))[0]:
            await report(loop.time() - begun)
    finally:
        task.cancel()
        await over(task)
    return task.result()
