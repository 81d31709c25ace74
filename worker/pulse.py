"""Signs of life for the subreaper of this process: the event loop moves (:mod:`soong.shared.sandbox.subreaper`).

A C call that holds the interpreter's lock stops every thread of the process, so nothing in it can notice that. The
subreaper is another process: when the signs stop for ``SOONG_HANG_S``, it ends this one.
"""

import asyncio
import os
from contextlib import suppress
from typing import Final

PULSE_FD: Final = "SOONG_PULSE_FD"
LONGEST_PAUSE_S: Final = 1.0
PAUSES: Final = 5
"""Signs within the time after which a process counts as hanging."""


class Pulse:
    """The inherited pipe to the subreaper, if there is one. Made once, before any child of ours could inherit it."""

    def __init__(self, hang_s: float) -> None:
        text = os.environ.pop(PULSE_FD, "")
        self._descriptor = int(text) if text.isdigit() else -1
        self._hang_s = hang_s
        if self._descriptor >= 0:
            os.set_inheritable(self._descriptor, False)
            os.set_blocking(self._descriptor, False)

    async def beat(self) -> None:
        """Give signs of life until cancelled; from then on none is expected."""
        if self._descriptor < 0 or not self._hang_s:
            return
        try:
            while True:
                self._say(self._hang_s)
                await asyncio.sleep(min(LONGEST_PAUSE_S, self._hang_s / PAUSES))
        finally:
            self._say(0)

    def pass_on(self) -> None:
        """Leave the pipe to the program that this process executes next; until it beats, no sign is expected."""
        if self._descriptor >= 0:
            self._say(0)
            os.set_inheritable(self._descriptor, True)
            os.environ[PULSE_FD] = str(self._descriptor)

    def _say(self, silent_s: float) -> None:
        with suppress(OSError):  # the subreaper is gone, and we with it; or it is stopped, and the pipe full
            os.write(self._descriptor, f"{silent_s:g}\n".encode())
