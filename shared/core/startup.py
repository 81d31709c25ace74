"""The set-up of each of our processes: the search for cyclic garbage, the limit of open files, and standard streams.

Nothing that is written to a terminal is obeyed by it. Our output is made inert where it is composed; the streams are
the border behind it, for libraries, warnings and tracebacks.
"""

import gc
import io
import resource
import sys
from typing import Final, TextIO

from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import inert

STARTING_OBJECTS: Final = 700_000
"""New objects that are not searched for cycles at all: more than the modules of any of our processes make.

A service makes 220,000, and with the libraries of three providers' models 610,000.
"""

YOUNG_OBJECTS: Final = (50_000, 20, 20)
"""As ``SETTLED``, of a process that has made more than that; Python's own 700 suit a program without modules."""

SETTLED: Final = (50_000, 1, 4)
"""New objects, and searches of the young and of the middle-aged, before those that are older are searched.

200 agents that wait for a call hold that many, which are freed when they end: a search before that finds nothing.
"""


def begin() -> None:
    """Search for cyclic garbage only when much has been made. Call it before importing much.

    Importing makes hundreds of thousands of objects of which nearly none is garbage: looking through them is a sixth of
    the start of a worker or a command, and most commands end before there is anything to find.
    """
    gc.set_threshold(STARTING_OBJECTS, 20, 20)
    if _search_more not in gc.callbacks:
        gc.callbacks.append(_search_more)


def _search_more(phase: str, _facts: object) -> None:
    """After the first search, search often enough for a command that stays."""
    if phase == "stop":
        gc.callbacks.remove(_search_more)
        gc.set_threshold(*YOUNG_OBJECTS)


def settle_gc() -> None:
    """Search for cyclic garbage often again, but not in what there is now.

    Call it when all is imported, and later after each import of much.

    A process that stays leaves cycles with every run (exceptions, tasks, contexts). With the thresholds of its start it
    would keep those of thousands of runs, and search all its modules to find them.
    """
    if _search_more in gc.callbacks:
        gc.callbacks.remove(_search_more)
    gc.freeze()
    gc.set_threshold(*SETTLED)


def leave_gc() -> None:
    """Search for cyclic garbage no more. Call it last. The interpreter would search everything when it ends, more than
    once: a fifth of a short command.
    """
    gc.disable()
    gc.freeze()


WANTED: Final = 8_192
NEEDED: Final = 256
"""The open files of one process: connections, log files, pipes and sockets of its tools."""
PER_WORKER: Final = 16
"""Connections of one worker to the Redis that a service starts, which inherits the limit."""


def raise_open_files(workers: int = 0) -> None:
    """Raise the limit as far as it may be raised and is useful.
    Raises: UsageError, fewer files may be open than a service with so many workers needs.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    needed = NEEDED + workers * PER_WORKER
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise UsageError(
            f"{soft} files may be open at once (RLIMIT_NOFILE), {needed} are needed; run `ulimit -n {needed}`"
        )


class InertStream(io.TextIOWrapper):
    """Writes text inert. ``drawing`` is the stream below, for a picture that moves the cursor itself."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=True,
            write_through=True,  # two writers share one buffer: neither keeps text back
        )
        self.drawing = stream

    def write(self, text: str) -> int:
        super().write(inert(text))
        return len(text)


def guard_streams() -> None:
    """Make standard error, and standard output when it is a terminal, inert.

    Standard output that is a pipe or a file is exact: programs read it. Characters that a stream's encoding lacks are
    spelled, so that a result is not lost in its last letter.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or isinstance(stream, InertStream):
            continue
        stream.reconfigure(errors="backslashreplace")
        if name == "stderr" or stream.isatty():
            setattr(sys, name, InertStream(stream))


def drawing_stream(stream: TextIO) -> TextIO:
    return stream.drawing if isinstance(stream, InertStream) else stream
