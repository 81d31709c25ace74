"""What a worker process reports to the process that started it: that it is ready, or why it cannot start.

One line on the inherited pipe ``SOONG_STATUS_FD``, if there is one. The starter shows it to the people who wait: a log
helps only those who know that there is one.
"""

import os
from contextlib import suppress
from typing import Final

STATUS_FD: Final = "SOONG_STATUS_FD"
MAX_CHARS: Final = 2000


class StatusPipe:
    """One report of one start. Made once, before any child of ours could inherit the pipe."""

    def __init__(self) -> None:
        text = os.environ.pop(STATUS_FD, "")
        self._descriptor = int(text) if text.isdigit() else -1
        if self._descriptor >= 0:
            os.set_inheritable(self._descriptor, False)

    def ready(self) -> None:
        """Say that work is taken from now on. Only the first report counts."""
        self._report("ready")

    def failed(self, words: str) -> None:
        """Say what kept the process from starting."""
        self._report(f"failed {' '.join(words.split())[:MAX_CHARS]}")

    def _report(self, line: str) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):  # the starter is gone: nobody waits for it
                os.write(descriptor, f"{line}\n".encode("utf-8", "replace"))
            os.close(descriptor)
