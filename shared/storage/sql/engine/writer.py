"""The writer of a process: one connection and its thread, which writes together what gathers while it is busy.

All of a group is rolled back when something goes wrong, and each of it is done again alone.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

from sqlalchemy import URL, Connection, RootTransaction

from soong.shared.core.errors import SoongError, TooSlowError, UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.storage.sql.engine.engine import (
    as_ours,
    discard,
    first_line,
    is_conflict,
    is_refused,
    is_too_silent,
    is_unavailable,
    make_engine,
)
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.engine.write_ahead_log import Flush, WriteAheadLog, WriteLock, database_file, write_lock

log = get_logger(__name__)

GROUP: Final = 256
"""Most functions in one transaction: beyond it the first would wait too long for the last."""

TRIES: Final = 8
"""How often work that the database undid in favour of another transaction is done again."""
SILENT_TRIES: Final = 3
"""How often work is done alone whose transaction the database ended for its silence: a process that was frozen succeeds
the next time, one that is too slow does not."""

Together: TypeAlias = Callable[[Transaction, Sequence[Any]], Sequence[Any]]


@dataclass(slots=True)
class Work:
    """One caller's function and where its outcome goes."""

    function: Callable[[Transaction], Any] | None
    together: Together | None = None
    """Takes the ``item`` with those of others, where there is no function."""
    item: Any = None
    flush: Flush = Flush.BEFORE_RETURN
    future: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    result: Any = None
    error: BaseException | None = None


