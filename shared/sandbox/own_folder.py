"""The folder of a run in which a user's function works (FLW-03): relative paths and temporary files begin there.

On Linux a thread can have a working directory of its own. If the system refuses that, as a container's seccomp profile
may, the process keeps one working directory for all functions.

A folder in which nothing was made is not left behind.
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
_FOLDER: "ContextVar[Path | None]" = ContextVar("soong_own_folder", default=None)


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
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):
            folder.rmdir()
            folder.parent.rmdir()


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
