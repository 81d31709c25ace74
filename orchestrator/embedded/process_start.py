"""Which process a pid means: pids are used again, so that a record of one also says when it started.

By the wall clock that time changes: Linux counts ticks from the boot, and psutil adds the time of the boot, which moves
with each step of the clock. The ticks with the id of the boot stay what they are.
"""

import sys
from functools import lru_cache
from pathlib import Path
from typing import Final

import psutil

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_AFTER_NAME: Final = b") "
"""In ``/proc/PID/stat``: a program chooses its name, which may contain this too, so the last one counts."""
_STATE: Final = 0
_START_TICKS: Final = 19
_ENDED: Final = (b"Z", b"X")


def birth_of(pid: int) -> str | None:
    """Return the id of the boot and the start of a process in clock ticks since it, ``BOOT/TICKS``.

    No other process has the same, and no clock changes it. None: there is no process of this pid, or it is a zombie.
    Empty: the system is not Linux, or hides its boot id.
    """
    boot = _boot_id()
    if not boot:
        return None if start_of(pid) is None else ""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(_AFTER_NAME)[2].split()
    if len(fields) <= _START_TICKS or fields[_STATE] in _ENDED:
        return None
    return f"{boot}/{fields[_START_TICKS].decode('ascii')}"


def start_of(pid: int) -> float | None:
    """Return the start of a living process in seconds since the epoch; None: there is no process of this pid.

    A step of the clock changes it on Linux.
    """
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def descends_from(pid: int, ancestor: int) -> bool:
    """Say whether a living process is another one, or was started by it or by one that it started."""
    try:
        return pid == ancestor or any(parent.pid == ancestor for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return False


@lru_cache(maxsize=1)
def _boot_id() -> str:
    if not sys.platform.startswith("linux"):
        return ""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
