"""The file of an SQLite database's write-ahead log, flushed to the disk without SQLite's lock.

With synchronous NORMAL a commit is in the log, where every process sees it, and reaches the disk with the next flush:
of this file, by whichever process. A log has one order, so what is flushed takes with it all that was committed before
(SQLite documentation, "Write-Ahead Logging"). SQLite's own flush, with synchronous FULL, comes before a commit is
visible, while every other writer waits.
"""

import os
import threading
from enum import IntEnum
from pathlib import Path
from typing import Final

from sqlalchemy import URL

from soong.shared.storage.sql.engine.write_lock import database_file

_CHUNK_BYTES: Final = 1 << 20


class Flush(IntEnum):
    """When what is committed to SQLite is on the disk, from where a power cut cannot take it.

    PostgreSQL's commits are there before anybody sees them, whatever is asked for.
    """

    WITH_NEXT = 0
    """With the next commit that is flushed. For what is worth nothing when its writer is gone, too."""
    AFTER_RETURN = 1
    """Within milliseconds; the caller continues meanwhile. For what nobody outside hears of."""
    BEFORE_RETURN = 2
    """Before the caller hears of it; others may see it earlier. For what they act on by commits of their own."""
    BEFORE_VISIBLE = 3
    """Before anybody sees it."""


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


def write_ahead_log(url: URL) -> WriteAheadLog | None:
    """Return the log of an SQLite database; PostgreSQL flushes its own."""
    return WriteAheadLog(database_file(url)) if url.get_backend_name() == "sqlite" else None


def _sync(fd: int) -> None:
    """Wait until a file is on the disk; its times need not be, where the system knows the difference."""
    getattr(os, "fdatasync", os.fsync)(fd)
