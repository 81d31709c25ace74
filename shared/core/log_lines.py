"""The lines of a run: what its code prints, logs and raises, gathered in the process that runs it (LOG-01).

A process has many runs at once, so the run is a context variable: asyncio tasks and the threads of
:mod:`soong.shared.core.foreign` have that of their maker. :func:`install` puts streams in place of ``sys.stdout`` and
``sys.stderr``, :func:`install_handler` a handler on the root logger; both give each text to the run of the current
context. Outside of runs, and after a run has ended, texts go where they went before. Programs that a run starts write
to the descriptors of the process, which this module does not touch.

Gathering takes about a microsecond for a line and does no I/O. Keeping the lines is :mod:`soong.worker.log_lines`.
"""

import io
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, Final, TextIO, TypeAlias

from soong.shared.core.foreign import traceback_of
from soong.shared.core.value import Value

MAX_LINE_CHARS: Final = 8_192
"""A longer line is cut."""
MAX_PIECES: Final = 1000
MAX_GATHERED: Final = 20_000
"""Lines that wait to be kept; additional ones are counted and left out."""


class LineStream(StrEnum):
    """The source of a line. LEFT_OUT stands for lines that were not kept; its text has their number."""

    STDOUT = "stdout"
    STDERR = "stderr"
    LOG = "log"
    TRACEBACK = "traceback"
    LEFT_OUT = "left_out"


class LogLine(Value):
    """One line. ``number`` counts from 1; ``level`` is that of a log record, in lower case, else empty."""

    number: int
    time_us: int
    stream: LineStream
    level: str
    text: str


GatheredLine: TypeAlias = tuple[int, str, str, str]
"""Time in microseconds, stream, level, text."""


class RunLines:
    """Gathers the lines of one run, from any thread. ``wake`` is called when there are some after there were none.

    Without a lock: a queue gives each item to one reader, also while other threads add to it.
    """

    def __init__(self, wake: Callable[[], object] = lambda: None) -> None:
        self._wake = wake
        self._is_noted = False
        self._lines: deque[GatheredLine] = deque()
        self._pieces: dict[str, deque[str]] = {LineStream.STDOUT.value: deque(), LineStream.STDERR.value: deque()}
        """The pieces of the line that each stream has begun."""
        self._left_out = 0
        self.is_closed = False

    @property
    def is_empty(self) -> bool:
        return not (self._lines or any(self._pieces.values()))

    def write(self, stream: str, text: str) -> None:
        """Take text of a stream, cut anywhere; a line is gathered with its end."""
        pieces = self._pieces[stream]
        if "\n" not in text:
            pieces.append(text)
            if len(text) > MAX_LINE_CHARS or len(pieces) > MAX_PIECES:
                pieces.append(_joined(pieces)[: MAX_LINE_CHARS + 1])
            return
        begun = _joined(pieces) if pieces else ""
        if text == "\n":  # as `print` ends a line
            self._gather(stream, "", (begun,))
            return
        *lines, rest = (begun + text).split("\n")
        if rest:
            pieces.append(rest)
        self._gather(stream, "", lines)

    def add(self, stream: str, level: str, text: str) -> None:
        """Take a complete text, as its lines."""
        self._gather(stream, level, text.rstrip("\n").split("\n"))

    def take(self, *, is_last: bool = False) -> tuple[list[GatheredLine], int]:
        """Return what was gathered since the last call, and the number of lines that found no room after these.

        The last call gets lines without an end, too.
        """
        if is_last:
            for stream, pieces in self._pieces.items():
                if pieces:
                    self._gather(stream, "", (_joined(pieces),))
        self._is_noted = False  # first: what comes from here on wakes again
        taken = [self._lines.popleft() for _ in range(len(self._lines))]
        left_out, self._left_out = self._left_out, 0
        return taken, left_out

    def _gather(self, stream: str, level: str, lines: Sequence[str]) -> None:
        now_us = time.time_ns() // 1000
        for line in lines:
            if len(self._lines) >= MAX_GATHERED:
                self._left_out += 1
            else:
                self._lines.append((now_us, stream, level, line if len(line) <= MAX_LINE_CHARS else cut(line)))
        if not self._is_noted:
            self._is_noted = True
            self._wake()


