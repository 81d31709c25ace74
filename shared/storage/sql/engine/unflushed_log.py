"""What of SQLite's log may not be on the disk, and what a flush that failed means for the next."""

from collections.abc import Callable

from soong.shared.core.errors import UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.storage.sql.engine.write_ahead_log import WriteAheadLog

log = get_logger(__name__)


class UnflushedLog:
    """The log as its writer knows it. ``flush`` does what it says: a seam for fault tests.

    Commits are noted by the thread or the loop that commits; what a flush leaves is noted by the writer's thread.
    """

    def __init__(self, log: WriteAheadLog, flush: Callable[[WriteAheadLog], None]) -> None:
        self._log = log
        self._flush = flush
        self._failure: OSError | None = None
        self.is_behind = False
        """Something that has been committed may not be on the disk."""

    @property
    def is_torn(self) -> bool:
        """A flush has failed. The system takes what it did not write for written, so the next one would succeed without
        it, and everything after that place would be lost with it in a power cut.
        """
        return self._failure is not None

    def flush(self) -> OSError | None:
        """Flush what has been committed; return what went wrong. What is committed meanwhile is behind again."""
        if self._failure is not None:
            return self._failure
        self.is_behind = False
        try:
            self._flush(self._log)
        except OSError as error:
            self.is_behind, self._failure = True, error
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
        self.is_behind, self._failure = False, None
        log.warning("log_rewritten")

    def forget(self) -> None:
        """Let go of the file."""
        self._log.forget()
