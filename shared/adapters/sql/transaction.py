"""One transaction as the statements of this adapter see it, on whichever database."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from sqlalchemy import CompoundSelect, Connection, CursorResult, Executable, Select

from shared.adapters.sql.statements import Change, Insert, Statement, packed_rows

Row: TypeAlias = tuple[Any, ...]


class Reply(Protocol):
    """The rows of a statement that has been sent; on PostgreSQL reading them waits for the server."""

    def rows(self) -> Sequence[Row]: ...


class _Told:
    """Rows that are here already."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def rows(self) -> Sequence[Row]:
        return self._rows


class _Awaited:
    """Rows that the server sends when it comes to it."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def rows(self) -> Sequence[Row]:
        rows: Sequence[Row] = self._cursor.fetchall()
        return rows


class Transaction:
    """What a store method is handed. Lives for one call; begin and commit are its :class:`Database`'s business.

    ``has_written`` says whether rows were changed: until then the method may raise and leave no trace.
    """

    __slots__ = ("_raw", "connection", "has_written", "is_postgres")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_postgres = connection.dialect.name == "postgresql"
        self.has_written = False
        self._raw: Any = connection.connection.dbapi_connection

    def rows(self, statement: Statement, **parameters: Any) -> Sequence[Row]:
        """Execute and return all rows; of a statement without RETURNING none."""
        if self.is_postgres:
            return self._postgres_rows(statement, parameters)
        cursor = self._raw.execute(statement.sqlite, statement.parameters(parameters))
        rows: Sequence[Row] = cursor.fetchall()
        if statement.writes and (rows or cursor.rowcount > 0):
            self.has_written = True
        return rows

    def count(self, statement: Statement, **parameters: Any) -> int:
        """Execute and return how many rows were changed."""
        if self.is_postgres:
            cursor = self._raw.execute(statement.postgres, statement.parameters(parameters))
        else:
            cursor = self._raw.execute(statement.sqlite, statement.parameters(parameters))
        changed = max(0, int(cursor.rowcount))
        self.has_written = self.has_written or changed > 0
        return changed

    def send(self, statement: Statement, **parameters: Any) -> Reply:
        """Execute without waiting; inside :meth:`pipeline` several statements then share one round trip."""
        if not self.is_postgres:
            return _Told(self.rows(statement, **parameters))
        self.has_written = self.has_written or statement.writes
        return _Awaited(self._raw.execute(statement.postgres, statement.parameters(parameters)))

    def insert(self, insert: Insert, rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows given in the order of the insert's columns."""
        if not rows:
            return
        self.has_written = True
        if self.is_postgres:
            self._raw.execute(insert.postgres, (packed_rows(rows),))
        else:
            self._raw.executemany(insert.sqlite, rows)

    def change(self, change: Change, table: str, rows: Sequence[Sequence[Any]], **constants: Any) -> None:
        """Apply a change to rows given in the order of the columns of its ``table``."""
        if not rows:
            return
        self.has_written = True
        if self.is_postgres:
            self.send(change.many, **{table: rows}, **constants)
        else:
            self._raw.executemany(change.one, [(*row, *constants.values()) for row in rows])

    def execute(
        self, statement: Executable, parameters: Sequence[Mapping[str, Any]] | None = None
    ) -> CursorResult[Any]:
        """Execute a Core statement: for what is not hot."""
        result = self.connection.execute(statement, parameters) if parameters else self.connection.execute(statement)
        if not isinstance(statement, Select | CompoundSelect) and result.rowcount != 0:
            self.has_written = True
        return result

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        """On PostgreSQL, send statements without waiting for the answers to earlier ones. Not for Core statements."""
        if not self.is_postgres:
            yield
            return
        with self._raw.pipeline():
            yield

    def _postgres_rows(self, statement: Statement, parameters: dict[str, Any]) -> Sequence[Row]:
        cursor = self._raw.execute(statement.postgres, statement.parameters(parameters))
        rows: Sequence[Row] = cursor.fetchall() if statement.returns else ()
        if statement.writes and (rows or not statement.returns):
            self.has_written = True
        return rows
