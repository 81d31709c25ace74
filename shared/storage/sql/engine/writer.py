"""The writer of a process: one connection and its thread, which writes together what gathers while it is busy.

All of a group is rolled back when something goes wrong, and each of it is done again alone.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

from sqlalchemy import URL, Connection, RootTransaction

from soong.shared.core import timing
from soong.shared.core.errors import SoongError, TooSlowError, UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.storage.sql.engine.engine import (
    first_line,
    is_conflict,
    is_refused,
    is_too_silent,
    is_unavailable,
    is_unstorable,
    unstorable,
)
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.engine.unflushed_log import UnflushedLog
from soong.shared.storage.sql.engine.write_ahead_log import Flush, WriteAheadLog, write_ahead_log
from soong.shared.storage.sql.engine.write_lock import WriteLock, write_lock
from soong.shared.storage.sql.engine.write_work import Together, Work, answer
from soong.shared.storage.sql.engine.writer_connection import WriterConnection

log = get_logger(__name__)

GROUP: Final = 256
"""Most functions in one transaction: beyond it the first would wait too long for the last."""

TRIES: Final = 8
"""How often work that the database undid in favour of another transaction is done again."""
SILENT_TRIES: Final = 3
"""How often work is done alone whose transaction the database ended for its silence: a process that was frozen succeeds
the next time, one that is too slow does not."""


class _UndoneError(Exception):
    """The group has to be rolled back and each of it tried alone. Raised and caught in this module."""


class Writer:
    """Safe to use from any loop and thread. ``commit`` and ``flush`` do what they say: seams for fault tests."""

    def __init__(
        self,
        url: URL,
        credential: str,
        commit: Callable[[RootTransaction], None],
        flush: Callable[[WriteAheadLog], None],
    ) -> None:
        self.is_postgres = url.get_backend_name() == "postgresql"
        self.lock: WriteLock | None = write_lock(url)
        self.locking_since_s: float | None = None
        """Since when the thread has been waiting for the lock, on the monotonic clock."""
        self.is_closed = False
        self._commit = commit
        write_ahead = write_ahead_log(url)
        self._log = None if write_ahead is None else UnflushedLog(write_ahead, flush)
        self._connection = WriterConnection(url, credential, self._log)
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        """None ends the thread."""
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._write_all, name="soong-sql-write", daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        """Have work written by the thread. Raises: UnavailableError."""
        with self._closing:
            if self.is_closed:
                raise UnavailableError("the database has been closed by this process")
            self._queue.put(work)

    def close(self) -> bool:
        """Take no more work; False when that has been said before. What was put is still written: see :meth:`join`."""
        with self._closing:
            if self.is_closed:
                return False
            self.is_closed = True
            self._queue.put(None)
        return True

    def join(self, timeout_s: float | None) -> None:
        """Wait until all has been written."""
        self._thread.join(timeout_s)

    # -- in the thread
    def _write_all(self) -> None:
        is_open = True
        while is_open:
            group: list[Work] = []
            with suppress(Empty):  # the log is torn: an empty group flushes it again
                first = self._queue.get(timeout=timing.RETRY_EVERY_S if self._is_torn() else None)
                if first is None:
                    break
                group.append(first)
            is_open = self._write_locked(group)
            self._flush_and_answer(group)
        self._put_away()

    def _is_torn(self) -> bool:
        return self._log is not None and self._log.is_torn

    def _write_locked(self, group: list[Work]) -> bool:
        """Write a group, and with it what has arrived when nobody else writes; False when no more will arrive."""
        is_open = True
        self.locking_since_s = time.monotonic()
        try:
            with self.lock.held(self._flush_alone) if self.lock else nullcontext():
                self.locking_since_s = None
                # Gathered under the lock: what arrived while we waited for it is written with the rest.
                is_open = self._gather(group)
                self._write_group(group)
        except UnavailableError as error:  # by the lock: nothing has been written
            for work in group:
                work.error = error
        return is_open

    def _put_away(self) -> None:
        if self._log is not None:
            if self._log.is_behind:
                self._log.flush()
            self._log.forget()
        self._connection.close()
        if self.lock is not None:
            self.lock.close()

    def _flush_alone(self) -> None:
        """Flush what nobody waits for. That needs no lock, which others may have for long."""
        if self._log is not None and self._log.is_behind:
            self._log.flush()

    def _flush_and_answer(self, group: Sequence[Work]) -> None:
        """Give the callers their outcomes, before or after the commit is flushed. Other processes write meanwhile."""
        if self._log is None or not self._log.is_behind:
            answer(group)
            return
        waiting = [work for work in group if work.flush is Flush.BEFORE_RETURN and work.error is None]
        answer([work for work in group if work.flush is not Flush.BEFORE_RETURN or work.error is not None])
        if not group or any(work.flush is not Flush.WITH_NEXT for work in group):
            problem = self._log.flush()
            if problem is not None:
                for work in waiting:
                    work.error = _unconfirmed(problem)
        answer(waiting)

    def _gather(self, group: list[Work]) -> bool:
        while len(group) < GROUP:
            try:
                work = self._queue.get_nowait()
            except Empty:
                return True
            if work is None:
                return False
            group.append(work)
        return True

    def _write_group(self, group: Sequence[Work]) -> None:
        """Write all of the group in one transaction, or each in its own when that fails."""
        try:
            self._attempt(group)
        except _UndoneError as undone:
            if not isinstance(undone.__cause__, SoongError):
                log.warning("writes_repeated_alone", writes=len(group), reason=_reason(undone))
            for work in group:
                self._write_alone(work)

    def _write_alone(self, work: Work) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                self._attempt([work])
            except _UndoneError as undone:
                work.error = undone.__cause__
                if not is_conflict(work.error or undone):
                    break
                log.warning("write_undone", attempt=attempt, reason=_reason(undone))
                if is_too_silent(work.error or undone) and attempt == SILENT_TRIES:
                    work.error = _too_slow(undone)
                    return
            else:
                return
        if work.error is not None and is_unavailable(work.error):
            cause = work.error
            work.error = UnavailableError(f"the database did not answer: {first_line(cause)}")
            work.error.__cause__ = cause
        elif work.error is not None and is_unstorable(work.error):
            cause = work.error
            work.error = unstorable(cause)
            work.error.__cause__ = cause

    def _attempt(self, group: Sequence[Work]) -> None:
        """Run the group's functions and commit.

        Raises:
            _UndoneError: nothing was written; the cause says why.
        """
        is_heard_after_flush = any(work.flush is Flush.BEFORE_RETURN for work in group)
        try:
            transaction = self._connection.begin(do_sync=any(work.flush is Flush.BEFORE_VISIBLE for work in group))
        except Exception as error:
            self._connection.drop()
            raise _UndoneError from error
        try:
            self._run_all(group, transaction.connection)
            self._commit(transaction)
            self._connection.note_commit(transaction, is_heard_after_flush=is_heard_after_flush)
        except _UndoneError as undone:
            self._connection.roll_back(transaction, undone.__cause__)
            raise
        except Exception as error:  # the driver may raise anything here: a commit in doubt is confirmed to nobody
            if is_refused(error):  # most often by a statement that was sent with it
                self._connection.roll_back(transaction, error)
                raise _UndoneError from error
            self._connection.note_doubt()
            if is_too_silent(error):  # said instead of taking the commit
                raise _UndoneError from error
            for work in group:
                work.error = _unconfirmed(error)

    def _run_all(self, group: Sequence[Work], connection: Connection) -> None:
        together: dict[Together, list[Work]] = {}
        for work in group:
            if work.function is not None:
                self._run(work, work.function, Transaction(connection))
            elif work.together is not None:
                together.setdefault(work.together, []).append(work)
        for write, works in together.items():
            try:
                outcomes = write(Transaction(connection), [work.item for work in works])
            except Exception as error:
                raise _UndoneError from error
            for work, outcome in zip(works, outcomes, strict=True):
                work.error = outcome if isinstance(outcome, SoongError) else None
                work.result = outcome

    def _run(self, work: Work, function: Callable[[Transaction], Any], transaction: Transaction) -> None:
        work.error = None
        try:
            work.result = function(transaction)
        except SoongError as error:
            if transaction.has_written:
                raise _UndoneError from error
            work.error = error
        except Exception as error:
            raise _UndoneError from error


def _unconfirmed(error: Exception) -> UnavailableError:
    return UnavailableError(f"the database did not confirm a commit: {error}")


def _reason(undone: _UndoneError) -> str:
    return first_line(undone.__cause__ or undone)


def _too_slow(undone: _UndoneError) -> TooSlowError:
    error = TooSlowError(
        f"this process was too slow: the database ended its transaction {SILENT_TRIES} times because no statement came "
        f"for too long ({_reason(undone)}); nothing was written; give the process more CPU time"
    )
    error.__cause__ = undone.__cause__
    return error
