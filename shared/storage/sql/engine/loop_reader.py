"""Short reads of an SQLite database in the event loop itself.

To begin in a thread and to be heard of again takes 0.1 to 0.2 ms. That is longer than it takes to read a few rows that
were written a moment ago, which are in memory. A reader of a write-ahead log waits for no writer.
"""

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine

from soong.shared.storage.sql.engine.engine import SqliteFile, discard, make_engine
from soong.shared.storage.sql.engine.transaction import Transaction

T = TypeVar("T")


class NotReadError(Exception):
    """It cannot be read here now: a thread does it, which may wait, and says what is wrong."""


class LoopReader:
    """One connection for one loop at a time. It never waits for a lock. Of PostgreSQL it reads nothing."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._file = SqliteFile(Path(url.database or ""))
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._using = threading.Lock()
        self._is_off = url.get_backend_name() != "sqlite"

    def opening(self, function: Callable[[Transaction], T]) -> Callable[[Transaction], T]:
        """Return a function for a thread that reads what could not be read here, and connects for the next time.

        To connect reads the schema, which takes milliseconds.
        """

        def open_and_read(tx: Transaction) -> T:
            with self._using:
                if self._connection is None and not self._is_off:
                    self._engine = self._engine or make_engine(self._url, size=1, is_writer=False)
                    self._connection = self._engine.connect()
                    self._raw.execute("PRAGMA busy_timeout=0").close()
            return function(tx)

        return open_and_read

    def read(self, function: Callable[[Transaction], T]) -> T:
        """Run a function on one state of the database. It reads a few rows, and uses no Core statements.

        Raises: NotReadError.
        """
        if not self._using.acquire(blocking=False):
            raise NotReadError
        try:
            if self._connection is None:
                raise NotReadError
            # Without SQLAlchemy's own begin and commit, which take as long as a statement each.
            self._file.check()
            self._raw.execute("BEGIN")
            try:
                return function(Transaction(self._connection))
            finally:
                self._raw.rollback()
        except sqlite3.Error as error:
            self._drop()
            raise NotReadError from error
        finally:
            self._using.release()

    def close(self) -> None:
        with self._using:
            self._is_off = True
            self._drop()
            if self._engine is not None:
                self._engine.dispose()

    @property
    def _raw(self) -> Any:
        assert self._connection is not None
        return self._connection.connection.dbapi_connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        discard(connection)
