"""Calls that start before the answer which makes them has arrived (EXE-10).

Nothing of them is written before the answer is, nobody is asked about them before, and when it breaks off they end as
``stream_discarded``. A call learns of this by its context: it waits at those two places, and any other call does not.
"""

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class EarlyCall:
    """A call that has started early: it waits until its answer is written (:meth:`keep`) or has broken off."""

    _settled: asyncio.Event = field(default_factory=asyncio.Event)
    _is_kept: bool = False

    def start(self, work: Coroutine[object, object, T]) -> "asyncio.Task[T]":
        """Run the call."""
        context = copy_context()
        context.run(_CURRENT.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def keep(self) -> None:
        self._is_kept = True
        self._settled.set()

    def discard(self) -> None:
        """Let it end without a trace but its event."""
        self._settled.set()

    async def is_kept(self) -> bool:
        await self._settled.wait()
        return self._is_kept


_CURRENT: ContextVar[EarlyCall | None] = ContextVar("early_call", default=None)


async def answer_kept() -> bool:
    """Wait until the answer that made this call is written; False when it broke off."""
    early = _CURRENT.get()
    return early is None or await early.is_kept()
