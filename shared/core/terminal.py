"""The standard streams of a process: nothing that is written to a terminal is obeyed by it.

Our output is made inert where it is composed. This is the border behind it: the output of libraries, warnings and
tracebacks passes through the same function.
"""

import io
import sys
from typing import TextIO

from soong.shared.core.inert import inert


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
    """Return where a picture is drawn that belongs to a standard stream."""
    return stream.drawing if isinstance(stream, InertStream) else stream
