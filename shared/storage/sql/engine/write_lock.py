"""A lock on a file next to an SQLite database, around every write transaction.

SQLite's own waiting starves: next to one busy writer a heartbeat waited 3.5 s without this lock and 9 ms with it. The
kernel hands it out in turn and takes it from a process that has ended. From one that has only been stopped nobody can
take it, so a process that waits for long learns which one holds it.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL

from soong.shared.core.errors import InvalidConfigError, UnavailableError


class WriteLock:
    """A blocking lock on ``<database>.lock``. One object a writing connection."""

    def __init__(self, path: Path) -> None:
        """Raises: InvalidConfigError when the file cannot be made or written."""
        self._path = path
        try:
            self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidConfigError(
                f"{path} cannot be written ({error.strerror}): the database needs a folder that this user may write"
            ) from error

    @contextmanager
    def held(self, when_taken: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Wait for it; ``when_taken`` is called before, if others have it. Raises: UnavailableError."""
        if not self.try_acquire():
            when_taken()
            self._acquire(fcntl.LOCK_EX)
        try:
            yield
        finally:
            self.release()

    def try_acquire(self) -> bool:
        """Take it if nobody has it. Raises: UnavailableError."""
        try:
            self._acquire(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _acquire(self, how: int) -> None:
        try:
            fcntl.flock(self._fd, how)
        except BlockingIOError:
            raise
        except OSError as error:
            raise UnavailableError(f"{self._path} cannot be locked: {error.strerror}") from error

    def release(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def describe_holder(self, waited_s: float) -> str:
        """Say who keeps us waiting, and what to do about it."""
        pid = _holder(self._path)
        if pid is None:
            return f"the database was not free within {waited_s:g} s; look at what uses {self._path.with_suffix('')}"
        if pid == os.getpid():
            return f"a write of this process takes more than {waited_s:g} s; look at the disk of {self._path.parent}"
        if _is_stopped(pid):
            hint = f"it is stopped: continue it (kill -CONT {pid}, or fg in its terminal) or end it"
        else:
            hint = "if it does not continue, end it: what it had not committed is undone"
        return f"process {pid} holds the database, for more than {waited_s:g} s; {hint}"


def write_lock(url: URL) -> WriteLock | None:
    """Return a lock for an SQLite database; PostgreSQL has its own."""
    return WriteLock(Path(f"{database_file(url)}.lock")) if url.get_backend_name() == "sqlite" else None


def database_file(url: URL) -> Path:
    """Return the file of an SQLite database itself: next to it SQLite puts the log, also where ``url`` names a link."""
    return Path(os.path.realpath(url.database or ""))


def _holder(path: Path) -> int | None:
    """Return the process that holds the lock on a file, where the system says so (proc(5), ``/proc/locks``)."""
    try:
        inode = path.stat().st_ino
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    entries = (line.split() for line in lines)
    holders = (int(entry[4]) for entry in entries if entry[1] == "FLOCK" and entry[5].rpartition(":")[2] == str(inode))
    return next((pid for pid in holders if pid > 0), None)


def _is_stopped(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in {"T", "t"}
