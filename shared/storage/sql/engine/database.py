"""Threads and connections: one writer with group commit, a few readers.

Writes that arrive during a transaction go together into the next one, so the busier the process the fewer the commits.
Each caller's work is a plain function of a :class:`Transaction`; it checks before it writes, so an expected error
leaves nothing to undo. Equal kinds of writes go to one function together. If something else goes wrong, all of the
group is rolled back and each function runs again alone: one caller's failure never undoes another's work. A caller gets
its result after the commit.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import URL, Connection

from soong.shared.core import timing
from soong.shared.core.errors import SoongError, UnavailableError
from soong.shared.storage.sql.engine.engine import discard, is_unavailable, make_engine, our_errors
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.engine.write_ahead_log import Flush
from soong.shared.storage.sql.engine.writer import Work, Writer

T = TypeVar("T")
Item = TypeVar("Item")

WriteTogether: TypeAlias = Callable[[Transaction, Sequence[Item]], Sequence[T | SoongError]]
"""Writes many callers' items and returns their outcomes in their order: a result, or the error of one of which
nothing was written."""

READERS: Final = 4


class Database:
    """One process's access to one database. Safe to call from any loop and thread; ``close`` once, from any."""

    patience_s: float = timing.PATIENCE_S
    """For tests, which cannot wait that long. No setting reaches it."""

    def __init__(self, url: URL, credential: str = "") -> None:
        self.url = url
        self.credential = credential
        self.is_postgres = url.get_backend_name() == "postgresql"
        self._writer = Writer(url, credential)
        self._reader_engine = make_engine(url, size=READERS, is_writer=False)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="soong-sql-read")
        self._reading: dict[int, Connection] = {}
        """By thread: each keeps its connection. Taking one out of the pool would cost as much as the read."""

    async def write(self, function: Callable[[Transaction], T], *, flush: Flush = Flush.BEFORE_RETURN) -> T:
        """Run ``function`` in a transaction and return its result once that is committed.

        The function may run more than once; only its last run counts. Cancelling the caller does not undo the work.
        ``flush`` is the latest time at which it is on SQLite's disk: a group is flushed as its strictest member.

        Raises:
            UnavailableError: the database did not answer; whether the work was done is then unknown.
        """
        result: T = await self._written(Work(function, flush=flush))
        return result

    async def write_together(self, write: WriteTogether[Item, T], item: Item) -> T:
        """Have ``write`` write an item with those that others hand to it meanwhile; like :meth:`write` in all else.

        They are written after all else in their transaction.
        """
        result: T = await self._written(Work(None, write, item))
        return result

    async def _written(self, work: Work) -> Any:
        """Wait for work; a stopped process might keep SQLite's writer for ever. Raises: whatever became of the work."""
        self._writer.put(work)
        lock = self._writer.lock
        try:
            async with asyncio.timeout(None if lock is None else self._patience_left_s()):
                return await work.future
        except TimeoutError:
            if lock is None:
                raise
            raise UnavailableError(await asyncio.to_thread(lock.describe_holder, self.patience_s)) from None

    def _patience_left_s(self) -> float:
        """Return how long it is worth waiting: once a caller has waited without success, others fail at once."""
        since_s = self._writer.locking_since_s
        return self.patience_s if since_s is None else max(0.0, self.patience_s - (time.monotonic() - since_s))

    async def read(self, function: Callable[[Transaction], T]) -> T:
        """Run ``function`` on one consistent state of the database; it must not write.
        Raises: UnavailableError, the database did not answer.
        """
        if self._writer.is_closed:
            raise UnavailableError("the database has been closed by this process")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, function)

    def close(self) -> None:
        """Finish what was handed in, within ``patience_s`` on SQLite; close every connection. Blocking; idempotent."""
        if not self._writer.close():
            return
        self._writer.join(None if self._writer.lock is None else self._patience_left_s())
        self._readers.shutdown(wait=True)
        for connection in self._reading.values():
            discard(connection)
        self._reader_engine.dispose()

    # -- readers
    def _read(self, function: Callable[[Transaction], T]) -> T:
        thread, is_again = threading.get_ident(), False
        with our_errors():
            while True:
                connection = self._reading.get(thread)
                try:
                    if connection is None or connection.invalidated:
                        connection = self._reading[thread] = self._reader_engine.connect()
                    with connection.begin():
                        return function(Transaction(connection))
                except Exception as error:
                    if is_again or isinstance(error, SoongError) or not is_unavailable(error):
                        raise
                # A connection that lay idle may have been cut by now; a read can simply be done again on a new one.
                discard(self._reading.pop(thread, None))
                is_again = True
