"""The process family of a run: the kernel's facts about a process and its ancestors (PER-13).

A worker, and each program that Soong runs for a tool or a hook, carries a **mark**: a finite hard limit on file locks
(``RLIMIT_LOCKS``). Linux has not applied that limit since 2.4.25, so the mark changes nothing for the program. A child
inherits it through fork and exec, and no process without ``CAP_SYS_RESOURCE`` can take it away: a new session,
terminal, process group, namespace, environment or parent leaves it in place.

Elsewhere than on Linux there is no mark; a process of a run is then known only while a worker is among its ancestors.
"""

import ctypes
import os
import resource
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta
from msgspec.structs import replace

from soong.shared.core import timing
from soong.shared.core.value import Value
from soong.shared.sandbox import subreaper

HAS_MARK: Final = sys.platform.startswith("linux")
MOST_ANCESTORS: Final = 64
MOST_PROGRAM_CHARS: Final = 300
_LIMIT_LINE: Final = "Max file locks"
_PR_SET_DUMPABLE: Final = 4


class ProcessFacts(Value, forbid_unknown_fields=True):
    """One process as the kernel shows it. ``program`` is the path of its executable, or its name if that is hidden."""

    pid: int
    started_us: int
    program: Annotated[str, Meta(max_length=MOST_PROGRAM_CHARS)]
    is_run: bool
    """It carries the mark, or is a worker of this deployment."""


class RegisteredWorker(Value):
    """A worker process of this machine by its row. ``registered_us`` is later than its start."""

    pid: int
    registered_us: int


def forbid_inspection() -> None:
    """Have the kernel refuse ``/proc/<us>/environ``, ``mem`` and tracing to others of our user; no core is dumped.

    An allowlist for the environment of children is worth little without it: a child could read its parent's. It holds
    until the next exec, on Linux, and not against root, so a worker should not run as root.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def mark_family() -> bool:
    """Mark this process and all that it starts from now on; say whether it carries the mark."""
    if HAS_MARK:
        subreaper.mark_family()
    return is_marked()


def is_marked() -> bool:
    if not HAS_MARK:
        return False
    try:
        return resource.getrlimit(subreaper.RLIMIT_LOCKS)[1] != resource.RLIM_INFINITY
    except (OSError, ValueError):  # a kernel without that limit
        return False


def own_chain(workers: Collection[RegisteredWorker] = ()) -> tuple[ProcessFacts, ...]:
    """Return this process and its ancestors, itself first. The kernel reports whether it carries the mark itself:
    ``/proc`` here may show other processes.
    """
    chain = chain_of(os.getpid(), workers)
    own = chain[0] if chain else ProcessFacts(os.getpid(), 0, sys.executable, is_run=False)
    return (replace(own, is_run=own.is_run or is_marked()), *chain[1:])


def chain_of(pid: int, workers: Collection[RegisteredWorker] = ()) -> tuple[ProcessFacts, ...]:
    """Return a process and its ancestors, itself first; empty when there is no such process. The chain ends at process
    1, at the edge of this PID namespace, or where another user's processes are hidden.
    """
    import psutil  # commands that look at no process do not pay it

    found: list[ProcessFacts] = []
    with suppress(psutil.Error):
        process: psutil.Process | None = psutil.Process(pid)
        while process is not None and len(found) < MOST_ANCESTORS:
            started_us = round(process.create_time() * 1_000_000)
            # A later process with a worker's number is none.
            earliest_us = started_us - timing.CLOCK_DOUBT_S * 1_000_000
            is_worker = any(one.pid == process.pid and earliest_us <= one.registered_us for one in workers)
            is_run = is_worker or _carries_mark(process.pid)
            path = ""
            with suppress(psutil.Error):
                path = process.exe()
            program = (path or process.name()).encode("utf-8", "replace").decode()[:MOST_PROGRAM_CHARS]
            found.append(ProcessFacts(process.pid, started_us, program, is_run))
            process = process.parent()
    return tuple(found)


def _carries_mark(pid: int) -> bool:
    """Read another process's limit: world-readable, also of a process that forbids to be inspected."""
    if not HAS_MARK:
        return False
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/limits").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(_LIMIT_LINE):
                return line.split()[-2] != "unlimited"
    return False
