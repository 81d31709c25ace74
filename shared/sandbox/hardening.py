"""Keeping the memory and environment of our own process from other processes of the same user."""

import ctypes
import sys
from typing import Final

_PR_SET_DUMPABLE: Final = 4


def forbid_inspection() -> None:
    """Have the kernel refuse ``/proc/<us>/environ``, ``mem`` and tracing to others of our user; no core is dumped.

    An allowlist for the environment of children is worth little without it: a child could read its parent's. It holds
    until the next exec, on Linux, and not against root, so a worker should not run as root.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
