"""How tests wait: for a condition under a time limit, or until the loop has run what is ready."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

LIMIT_S = 30.0
EVERY_S = 0.005


async def until(condition: Callable[[], object | Awaitable[object]], within_s: float = LIMIT_S) -> None:
    """Wait until a condition holds that has no event: rows, or the state of another process."""
    async for _ in looks(within_s):
        holds = condition()
        if await holds if inspect.isawaitable(holds) else holds:
            return


async def looks(within_s: float = LIMIT_S) -> AsyncIterator[None]:
    """Give a loop its turns, a moment apart, until it breaks.

    Raises:
        TimeoutError: the time is over.
    """
    ends_s = time.monotonic() + within_s
    while time.monotonic() < ends_s:
        yield
        await asyncio.sleep(EVERY_S)
    raise TimeoutError(f"it did not happen within {within_s:g} s")


def wait_until(
    condition: Callable[[], object],
    within_s: float = LIMIT_S,
    what: str | Callable[[], str] = "it",
    every_s: float = EVERY_S,
) -> None:
    """Block until a condition holds."""
    for _ in blocking_looks(within_s, what, every_s):
        if condition():
            return


def blocking_looks(
    within_s: float = LIMIT_S, what: str | Callable[[], str] = "it", every_s: float = EVERY_S
) -> Iterator[None]:
    """Give a loop its turns, a moment apart, until it breaks."""
    ends_s = time.monotonic() + within_s
    while time.monotonic() < ends_s:
        yield
        time.sleep(every_s)
    raise AssertionError(f"not within {within_s:g} s: {what() if callable(what) else what}")


async def others_run(rounds: int = 1) -> None:
    """Let the loop run what is ready, so many times."""
    for _ in range(rounds):
        await asyncio.sleep(0)


async def dropped(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks and wait for their end, whatever it is."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
