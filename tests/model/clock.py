"""A clock that stands still until a test moves it."""

from datetime import timedelta

START_US = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z: late enough to be told from a duration, the same in every run."""


class FakeClock:
    """Both clocks of the port, moved together by ``advance``."""

    def __init__(self, now_us: int = START_US) -> None:
        self._now_us = now_us
        self._monotonic_us = 0

    def now_us(self) -> int:
        return self._now_us

    def monotonic_s(self) -> float:
        return self._monotonic_us / 1_000_000

    def advance(self, by: timedelta) -> None:
        """Let ``by`` pass. Time does not go back."""
        if by < timedelta():
            raise ValueError(f"time does not go back, not by {by!r}")
        step_us = by // timedelta(microseconds=1)
        self._now_us += step_us
        self._monotonic_us += step_us

    def jump_wall(self, by: timedelta) -> None:
        """Set the wall clock forward or back, as a person or NTP would; the monotonic one does not notice."""
        self._now_us += by // timedelta(microseconds=1)
