"""What callers want written, and how they hear of its outcome."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.engine.write_ahead_log import Flush

Together: TypeAlias = Callable[[Transaction, Sequence[Any]], Sequence[Any]]


@dataclass(slots=True)
class Work:
    """One caller's function and where its outcome goes."""

    function: Callable[[Transaction], Any] | None
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    together: Together | None = None
    """Takes the ``item`` with those of others, where there is no function."""
    item: Any = None
    flush: Flush = Flush.BEFORE_VISIBLE
    result: Any = None
    error: BaseException | None = None


def answer(group: Sequence[Work]) -> None:
    """Give the callers their outcomes, one wake-up per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Work]] = {}
    for work in group:
        by_loop.setdefault(work.loop, []).append(work)
    for loop, works in by_loop.items():
        call_in_loop(loop, resolve, works)


def call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Call something in a caller's loop, unless that has been closed: nobody waits there any more."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *args)


def resolve(works: Sequence[Work]) -> None:
    """Give callers in this loop their outcomes."""
    for work in works:
        if work.future.done():
            continue
        if work.error is not None:
            work.future.set_exception(work.error)
        else:
            work.future.set_result(work.result)
