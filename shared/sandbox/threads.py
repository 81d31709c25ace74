"""Blocking work outside the event loop that is never left running behind (EXE-05).

A thread cannot be cancelled, so the work is given an event that asks it to stop, and a cancelled caller waits until it
has. Work that loops looks at the event once a piece.
"""

import asyncio
import contextlib
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from soong.shared.core.call_threads import in_thread

T = TypeVar("T")


class WorkStoppedError(Exception):
    """Raised by the work itself when it was asked to stop; seen by nobody but :func:`run_blocking`."""


def check(stop: Event) -> None:
    """End the work here if it was asked to stop.

    Raises:
        WorkStoppedError: it was.
    """
    if stop.is_set():
        raise WorkStoppedError


async def run_blocking(work: Callable[[Event], T], *, keep_result: bool = False) -> T:
    """Run the work in a thread and return its result.

    When the caller is cancelled the work is asked to stop and waited for. With ``keep_result`` the result of work that
    ended all the same is returned instead of the cancellation: an effect that has happened is reported as such. Only
    for tools whose interrupt is "block", where nothing but their own time limit cancels them.

    Raises:
        asyncio.CancelledError: the caller was cancelled and the work stopped.
    """
    stop = Event()
    thread = in_thread(work, stop)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        stop.set()
        await _wait_for(thread)
        if keep_result and not isinstance(thread.exception(), WorkStoppedError):
            return thread.result()
        raise


async def _wait_for(thread: "asyncio.Future[T]") -> None:
    while not thread.done():
        with contextlib.suppress(asyncio.CancelledError):  # asked twice; there is still only one thread to wait for
            await asyncio.wait({thread})
    thread.exception()  # looked at, so that asyncio does not complain of an error nobody took
