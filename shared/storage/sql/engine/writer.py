"""The writer of a process: one connection and its thread, which writes together what gathers while it is busy.

On SQLite a short transaction is written in the caller's loop instead, where that waits for nobody. All of a group is
rolled back when something goes wrong, and each of it is done again alone.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from queue import Empty, SimpleQueue
from typing import Any, Final

from sqlalchemy import URL, Connection, RootTransaction

from soong.shared.core.errors import SoongError, TooSlowError, UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.storage.sql.engine.engine import (
    discard,
    first_line,
    is_conflict,
    is_refused,
    is_too_silent,
    is_unavailable,
    is_unstorable,
    make_engine,
    unstorable,
    without_busy_wait,
)
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.engine.write_ahead_log import Flush, WriteAheadLog, write_ahead_log
from soong.shared.storage.sql.engine.write_lock import WriteLock, write_lock
from soong.shared.storage.sql.engine.write_work import Together, Work, announce_commit, answer, resolve

log = get_logger(__name__)

GROUP: Final = 256
"""Most functions in one transaction: beyond it the first would wait too long for the last."""

TRIES: Final = 8
"""How often work that the database undid in favour of another transaction is done again."""
SILENT_TRIES: Final = 3
"""How often work is done alone whose transaction the database ended for its silence: a process that was frozen succeeds
the next time, one that is too slow does not."""

FLUSH_WITHIN_S: Final = 0.005
"""When what was written in a loop is flushed, at the latest: of a chain, several hops at once."""
SLOW_S: Final = 0.005
PAUSE_PER_SLOW: Final = 10
"""After a write in a loop that took ``SLOW_S`` or more, the thread writes for so many times as long: SQLite moves its
log into the database now and then, and the disk may be slow."""


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
        self._commit, self._flush_log = commit, flush
        self._engine = make_engine(url, size=1, is_writer=True, credential=credential)
        self._connection: Connection | None = None
        self._using = threading.Lock()
        """Held by the thread that uses the connection."""
        self._log: WriteAheadLog | None = write_ahead_log(url)
        self._syncs = True
        """On SQLite: the connection's commits wait for the disk."""
        self._is_unflushed = False
        """Something that has been committed may not be on the disk."""
        self._is_flush_scheduled = False
        self._by_thread_until_s = 0.0
        """On the monotonic clock: until then nothing is written in a loop."""
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
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

    # -- in a loop
    def write_here(self, work: Work) -> bool:
        """Write work to SQLite now, in its loop; False when nothing was written: the thread has to do it.

        It waits neither for the disk nor for others. To hand work to the thread and to hear of it again takes 0.1 to
        0.2 ms, a hop of a chain 0.3.
        """
        if self.lock is None or work.flush > Flush.AFTER_RETURN:
            return False
        begun_s = time.monotonic()
        if begun_s < self._by_thread_until_s or not self._using.acquire(blocking=False):
            return False
        try:
            if not self._attempt_here(work, self.lock):
                return False
        finally:
            self._using.release()
        if (took_s := time.monotonic() - begun_s) >= SLOW_S:
            self._by_thread_until_s = begun_s + took_s * (1 + PAUSE_PER_SLOW)
        resolve((work,))
        return True

    def _attempt_here(self, work: Work, lock: WriteLock) -> bool:
        if self.is_closed or self._connection is None or not self._queue.empty() or not lock.try_acquire():
            return False
        try:
            with without_busy_wait(self._connection):
                self._attempt([work])
        except _UndoneError:  # the thread meets it again, and says what it is
            return False
        finally:
            lock.release()
        if work.flush is Flush.AFTER_RETURN and not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            work.loop.call_later(FLUSH_WITHIN_S, self._put_flush, work.loop)
        return True

    def _put_flush(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_flush_scheduled = False
        if self._is_unflushed:
            nobody = loop.create_future()
            nobody.cancel()
            self._queue.put(Work(lambda _tx: None, loop, nobody, flush=Flush.AFTER_RETURN))

    # -- in the thread
    def _write_all(self) -> None:
        is_open = True
        while is_open:
            first = self._queue.get()
            if first is None:
                break
            group = [first]
            self.locking_since_s = time.monotonic()
            with self._using, self.lock.held() if self.lock else nullcontext():
                self.locking_since_s = None
                # Gathered under the lock: what arrived while we waited for it is written with the rest.
                is_open = self._gather(group)
                self._write_group(group)
            self._flush_and_answer(group)
        with self._using:
            self._put_away()

    def _put_away(self) -> None:
        if self._log is not None:
            if self._is_unflushed:
                self._flush(self._log)
            self._log.forget()
        if self._connection is not None:
            self._connection.close()
        self._engine.dispose()
        if self.lock is not None:
            self.lock.close()

    def _flush_and_answer(self, group: Sequence[Work]) -> None:
        """Hand the outcomes back, before or after the commit is flushed. Other processes write meanwhile."""
        if self._log is None or not self._is_unflushed:
            answer(group)
            return
        waiting = [work for work in group if work.flush is Flush.BEFORE_RETURN and work.error is None]
        answer([work for work in group if work.flush is not Flush.BEFORE_RETURN or work.error is not None])
        if any(work.flush is not Flush.WITH_NEXT for work in group):
            problem = self._flush(self._log)
            if problem is not None:
                for work in waiting:
                    work.error = _unconfirmed(problem)
        answer(waiting)

    def _flush(self, write_ahead_log: WriteAheadLog) -> OSError | None:
        """Flush what has been committed; return what went wrong."""
        self._is_unflushed = False
        try:
            self._flush_log(write_ahead_log)
        except OSError as error:
            self._is_unflushed = True
            log.error("log_not_flushed", error=str(error))
            return error
        return None

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
        try:
            connection = self._connected()
            if not self.is_postgres:
                self._sync_commits(connection, any(work.flush is Flush.BEFORE_VISIBLE for work in group))
            transaction = connection.begin()
        except Exception as error:
            self._drop()
            raise _UndoneError from error
        try:
            if len(group) == 1 and group[0].when_begun_alone is not None:
                group[0].loop.call_soon_threadsafe(group[0].when_begun_alone)
            self._run_all(group, connection)
            announce_commit(group)
            self._commit(transaction)
            self._is_unflushed = not self._syncs
        except _UndoneError as undone:
            self._roll_back(transaction, undone.__cause__)
            raise
        except Exception as error:  # whatever the driver reports, nobody may hear that this is committed
            if is_refused(error):  # most often by a statement that was sent with it
                self._roll_back(transaction, error)
                raise _UndoneError from error
            self._drop()
            if is_too_silent(error):  # said instead of taking the commit
                raise _UndoneError from error
            for work in group:
                work.error = _unconfirmed(error)

    def _run_all(self, group: Sequence[Work], connection: Connection) -> None:
        together: dict[Together, list[Work]] = {}
        for work in group:
            if work.function is not None:
                self._run(work, work.function, Transaction(connection, is_alone=len(group) == 1))
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

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed or self._connection.invalidated:
            self._drop()
            self._connection = self._engine.connect()
            self._syncs = True
        return self._connection

    def _sync_commits(self, connection: Connection, do_sync: bool) -> None:
        """Have the next commits wait for the disk before they are visible, or not."""
        if do_sync is not self._syncs:
            raw: Any = connection.connection.dbapi_connection
            raw.execute(f"PRAGMA synchronous={'FULL' if do_sync else 'NORMAL'}").close()
            self._syncs = do_sync

    def _roll_back(self, transaction: RootTransaction, cause: BaseException | None) -> None:
        try:
            transaction.rollback()
            transaction.connection.connection.rollback()  # SQLAlchemy sends none after a commit that failed
        except Exception:  # noqa: BLE001  # no use in a connection that cannot roll back; the server undoes its work
            self._drop()
        else:
            if cause is not None and is_unavailable(cause) and not is_conflict(cause):
                self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        discard(connection)
        if self._log is not None:
            self._log.forget()


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
