"""Retirement: a worker that its service has started for more work ends once it has been idle for long enough.

The service cannot decide that: between its look and its signal the worker may claim a step. So the worker itself stops
claiming, waits for what it has claimed at that moment, however long that takes, and ends.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from soong.shared.core.clock import Clock

EXIT_RETIRED: Final = 3
"""By this its service knows the end from a failure (:mod:`soong.orchestrator.embedded.child`)."""


@dataclass(slots=True)
class Retirement:
    """Counts the runs that one process holds. ``after_s``: how long it may hold none; 0: as long as it likes."""

    clock: Clock
    after_s: float = 0.0
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    is_due: bool = False
    _held: int = 0
    _idle_since_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._idle_since_s = self.clock.monotonic_s()

    def started(self) -> None:
        """Take note of a run that begins."""
        self._held += 1

    def ended(self) -> None:
        """Take note of a run that has ended."""
        self._held -= 1
        self._idle_since_s = self.clock.monotonic_s()

    async def until_due(self) -> None:
        """Wait until the process has been idle for long enough; it wakes once in that time."""
        while (left_s := self._left_s()) > 0:
            await self.sleep(left_s)
        self.is_due = True

    def _left_s(self) -> float:
        return self.after_s if self._held else self._idle_since_s + self.after_s - self.clock.monotonic_s()
