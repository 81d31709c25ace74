"""The writer's one connection: opened when needed, dropped when its state is unknown; how its commits are flushed."""

from typing import Any

from sqlalchemy import URL, Connection, RootTransaction

from soong.shared.storage.sql.engine.engine import discard, is_conflict, is_unavailable, make_engine
from soong.shared.storage.sql.engine.unflushed_log import UnflushedLog


class WriterConnection:
    """Used by one thread at a time. ``log`` is None on PostgreSQL, which flushes its own."""

    def __init__(self, url: URL, credential: str, log: UnflushedLog | None) -> None:
        self._engine = make_engine(url, size=1, is_writer=True, credential=credential)
        self._log = log
        self._connection: Connection | None = None
        self._syncs = True
        """On SQLite: its commits wait for the disk."""
        self._changes = 0
        """How many rows it had changed when its transaction began."""

    @property
    def opened(self) -> Connection | None:
        return self._connection

    def begin(self, *, do_sync: bool) -> RootTransaction:
        """Begin a transaction. ``do_sync``: on SQLite its commit waits for the disk before it is visible."""
        if self._connection is None or self._connection.closed or self._connection.invalidated:
            self.drop()
            self._connection = self._engine.connect()
            self._syncs = True
        raw: Any = self._connection.connection.dbapi_connection
        if self._log is not None and do_sync is not self._syncs:
            raw.execute(f"PRAGMA synchronous={'FULL' if do_sync else 'NORMAL'}").close()
            self._syncs = do_sync
        self._changes = _changes(raw)
        transaction = self._connection.begin()
        if self._log is not None:
            self._log.restore()
        return transaction

    def note_commit(self, transaction: RootTransaction, *, is_heard_after_flush: bool) -> None:
        """Note what of the log may not be on the disk, now that a transaction has been committed.

        ``is_heard_after_flush``: a caller hears of it only when it is on the disk. Where nothing was changed, this
        concerns what was read: another process may not have flushed it yet.
        """
        if self._log is None:
            return
        if not self._syncs:
            self._log.is_behind = True
        elif _changes(transaction.connection.connection.dbapi_connection) != self._changes:
            # SQLite has flushed it, and all before it; a commit that changes nothing SQLite does not flush.
            self._log.is_behind = False
        elif is_heard_after_flush:
            self._log.is_behind = True

    def note_doubt(self) -> None:
        """Note that a commit may have been done, and drop the connection."""
        if self._log is not None:
            self._log.is_behind = True
        self.drop()

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


def _changes(raw: Any) -> int:
    """Return how many rows a connection to SQLite has ever changed."""
    return int(getattr(raw, "total_changes", 0))
