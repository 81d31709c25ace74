"""A clock that a test moves, and the event loop whose timers follow it."""

import asyncio
import time
from collections.abc import Callable


class MovableClock:
    """The time of the machine, plus what it was advanced by. Implements :class:`soong.shared.core.timing.Clock`."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self.wake: Callable[[], object] = lambda: None
        """Has a loop look at its timers."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000 + round(self._ahead_s * 1_000_000)

    def monotonic_s(self) -> float:
        return time.monotonic() + self._ahead_s

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass at once in the service: time limits, delays of retries and expiries are due then.

        The code of a step sees no other time. Raises: ValueError, the number is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock advances by 0 or more seconds, not by {seconds!r}")
        self._ahead_s += seconds
        self.wake()


class ClockLoop(asyncio.SelectorEventLoop):
    """An event loop on a clock that can be moved."""

    def __init__(self, clock: MovableClock) -> None:
        self._clock = clock
        super().__init__()
        clock.wake = lambda: self.call_soon_threadsafe(lambda: None)

    def time(self) -> float:
        return self._clock.monotonic_s()
