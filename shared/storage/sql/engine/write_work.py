"""What callers want written, and how they hear of its outcome."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from soong.shared.core.lazy_dataclass import dataclass
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
    before_commit: Callable[[Any], Callable[[], object] | None] | None = None
    result: Any = None
    error: BaseException | None = None


def announce_commit(group: Sequence[Work]) -> None:
    """Call what is to be called once all has been run and before the commit has ended."""
    for work in (work for work in group if work.error is None):
        call = None if work.before_commit is None else work.before_commit(work.result)
        if call is not None:
            call_in_loop(work.loop, call)


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
