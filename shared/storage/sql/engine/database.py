"""Threads and connections: one writer with group commit, a few readers.

What is written while a transaction runs gathers and is written together in the next one, so the busier the process the
fewer the commits. Each caller's work is a plain function of a :class:`Transaction`; it checks before it writes, so an
expected error leaves nothing to undo. What many write in the same way is handed to one function together. If something
else goes wrong, all of the group is rolled back and each function runs again alone: one caller's failure never undoes
another's work. A caller hears of its write after the commit.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import URL, Connection, RootTransaction

from soong.shared.core.errors import SoongError, TooSlowError, UnavailableError
from soong.shared.core.lazy_dataclass import dataclass
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
    our_errors,
    unstorable,
)
from soong.shared.storage.sql.engine.loop_reader import LoopReader, NotReadError
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.engine.write_lock import WriteLock, write_lock

log = get_logger(__name__)

T = TypeVar("T")
Item = TypeVar("Item")

WriteTogether: TypeAlias = Callable[[Transaction, Sequence[Item]], Sequence[T | SoongError]]
"""Writes many callers' items and returns their outcomes in their order: a result, or the error of one of which
nothing was written."""

GROUP: Final = 256
"""Most functions in one transaction: beyond it the first would wait too long for the last."""

READERS: Final = 4
TRIES: Final = 8
"""How often work that the database undid in favour of another transaction is done again."""
SILENT_TRIES: Final = 3
"""How often work is done alone whose transaction the database ended for its silence: a process that was frozen succeeds
the next time, one that is too slow does not."""

PATIENCE_S: Final = 30.0
"""How long a caller waits for SQLite's one lock: it is held for milliseconds, unless its holder has been stopped."""


@dataclass(slots=True)
class _Work:
    """One caller's function and where its outcome goes."""

    function: Callable[[Transaction], Any] | None
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    together: "WriteTogether[Any, Any] | None" = None
    """Takes the ``item`` with those of others, where there is no function."""
    item: Any = None
    is_durable: bool = True
    before_commit: Callable[[Any], object] | None = None
    when_begun_alone: Callable[[], object] | None = None
    before_commit_alone: Callable[[Any], object] | None = None
    result: Any = None
    error: BaseException | None = None


class _UndoneError(Exception):
    """The group has to be rolled back and each of it tried alone. Raised and caught in this module."""


def commit(transaction: RootTransaction) -> None:
    """Commit a transaction of the writer."""
    transaction.commit()