def answer(group: Sequence[Work]) -> None:
    """Give the callers their outcomes, one wake-up per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Work]] = {}
    for work in group:
        by_loop.setdefault(work.future.get_loop(), []).append(work)
    for loop, works in by_loop.items():
        with suppress(RuntimeError):  # the loop has been closed: nobody waits there any more
            loop.call_soon_threadsafe(resolve, works)


def resolve(works: Sequence[Work]) -> None:
    """Give callers in this loop their outcomes."""
    for work in works:
        if work.future.done():
            continue
        if work.error is not None:
            work.future.set_exception(work.error)
        else:
            work.future.set_result(work.result)


class _UndoneError(Exception):
    """The group has to be rolled back and each of it tried alone. Raised and caught in this module."""


class _WriterConnection:
    """The one connection: opened when needed, dropped when its state is unknown. ``log`` is None on PostgreSQL."""

    def __init__(self, url: URL, credential: str, log: WriteAheadLog | None) -> None:
        self._engine = make_engine(url, size=1, is_writer=True, credential=credential)
        self._log = log
        self._connection: Connection | None = None

    def begin(self) -> RootTransaction:
        if self._connection is None or self._connection.closed or self._connection.invalidated:
            self.drop()
            self._connection = self._engine.connect()
            if self._log is not None:  # a commit is flushed by the writer
                raw: Any = self._connection.connection.dbapi_connection
                raw.execute("PRAGMA synchronous=NORMAL").close()
        transaction = self._connection.begin()
        if self._log is not None:
            self._log.restore()
        return transaction

    def roll_back(self, transaction: RootTransaction, cause: BaseException | None) -> None:
        """Undo a transaction; without the connection, if that is how."""
        try:
            transaction.rollback()
            transaction.connection.connection.rollback()  # SQLAlchemy sends none after a commit that failed
        except Exception:  # noqa: BLE001  # no use in a connection that cannot roll back; the server undoes its work
            self.drop()
        else:
            if cause is not None and is_unavailable(cause) and not is_conflict(cause):
                self.drop()

    def drop(self) -> None:
        """Give the connection up; the next transaction opens another."""
        connection, self._connection = self._connection, None
        discard(connection)
        if self._log is not None:
            self._log.forget()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._engine.dispose()


class Writer:
    """Safe to use from any loop and thread."""

    committer: Callable[[RootTransaction], None] = staticmethod(RootTransaction.commit)
    """Commits: a seam for fault tests (applied but reported as an error). No setting reaches it."""

    def __init__(self, url: URL, credential: str) -> None:
        self.lock: WriteLock | None = write_lock(url)
        self.locking_since_s: float | None = None
        """Since when the thread has been waiting for the lock, on the monotonic clock."""
        self.is_closed = False
        self._log = None if self.lock is None else WriteAheadLog(database_file(url))
        self._connection = _WriterConnection(url, credential, self._log)
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
        """Take no more work; False when it was closed before. Queued work is still written: see :meth:`join`."""
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
            with suppress(Empty):  # an empty group flushes what nobody waits for
                first = self._queue.get(timeout=None if self._log is None else self._log.due_in_s)
                if first is None:
                    break
                group.append(first)
            if group or (self._log is not None and self._log.failure is not None):
                is_open = self._write_locked(group)
            self._flush_and_answer(group)
        if self._log is not None:
            self._log.flush()
            self._log.forget()
        self._connection.close()
        if self.lock is not None:
            self.lock.close()

    def _write_locked(self, group: list[Work]) -> bool:
        """Write a group, and with it what has arrived when nobody else writes; False when no more will arrive.

        All of the group is written in one transaction, or each in its own when that fails.
        """
        is_open = True
        self.locking_since_s = time.monotonic()
        try:
            # Writes that nobody waits for are flushed meanwhile: that needs no lock, which others may have for long.
            with self.lock.held(self._log.flush) if self.lock and self._log else nullcontext():
                self.locking_since_s = None
                # Gathered under the lock: work that arrived during the wait for it is written with the rest.
                while is_open and len(group) < GROUP and not self._queue.empty():
                    work = self._queue.get_nowait()
                    is_open = work is not None
                    if work is not None:
                        group.append(work)
                try:
                    self._attempt(group)
                except _UndoneError as undone:
                    if not isinstance(undone.__cause__, SoongError):
                        log.warning("writes_repeated_alone", writes=len(group), reason=_reason(undone))
                    for work in group:
                        self._write_alone(work)
        except UnavailableError as error:  # by the lock: nothing has been written
            for work in group:
                work.error = error
        return is_open

    def _flush_and_answer(self, group: Sequence[Work]) -> None:
        """Give the callers their outcomes, before or after the commit is flushed. Other processes write meanwhile."""
        if self._log is None:
            answer(group)
            return
        waiting = [work for work in group if work.flush is Flush.BEFORE_RETURN and work.error is None]
        answer([work for work in group if work.flush is Flush.WITH_NEXT or work.error is not None])
        problem = self._log.flush() if waiting or self._log.due_in_s == 0.0 else None
        if problem is not None:
            for work in waiting:
                work.error = _unconfirmed(problem)
        answer(waiting)

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
        if work.error is not None:
            work.error = as_ours(work.error) or work.error

    def _attempt(self, group: Sequence[Work]) -> None:
        """Run the group's functions and commit.

        Raises:
            _UndoneError: nothing was written; the cause has the reason.
        """
        try:
            transaction = self._connection.begin()
        except Exception as error:
            self._connection.drop()
            raise _UndoneError from error
        try:
            self._run_all(group, transaction.connection)
            self.committer(transaction)
            if self._log is not None:
                self._log.note_commit()
        except _UndoneError as undone:
            self._connection.roll_back(transaction, undone.__cause__)
            raise
        except Exception as error:  # the driver may raise anything here: a commit in doubt is confirmed to nobody
            if is_refused(error):  # most often by a statement that was sent with it
                self._connection.roll_back(transaction, error)
                raise _UndoneError from error
            if self._log is not None:
                self._log.note_commit()  # it may have been done
            self._connection.drop()
            if is_too_silent(error):  # said instead of taking the commit
                raise _UndoneError from error
            for work in group:
                work.error = _unconfirmed(error)

    def _run_all(self, group: Sequence[Work], connection: Connection) -> None:
        together: dict[Together, list[Work]] = {}
        for work in group:
            if work.together is not None:
                together.setdefault(work.together, []).append(work)
            if work.function is None:
                continue
            work.error, transaction = None, Transaction(connection)
            try:
                work.result = work.function(transaction)
            except Exception as error:
                if transaction.has_written or not isinstance(error, SoongError):
                    raise _UndoneError from error
                work.error = error
        for write, works in together.items():
            try:
                outcomes = write(Transaction(connection), [work.item for work in works])
            except Exception as error:
                raise _UndoneError from error
            for work, outcome in zip(works, outcomes, strict=True):
                work.error = outcome if isinstance(outcome, SoongError) else None
                work.result = outcome


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
