"""Time as a port, so that tests move it instead of sleeping."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Two clocks that are never mixed: the wall for records, the monotonic one for waiting and leases."""

    def now_us(self) -> int:
        """Return UTC wall time in integer microseconds since the epoch."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never jumps; only differences mean anything."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_s(self) -> float:
        return time.monotonic()


def utc_date(us: int) -> str:
    """Return the date in UTC of microseconds since the epoch, such as ``2026-11-24``."""
    return datetime.fromtimestamp(us / 1_000_000, UTC).date().isoformat()


def to_the_second(us: int) -> str:
    """Return the same without the fraction, for people. Raises: ValueError, OverflowError."""
    return rfc3339(us // 1_000_000 * 1_000_000)


def rfc3339(us: int) -> str:
    """Return microseconds since the epoch as RFC 3339 text in UTC, as JSON payloads carry it.
    Raises: ValueError, OverflowError, before the year 1 or after 9999.
    """
    second, rest_us = divmod(us, 1_000_000)
    full = datetime.fromtimestamp(second, UTC).isoformat().removesuffix("+00:00")
    return f"{full}.{rest_us:06d}Z" if rest_us else f"{full}Z"
