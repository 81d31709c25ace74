"""Our end of the two pipes to a subreaper: its input and its reports (:mod:`soong.shared.sandbox.subreaper`)."""

import contextlib
import os
import signal
from typing import Final

from soong.shared.core.value import Value

_MAX_REPORT_BYTES: Final = 4096


class Report(Value):
    """What a subreaper said. One that said no end was killed, and the kernel killed its program with it.

    ``problem`` is the errno of a program that could not be started, ``program`` its process id, ``left`` how many
    descendants could not be killed.
    """

    program: int = 0
    problem: int = 0
    code: int = -signal.SIGKILL
    left: int = 0
    is_complete: bool = False

    @classmethod
    def read(cls, text: str) -> "Report":
        words = {line.split()[0]: [int(word) for word in line.split()[1:]] for line in text.splitlines() if line}
        program, problem = words.get("started", [0])[0], words.get("failed", [0])[0]
        code, left = words.get("ended", [-signal.SIGKILL, 0])
        return cls(program, problem, code, left, is_complete="ended" in words or "failed" in words)


class SubreaperPipes:
    """Two pipes, open for one run. When our end of the first is closed, by us or by our death, all of it ends."""

    def __init__(self) -> None:
        control, self._control = os.pipe()
        self._status, status = os.pipe()
        self.far_ends: Final = (control, status)
        """The subreaper's ends: where it receives, where it reports."""
        self.report = Report()
        self._open = {control, status, self._control, self._status}

    def __enter__(self) -> "SubreaperPipes":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Have the subreaper start its program."""
        self._close(*self.far_ends)
        with contextlib.suppress(BrokenPipeError):  # somebody killed it; then there is no report
            os.write(self._control, b"1")

    def let_go(self) -> None:
        """Have the subreaper end whatever lives."""
        self._close(self._control)

    def listen(self) -> None:
        """Read the report. Not before the subreaper has ended: then all of it is in the pipe."""
        os.set_blocking(self._status, False)
        with contextlib.suppress(BlockingIOError):
            self.report = Report.read(os.read(self._status, _MAX_REPORT_BYTES).decode("ascii"))

    def close(self) -> None:
        """Close what is open of both; whatever lives ends."""
        self._close(*tuple(self._open))

    def _close(self, *descriptors: int) -> None:
        for descriptor in self._open.intersection(descriptors):
            self._open.remove(descriptor)
            os.close(descriptor)