class Database:
    """One process's access to one database. Safe to call from any loop and thread; ``close`` once, from any."""

    committer: Callable[[RootTransaction], None] = staticmethod(commit)
    """How the writer commits: a seam for fault tests (applied but reported as an error). No setting reaches it."""
    patience_s: float = PATIENCE_S
    """For tests too, which cannot wait that long. No setting reaches it."""

    def __init__(self, url: URL, credential: str = "") -> None:
        self.url = url
        self.credential = credential
        self.is_postgres = url.get_backend_name() == "postgresql"
        self._writer_engine = make_engine(url, size=1, is_writer=True, credential=credential)
        self._reader_engine = make_engine(url, size=READERS, is_writer=False)
        self._lock: WriteLock | None = write_lock(url)
        self._locking_since_s: float | None = None
        """Since when the writer's thread has been waiting for the lock, on the monotonic clock."""
        self._connection: Connection | None = None
        self._syncs = True
        """On SQLite: the connection's commits wait for the disk."""
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._closing = threading.Lock()
        self._is_closed = False
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="soong-sql-read")
        self._reading: dict[int, Connection] = {}
        """By thread: each keeps its connection. Taking one out of the pool would cost as much as the read."""
        self._here = LoopReader(url)
        self._writer = threading.Thread(target=self._write_all, name="soong-sql-write", daemon=True)
        self._writer.start()

    async def write(
        self,
        function: Callable[[Transaction], T],
        *,
        before_commit: Callable[[T], object] | None = None,
        is_durable: bool = True,
    ) -> T:
        """Run ``function`` in a transaction and return its result once that is committed.

        The function may run more than once; only its last run counts. Cancelling the caller does not undo the work.
        ``before_commit`` is called in the loop with its result, when it has run and before its commit has ended: for
        hints to those who wait for the rows that it holds. What is not ``is_durable`` may be lost when the power
        fails, unless anything durable has been committed since: on SQLite nobody waits for the disk then.

        Raises:
            UnavailableError: the database did not answer; whether the work was done is then unknown.
        """
        loop = asyncio.get_running_loop()
        work = _Work(function, loop, loop.create_future(), is_durable=is_durable, before_commit=before_commit)
        result: T = await self._outcome(work)
        return result

    async def write_together(
        self,
        write: WriteTogether[Item, T],
        item: Item,
        *,
        when_begun: Callable[[], object] | None = None,
        before_commit: Callable[[T], object] | None = None,
    ) -> T:
        """Have ``write`` write an item with those that others hand to it meanwhile; like :meth:`write` in all else.

        They are written after all else in their transaction. If nothing else is written with an item, ``when_begun``
        is called in the loop as its transaction begins, and ``before_commit`` with the result before the commit has
        ended: else those that do not wait long are many.
        """
        loop = asyncio.get_running_loop()
        work = _Work(
            None,
            loop,
            loop.create_future(),
            write,
            item,
            when_begun_alone=when_begun,
            before_commit_alone=before_commit,
        )
        result: T = await self._outcome(work)
        return result

    async def _outcome(self, work: _Work) -> Any:
        with self._closing:
            if self._is_closed:
                raise UnavailableError("the database has been closed by this process")
            self._queue.put(work)
        return await (work.future if self._lock is None else self._within_patience(work, self._lock))

    async def _within_patience(self, work: _Work, lock: WriteLock) -> Any:
        """Wait for work of which a stopped process might keep the writer's thread for ever."""
        try:
            async with asyncio.timeout(self._patience_left_s()):
                return await work.future
        except TimeoutError:
            raise UnavailableError(await asyncio.to_thread(lock.describe_holder, self.patience_s)) from None

    def _patience_left_s(self) -> float:
        """Return how long it is worth waiting: once a caller has waited without success, others fail at once."""
        since_s = self._locking_since_s
        return self.patience_s if since_s is None else max(0.0, self.patience_s - (time.monotonic() - since_s))

    async def built(self, build: Callable[[], T], *, are_many: bool) -> T:
        """Return what ``build`` makes for a transaction, made in a thread when it is much: the loop continues."""
        return await asyncio.to_thread(build) if are_many else build()

    async def read(self, function: Callable[[Transaction], T]) -> T:
        """Run ``function`` on one consistent state of the database; it must not write.

        Raises:
            UnavailableError: the database did not answer.
        """
        if self._is_closed:
            raise UnavailableError("the database has been closed by this process")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, function)

    async def read_here(self, function: Callable[[Transaction], T]) -> T:
        """Like :meth:`read`, on SQLite in the loop itself: for a few rows that were written a moment ago."""
        try:
            return self._here.read(function)
        except NotReadError:
            return await self.read(self._here.opening(function))

    def close(self) -> None:
        """Finish what was handed in, within ``patience_s`` on SQLite; close every connection. Blocking; idempotent."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self._queue.put(None)
        self._writer.join(None if self._lock is None else self._patience_left_s())
        self._readers.shutdown(wait=True)
        for connection in self._reading.values():
            discard(connection)
        self._here.close()
        self._reader_engine.dispose()

    # -- readers
    def _read(self, function: Callable[[Transaction], T]) -> T:
        with our_errors():
            try:
                return self._read_once(function)
            except Exception as error:
                if not is_unavailable(error):
                    raise
            # A connection that lay idle may have been cut by now; a read can simply be done again on a new one.
            discard(self._reading.pop(threading.get_ident(), None))
            return self._read_once(function)

    def _read_once(self, function: Callable[[Transaction], T]) -> T:
        thread = threading.get_ident()
        connection = self._reading.get(thread)
        if connection is None or connection.invalidated:
            connection = self._reading[thread] = self._reader_engine.connect()
        with connection.begin():
            return function(Transaction(connection))

    # -- the writer's thread
    def _write_all(self) -> None:
        is_open = True
        while is_open:
            first = self._queue.get()
            if first is None:
                break
            group = [first]
            self._locking_since_s = time.monotonic()
            with self._lock.held() if self._lock else nullcontext():
                self._locking_since_s = None
                # Gathered under the lock: what arrived while we waited for it is written with the rest.
                is_open = self._gather(group)
                self._write_group(group)
            _tell(group)
        if self._connection is not None:
            self._connection.close()
        self._writer_engine.dispose()
        if self._lock is not None:
            self._lock.close()

    def _gather(self, group: list[_Work]) -> bool:
        while len(group) < GROUP:
            try:
                work = self._queue.get_nowait()
            except Empty:
                return True
            if work is None:
                return False
            group.append(work)
        return True

    def _write_group(self, group: Sequence[_Work]) -> None:
        """Write all of the group in one transaction, or each in its own when that fails."""
        try:
            self._attempt(group)
        except _UndoneError as undone:
            if not isinstance(undone.__cause__, SoongError):
                log.warning("writes_repeated_alone", writes=len(group), reason=_reason(undone))
            for work in group:
                self._write_alone(work)

    def _write_alone(self, work: _Work) -> None:
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

    def _attempt(self, group: Sequence[_Work]) -> None:
        """Run the group's functions and commit.

        Raises:
            _UndoneError: nothing was written; the cause says why.
        """
        try:
            connection = self._connected()
            if not self.is_postgres:
                self._sync_commits(connection, any(work.is_durable for work in group))
            transaction = connection.begin()
        except Exception as error:
            self._drop()
            raise _UndoneError from error
        try:
            if len(group) == 1 and group[0].when_begun_alone is not None:
                group[0].loop.call_soon_threadsafe(group[0].when_begun_alone)
            self._run_all(group, connection)
            _tell_of_commit(group)
            self.committer(transaction)
        except _UndoneError as undone:
            self._roll_back(transaction, undone.__cause__)
            raise
        except Exception as error:  # a failed commit: whatever the driver says, nobody may hear "done"
            if is_refused(error):  # most often by a statement that was sent with it
                self._roll_back(transaction, error)
                raise _UndoneError from error
            self._drop()
            if is_too_silent(error):  # said instead of taking the commit
                raise _UndoneError from error
            for work in group:
                work.error = UnavailableError(f"the database did not confirm a commit: {error}")

    def _run_all(self, group: Sequence[_Work], connection: Connection) -> None:
        together: dict[WriteTogether[Any, Any], list[_Work]] = {}
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

    def _run(self, work: _Work, function: Callable[[Transaction], Any], transaction: Transaction) -> None:
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
            self._connection = self._writer_engine.connect()
            self._syncs = True
        return self._connection

    def _sync_commits(self, connection: Connection, are_durable: bool) -> None:
        """Have the next commits wait for the disk, or not."""
        if are_durable is not self._syncs:
            raw: Any = connection.connection.dbapi_connection
            raw.execute(f"PRAGMA synchronous={'FULL' if are_durable else 'NORMAL'}").close()
            self._syncs = are_durable

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


def _reason(undone: _UndoneError) -> str:
    return first_line(undone.__cause__ or undone)


def _too_slow(undone: _UndoneError) -> TooSlowError:
    error = TooSlowError(
        f"this process was too slow: the database ended its transaction {SILENT_TRIES} times because no statement came "
        f"for too long ({_reason(undone)}); nothing was written; give the process more CPU time"
    )
    error.__cause__ = undone.__cause__
    return error


def _tell_of_commit(group: Sequence[_Work]) -> None:
    """Call what is to be called once all has been run and before the commit has ended."""
    for work in (work for work in group if work.error is None):
        if work.before_commit is not None:
            work.loop.call_soon_threadsafe(work.before_commit, work.result)
        if work.before_commit_alone is not None and len(group) == 1:
            work.loop.call_soon_threadsafe(work.before_commit_alone, work.result)


def _tell(group: Sequence[_Work]) -> None:
    """Hand the outcomes back, one wake-up a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Work]] = {}
    for work in group:
        by_loop.setdefault(work.loop, []).append(work)
    for loop, works in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, works)
        except RuntimeError:
            continue  # the loop has been closed: nobody waits any more


def _resolve(works: Sequence[_Work]) -> None:
    for work in works:
        if work.future.done():
            continue
        if work.error is not None:
            work.future.set_exception(work.error)
        else:
            work.future.set_result(work.result)