def _joined(pieces: "deque[str]") -> str:
    return "".join([pieces.popleft() for _ in range(len(pieces))])


def cut(line: str) -> str:
    return f"{line[:MAX_LINE_CHARS]}… (cut)"


_OF_THREAD: Final = "soong_run_lines"
_LINES: "ContextVar[RunLines | None]" = ContextVar("soong_run_lines", default=None)


def current_lines() -> RunLines | None:
    """Return the lines of the run that the caller belongs to; None outside of one, or when it has ended.

    A thread that a function starts itself has no context, and the run of its starter.
    """
    lines = _LINES.get() or getattr(threading.current_thread(), _OF_THREAD, None)
    return None if lines is None or lines.is_closed else lines


@contextmanager
def gathering(lines: RunLines) -> Iterator[None]:
    """Let what this context writes, and what it starts, belong to a run."""
    token = _LINES.set(lines)
    try:
        yield
    finally:
        _LINES.reset(token)


def note_raised(error: BaseException) -> None:
    """Add the traceback of an exception of foreign code to the lines of the current run."""
    lines = current_lines()
    if lines is not None:
        lines.add(LineStream.TRACEBACK, "error", traceback_of(error))


class _RunStream(io.TextIOBase):
    """Stands for a stream of the process; what it does not take itself is that of the stream behind it."""

    def __init__(self, name: LineStream, behind: TextIO) -> None:
        self._name, self.behind = name.value, behind

    def write(self, text: str) -> int:
        lines = _LINES.get()
        if lines is None or lines.is_closed:
            lines = current_lines()
            if lines is None:
                return self.behind.write(text)
        lines.write(self._name, text)
        return len(text)

    def flush(self) -> None:
        if current_lines() is None:
            self.behind.flush()

    def isatty(self) -> bool:
        return current_lines() is None and self.behind.isatty()

    def fileno(self) -> int:
        return self.behind.fileno()

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Stay open: it is everybody's."""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has an attribute
        return self.behind.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # as above
        return self.behind.errors

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


class _RunRecords(logging.Handler):
    """Gives records to the run that logs them."""

    def emit(self, record: logging.LogRecord) -> None:
        lines = current_lines()
        if lines is None:
            if logging.getLogger().handlers == [self] and logging.lastResort is not None:
                logging.lastResort.handle(record)
            return
        try:
            lines.add(LineStream.LOG, record.levelname.lower(), self.format(record))
        except Exception:  # noqa: BLE001  # a user's arguments do not fit the message, as logging handles it
            self.handleError(record)


def install() -> None:
    """Give what this process prints from now on to its runs; again: nothing changes. Called before foreign imports."""
    if not isinstance(sys.stdout, _RunStream):
        sys.stdout = _RunStream(LineStream.STDOUT, sys.stdout)
        sys.stderr = _RunStream(LineStream.STDERR, sys.stderr)
        start = threading.Thread.start

        def start_in_run(thread: threading.Thread) -> None:
            setattr(thread, _OF_THREAD, _LINES.get() or getattr(threading.current_thread(), _OF_THREAD, None))
            start(thread)

        setattr(threading.Thread, "start", start_in_run)  # noqa: B010  # mypy lets no method be replaced


def install_handler() -> None:
    """Give what this process logs to its runs, from level INFO on. Called once the process has its own handlers.

    Handlers for standard error get no record of a run and keep their level; others, such as files, get all.
    """
    root = logging.getLogger()
    for other in root.handlers:
        other.setLevel(other.level or root.level)
        if type(other) is logging.StreamHandler:
            other.addFilter(lambda _record: current_lines() is None)
    handler = _RunRecords()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(min(root.level, logging.INFO))
