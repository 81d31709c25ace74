"""The folder of a run in which a user's function works (FLW-03): relative paths and temporary files begin there.

On Linux a thread can have a working directory of its own. If the system refuses that, as a container's seccomp profile
may, the process keeps one working directory for all functions.

A folder in which nothing was made is not left behind. Making and removing two folders costs 140 µs on a file system
with a journal, renaming them 15 µs, so each thread keeps an empty pair for its next call.
"""

import ctypes
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

WORKSPACE: Final = "workspace"
_CLONE_FS: Final = 0x200
"""linux/sched.h: working directory, root folder and umask."""
_IDLE: Final = ".idle"
"""The folder of the empty pairs, next to the folders of runs; each is named by its process and thread."""

_FOLDER: "ContextVar[Path | None]" = ContextVar("soong_own_folder", default=None)
_thread: Final = threading.local()


def can_move_thread() -> bool:
    """Say whether a thread here gets a working directory of its own."""
    answer: list[bool] = []
    asking = threading.Thread(target=lambda: answer.append(_is_apart()))
    asking.start()
    asking.join()
    return answer[0]


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Let the caller's thread work in ``<run>/workspace``; threads that it starts meanwhile work there, too."""
    token = _FOLDER.set(folder)
    try:
        with made(folder):
            if not _is_apart():
                yield
                return
            before = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.chdir(folder)
                yield
            finally:
                os.fchdir(before)
                os.close(before)
    finally:
        _FOLDER.reset(token)


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """Make ``<run>/workspace``, and remove both folders on leaving if they are empty."""
    run = folder.parent
    try:
        _idle_folder().rename(run)
        _thread.idle = None
    except OSError:  # the thread has none, or the run has a folder from before
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        yield
    finally:
        _take_back(run, folder)


def _take_back(run: Path, folder: Path) -> None:
    with suppress(OSError):
        if any(folder.iterdir()) or len(list(run.iterdir())) > 1:
            return
        if getattr(_thread, "idle", None) is not None:
            folder.rmdir()
            run.rmdir()
            return
        run.with_name(_IDLE).mkdir(mode=0o700, exist_ok=True)
        _thread.idle = run.rename(run.with_name(_IDLE) / f"{os.getpid()}-{threading.get_native_id()}")


def _idle_folder() -> Path:
    """Return the empty folders of this thread. Raises: FileNotFoundError."""
    folder: Path | None = getattr(_thread, "idle", None)
    if folder is None:
        raise FileNotFoundError
    return folder


def remove_idle(runs: Path) -> None:
    """Remove the empty folders that this process, and processes that have ended, keep next to the folders of runs."""
    for idle in (runs / _IDLE).glob("*-*"):
        pid = idle.name.partition("-")[0]
        with suppress(OSError, ValueError):
            if int(pid) != os.getpid():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), 0)
                    continue
            (idle / WORKSPACE).rmdir()
            idle.rmdir()


def install_temporary_folder() -> None:
    """Let ``tempfile`` make files in the folder of the current call, and elsewhere as before; again: no change."""
    before: Callable[[], str] = getattr(tempfile, "_gettempdir")  # noqa: B009  # the one place that all of it asks
    if before.__module__ == __name__:
        return

    def in_own_folder() -> str:
        folder = _FOLDER.get()
        return before() if folder is None else str(folder)

    setattr(tempfile, "_gettempdir", in_own_folder)  # noqa: B010  # as above


@lru_cache(maxsize=1)
def _unshare() -> Any:
    return getattr(ctypes.CDLL(None, use_errno=True), "unshare", None)


def _is_apart() -> bool:
    """Give this thread a working directory of its own, unless it has one. Not for the main thread."""
    call = _unshare()
    return call is not None and call(_CLONE_FS) == 0
