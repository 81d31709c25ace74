"""The file of an SQLite database's write-ahead log, flushed to the disk without SQLite's lock, and what a flush that
failed means for the next.

With synchronous NORMAL a commit is in the log, where every process sees it, and reaches the disk with the next flush:
of this file, by whichever process. A log has one order, so what is flushed takes with it all that was committed before
(SQLite documentation, "Write-Ahead Logging"). SQLite's own flush, with synchronous FULL, comes before a commit is
visible, while every other writer waits.
"""

import os
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Final

from sqlalchemy import URL

from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.storage.sql.engine.write_lock import database_file

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
    """The log of one database. Safe to use from any thread: a file that is being flushed is not closed."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._path = Path(f"{database}-wal")
        self._fd = -1
        self._using = threading.Lock()

    def flush(self) -> None:
        """Wait until all that has been committed is on the disk. The database has to be open in this process.

        Raises: OSError.
        """
        with self._using:
            if self._fd < 0:
                self._fd = self._open(os.O_RDONLY)
            if self._fd >= 0:
                _sync(self._fd)

    def rewrite(self) -> None:
        """Write the bytes of the log to it again, and flush them.

        The caller keeps all others from writing: over a newer log these bytes would destroy it.

        Raises: OSError.
        """
        with self._using:
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

    def forget(self) -> None:
        """Let go of the file, which SQLite deletes when nobody has the database open; the next flush opens it again."""
        with self._using:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


class UnflushedLog:
    """The log as its writer knows it. ``flush`` does what it says: a seam for fault tests.

    For the writer's thread alone.
    """

    def __init__(self, log: WriteAheadLog, flush: Callable[[WriteAheadLog], None]) -> None:
        self._log = log
        self._flush = flush
        self._failure: OSError | None = None
        self.behind_since_s: float | None = None
        """Since when something that has been committed may not be on the disk, on the monotonic clock."""

    def note_commit(self) -> None:
        """Note a commit, also one that changes nothing: what it has read, another process may not have flushed."""
        if self.behind_since_s is None:
            self.behind_since_s = time.monotonic()

    @property
    def due_in_s(self) -> float | None:
        """How long what nobody waits for may still stay unflushed; None: all is on the disk."""
        if self.behind_since_s is None:
            return None
        if self.is_torn:
            return timing.RETRY_EVERY_S
        return max(0.0, self.behind_since_s + timing.WRITE_AFTER_S - time.monotonic())

    @property
    def is_torn(self) -> bool:
        """A flush has failed. The system takes what it did not write for written, so the next one would succeed without
        it, and everything after that place would be lost with it in a power cut.
        """
        return self._failure is not None

    def flush(self) -> OSError | None:
        """Flush what has been committed; return what went wrong."""
        if self._failure is None and self.behind_since_s is not None:
            try:
                self._flush(self._log)
                self.behind_since_s = None
            except OSError as error:
                self._failure = error
                log.error("log_not_flushed", error=str(error))
        return self._failure

    def restore(self) -> None:
        """Write what a failed flush may have left out. The caller keeps all others from writing.

        Raises: UnavailableError.
        """
        if self._failure is None:
            return
        try:
            self._log.rewrite()
        except OSError as error:
            raise UnavailableError(f"the log of the database cannot be written: {error}") from error
        self.behind_since_s, self._failure = None, None
        log.warning("log_rewritten")

    def forget(self) -> None:
        """Let go of the file."""
        self._log.forget()


def write_ahead_log(url: URL) -> WriteAheadLog | None:
    """Return the log of an SQLite database; PostgreSQL flushes its own."""
    return WriteAheadLog(database_file(url)) if url.get_backend_name() == "sqlite" else None


def _sync(fd: int) -> None:
    """Wait until a file is on the disk; its times need not be, where the system knows the difference."""
    getattr(os, "fdatasync", os.fsync)(fd)
