"""Lent slots: a run that its provider makes wait for long gives its slot to other steps until then (DIS-09).

The run stays held, under its lease, in the memory of its process: it continues here as soon as its wait is over and a
slot is free, before any new step.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final, Protocol

from soong.shared.agents.pacing import LIFTED
from soong.shared.core.log import get_logger

log = get_logger(__name__)

LOOK_S: Final = 1.0
"""How often a process with lent slots looks for steps: the jobs that would bring it some may all be with its runs."""


class Capacity(Protocol):
    """The slots of the process."""

    capacity: int

    def places(self) -> int:
        """Return how many runs more may be at work; those that wait without a slot are not."""
        ...

    async def settled_places(self) -> int:
        """Return the places that are promised to no batch under way."""
        ...

    def fill(self) -> None:
        """Claim steps for the free slots."""
        ...


@dataclass(slots=True)
class LentSlots:
    """Counts the runs of a process that wait without a slot: at most as many as it has slots.

    ``after_s`` is how long a wait must be, in seconds, for the slot to be worth more to others.
    """

    after_s: float = float("inf")
    count: int = 0
    """Runs that hold no slot now, with those that are to have one again."""
    returning: int = 0
    """Those whose wait is over: the next places are theirs."""
    slots: Capacity | None = None
    _freed: asyncio.Event = field(default_factory=asyncio.Event)
    _looking: asyncio.Task[None] | None = None

    async def sleep(self, seconds: float) -> None:
        """Sleep; for a long time without a slot, which the run has again when this returns."""
        slots = self.slots
        if slots is None or seconds <= self.after_s or self.count >= slots.capacity:
            await asyncio.sleep(seconds)
            return
        log.info("slot_lent", seconds=round(seconds, 1))
        self.count += 1
        try:
            if self._looking is None:
                self._looking = asyncio.get_running_loop().create_task(self._look(slots))
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError as signal:
                if signal.args != (LIFTED,):
                    raise
            await self._place(slots)
        finally:
            self.count -= 1
            if not self.count and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    def freed(self) -> None:
        """Say that a slot was given back."""
        self._freed.set()

    async def _place(self, slots: Capacity) -> None:
        self.returning += 1
        try:
            while await slots.settled_places() <= 0:
                self._freed.clear()
                await self._freed.wait()
        finally:
            self.returning -= 1

    async def _look(self, slots: Capacity) -> None:
        while True:
            slots.fill()
            await asyncio.sleep(LOOK_S)
