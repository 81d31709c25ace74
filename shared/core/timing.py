"""Time: the clocks, as a port that tests move instead of sleeping, and the named times of all programs.

The times are in four tables: poll, retry, limits, batching. Users read ``timing.NAME`` when they need it, so that a
test scales one value. Settings have times of their own; so have the programs that import nothing
(:mod:`soong.shared.sandbox.subreaper`). The unit is the name's ending.
"""

import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Protocol


class Clock(Protocol):
    """Two clocks that are never mixed: the wall for records, the monotonic one for waiting and leases."""

    def now_us(self) -> int:
        """Return UTC wall time in integer microseconds since the epoch."""

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never jumps; only differences mean anything."""


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
    full = _full_second(second)
    return f"{full}.{rest_us:06d}Z" if rest_us else f"{full}Z"


@lru_cache(maxsize=16)  # the events of a log lie close together
def _full_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat().removesuffix("+00:00")


MINUTE_S: Final = 60.0
DAY_S: Final = 86_400
DAY_US: Final = DAY_S * 1_000_000
HOUR_US: Final = DAY_US // 24

# -- poll: how often something is read where a notification may be lost, or nothing notifies

POLL_ROWS_S: Final = 1.0
"""Between two readings of rows: the longest delay of a lost notification."""
POLL_PROCESS_S: Final = 0.05
"""Between two looks at a process that starts or ends, and at a lock."""
FIRST_LOOK_S: Final = 0.02
"""Between the first looks for the result of a Celery task; each pause is longer, up to ``POLL_ROWS_S``."""
LEAST_PAUSE_S: Final = 0.2
"""The shortest pause between two readings, notifications or calls of the same, however often it changes."""
FOLLOW_LOGS_S: Final = 2.0
"""Between two readings of the logs of all runs by a consumer of events."""
RENEW_EVERY_S: Final = 5
"""How often an attendance is renewed, and progress reported, during a long poll."""
LONG_POLL_S: Final = 55
"""The longest long poll: below the minute after which proxies give up on an answer."""
TOOL_WAIT_S: Final = 45
"""The longest wait of a tool of the MCP server: below the minute after which clients give up."""

# -- retry: ladders and longest back-offs

RETRY_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Waits between attempts while a database or Redis is away: :func:`retry_s`."""
RETRY_EVERY_S: Final = 0.5
"""Between two attempts at what soon succeeds."""
BACKOFF_S: Final = 1.0
"""The first wait for a foreign server, doubled after each failure."""
LONGEST_BACKOFF_S: Final = 60.0
"""The longest wait before a server or a consumer of events is tried again."""
STEP_BACKOFF_LIMIT_S: Final = 300.0
"""The longest wait before a step's next attempt."""
DELIVERY_BACKOFF_S: Final = (5, 30, 120, 600, 1800, 3600, 7200, 18_000, 36_000, 50_400, 72_000)
"""Waits between attempts to deliver a notification; after the last, it is given up: two days and four hours."""
RESTART_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0)
"""Waits before a child process of a service that died is started again."""
STEADY_AFTER_S: Final = 30.0
"""A child process that lives this long begins a new row of deaths."""
AWAY_S: Final = 5.0
"""How long a server that did not answer is left alone by callers that continue without it."""
GIVEN_UP_S: Final = 600.0
"""How long folders that could not be written are left alone: a disk that was full may have room."""

# -- limits: how long something may take, or is kept

COMMAND_LIMIT_S: Final = 5.0
"""One command of Redis, the broker or the service: connecting, sending and the answer."""
EXCHANGE_LIMIT_S: Final = 15.0
"""One exchange with a foreign server, program or database."""
PATIENCE_S: Final = 30.0
"""For another process's turn: a lock, a command's owner, a renewal, a removal, a successor."""
SHORT_LIMIT_S: Final = 1.0
"""For what nothing should wait for: a commit, the last output of a pipe, a pause in Redis."""
SETTLE_S: Final = 1.0
"""For what is under way to end or to appear by itself, before it is reported, counted or shown."""
SILENCE_S: Final = 15.0
"""How long a connection, a client or a problem is silent before it is tested, given up or reported again."""
START_LIMIT_S: Final = 60.0
"""The start of a service, and its work besides draining at a handover."""
CHILD_LIMIT_S: Final = 20.0
"""The start of a child process: Redis, or the import of a plan's modules."""
END_LIMIT_S: Final = 15.0
"""The end of a service or of its server; more than ``RELEASE_LIMIT_S``."""
RELEASE_LIMIT_S: Final = 10.0
"""Handing back or pausing what runs; the reaper frees the rest."""
GRACE_S: Final = 5.0
"""Between a request to end and a second one or the end by force."""
CLOSE_LIMIT_S: Final = 3.0
"""The last messages, reports and readers of a part that closes."""
PROVIDER_PAUSE_LIMIT_S: Final = 600.0
"""The longest pause that a model's provider may ask for; beyond it the request fails and fallbacks apply."""
PERSON_LIMIT_S: Final = 600.0
"""A person's answer or login for which a call waits."""
AGENT_START_LIMIT_S: Final = 120.0
"""An agent program's answers before its first prompt: some programs are loaded from afar when they start."""
EXTRACTION_LIMIT_S: Final = 300.0
"""The run of an agent that extracts memories from a session."""
CLOCK_DOUBT_S: Final = 5.0
"""How far a row's wall time and the kernel's start of a process may differ."""
LONGEST_STEP_S: Final = 30 * DAY_S
"""The longest time limit of a step."""
LONGEST_PAUSE_S: Final = 3600
"""The longest back-off that a plan may set."""
LONGEST_S: Final = 365 * DAY_S
"""Longer times are mistakes, and some of them no clock can count."""

# -- batching: how long something is collected before it is sent or shown

TICK_S: Final = 0.001
"""The grain of timers and of switches between threads. CPython's 5 ms let a short hop wait for the busiest thread."""
HINT_S: Final = 0.003
"""How long a notification waits for others to go with it."""
HINTS_S: Final = 0.02
"""Between two round trips of such notifications, and between two claims of the same worker for ready steps."""
UNFOLLOWED_S: Final = 0.5
"""How long notifications of a run are left out after one that no reader received; below ``POLL_ROWS_S``."""
CALLED_S: Final = 0.05
"""How long ready steps are left to the worker that was called for them."""
WRITE_AFTER_S: Final = 0.1
"""The write interval of a run's log: a crash loses the events of at most this time, and repeats a model's request."""
WRITE_LINES_S: Final = 0.5
"""How long lines of a run wait before they are written: a crash loses those of at most this time."""
PUT_OFF_S: Final = 2.0
"""How long work that can wait makes way: the folders of runs for answers, a feed's next reading on a busy machine."""
SHOW_PIECES_S: Final = 0.05
"""Between two pieces of an answer that is shown while it is written."""
PROGRESS_S: Final = 0.25
"""Between two progress events of a call, and between two sendings of Celery events to Flower."""
SIGN_OF_LIFE_S: Final = 1.5
"""Between two signs of life of a worker, or of long work: people are promised one every 2 s (EXE-09)."""


def retry_s(failures: int) -> float:
    """Return the wait of ``RETRY_S`` after so many earlier failures; the last one repeats."""
    return RETRY_S[min(failures, len(RETRY_S) - 1)]
