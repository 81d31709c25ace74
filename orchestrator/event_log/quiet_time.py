"""Waits for a moment in which this machine has a core to spare, for work that can wait."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Final

import psutil

from soong.shared.core import timing
from soong.shared.core.value import Value

FREE_CORES: Final = 0.75 * min(2, os.cpu_count() or 1)
"""So many must have had nothing to do in a window: the work that can wait takes one, its database a part of another.
Workers on this machine leave less while there are steps for them; the CPU time of this process says little of them,
because they claim steps by themselves."""


def idle_s() -> float:
    """Return for how long the cores of this machine have been idle since it started, all together."""
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))


class QuietTime(Value):
    """Waits for ``longest_s`` at most. ``now_s`` is a clock that never goes back."""

    longest_s: float
    idle_s: Callable[[], float] = idle_s
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def wait(self) -> None:
        """Return after a window in which a core was free, or when so much time has passed that it must do."""
        until_s = self.now_s() + self.longest_s
        while (began_s := self.now_s()) < until_s:
            before_s = self.idle_s()
            await self.sleep(min(timing.SETTLE_S, until_s - began_s))
            if self.idle_s() - before_s >= FREE_CORES * (self.now_s() - began_s):
                return
