"""The lock of an SQLite database's writers, and the file of its write-ahead log: flushed to the disk without that lock,
and the effect of a failed flush on the next.

With synchronous NORMAL a commit is in the log, where every process sees it, and reaches the disk with the next flush of
this file, by any process. A log has one order, so a flush takes with it all that was committed before (SQLite
documentation, "Write-Ahead Logging"). SQLite's own flush, with synchronous FULL, comes before a commit is visible,
while every other writer waits.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Final

from sqlalchemy import URL

from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError, UnavailableError
from soong.shared.core.log import get_logger

log = get_logger(__name__)

_CHUNK_BYTES: Final = 1 << 20


class Flush(IntEnum):
    """When what is committed to SQLite is on the disk, from where a power cut cannot take it.

    PostgreSQL's commits are there before anybody sees them, whatever is asked for.
    """

    WITH_NEXT = 0
    """With the next flush, in a moment. For a claim, whose holder a power cut takes as well, and for the end of a step,
    which ends no task: the owner's commit that does is after it in the log."""
    BEFORE_RETURN = 1
    """Before the caller continues; others may see it earlier, and what they commit is after it in the log."""


class WriteAheadLog:
    """The log of one database, as its writer sees it. For the writer's thread alone."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._path = Path(f"{database}-wal")
        self._fd = -1
        self.failure: OSError | None = None
        """Why a flush has failed. The system takes what it did not write for written, so the next one would succeed
        without it, and everything after that place would be lost with it in a power cut."""
        self.behind_since_s: float | None = None
        """Since when something that has been committed may not be on the disk, on the monotonic clock."""

    def note_commit(self) -> None:
        """Note a commit, also one that changes nothing: the rows that it has read may not be flushed yet."""
        if self.behind_since_s is None:
            self.behind_since_s = time.monotonic()

    @property
    def due_in_s(self) -> float | None:
        """How long writes without a waiter may still stay unflushed; None: all is on the disk."""
        if self.behind_since_s is None:
            return None
        if self.failure is not None:
            return timing.RETRY_EVERY_S
        return max(0.0, self.behind_since_s + timing.WRITE_AFTER_S - time.monotonic())

    def sync(self) -> None:
        """Wait until all that has been committed is on the disk. Raises: OSError."""
        if self._fd < 0:
            self._fd = self._open(os.O_RDONLY)
        if self._fd >= 0:
            _sync(self._fd)

    flusher: Callable[["WriteAheadLog"], None] = staticmethod(sync)
    """Flushes: a seam for fault tests. No setting reaches it."""

    def flush(self) -> OSError | None:
        """Flush what has been committed; return what went wrong."""
        if self.failure is None and self.behind_since_s is not None:
            try:
                self.flusher(self)
                self.behind_since_s = None
            except OSError as error:
                self.failure = error
                log.error("log_not_flushed", error=str(error))
        return self.failure

    def restore(self) -> None:
        """Write what a failed flush may have left out. The caller keeps all others from writing.
        Raises: UnavailableError.
        """
        if self.failure is None:
            return
        try:
            self._rewrite()
        except OSError as error:
            raise UnavailableError(f"the log of the database cannot be written: {error}") from error
        self.behind_since_s, self.failure = None, None
        log.warning("log_rewritten")

    def forget(self) -> None:
        """Let go of the file, which SQLite deletes when nobody has the database open; the next flush opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _rewrite(self) -> None:
        """Write the bytes of the log to it again, and flush them: over a newer log they would destroy it."""
        if (fd := self._open(os.O_RDWR)) < 0:
            return
        try:
            offset = 0
            while data := os.pread(fd, _CHUNK_BYTES, offset):
                offset += os.pwrite(fd, data, offset)
            _sync(fd)
        finally:
            os.close(fd)

    def _open(self, how: int) -> int:
        """Return a descriptor; -1 where there is no log: SQLite has moved it into the database, and flushed that."""
        try:
            return os.open(self._path, how | os.O_CLOEXEC)
        except FileNotFoundError:
            if self._database.exists():
                return -1
            raise


def _sync(fd: int) -> None:
    """Wait until a file is on the disk; its times need not be, if the system distinguishes them."""
    getattr(os, "fdatasync", os.fsync)(fd)


class WriteLock:
    """A blocking lock on ``<database>.lock``, around every write transaction. One object a writing connection.

    SQLite's own waiting starves: next to one busy writer a heartbeat waited 3.5 s without this lock and 9 ms with it.
    The kernel hands it out in turn and takes it from a process that has ended, but not from one that is only stopped:
    a process that waits for long learns which one holds it.
    """

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
        try:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                when_taken()
                fcntl.flock(self._fd, fcntl.LOCK_EX)
        except OSError as error:
            raise UnavailableError(f"{self._path} cannot be locked: {error.strerror}") from error
        try:
            yield
        finally:
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
    """Return the process that holds the lock on a file, if the system shows it (proc(5), ``/proc/locks``)."""
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
