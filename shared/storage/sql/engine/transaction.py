"""One transaction as the statements of this adapter see it, on whichever database."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from sqlalchemy import CompoundSelect, Connection, CursorResult, Executable, Select, Table, Text

from soong.shared.core import timing
from soong.shared.engine.tasks.retention import Footprint
from soong.shared.storage.sql.engine.statements import BATCH_ROWS, Insert, Statement, batches_of, row_class
from soong.shared.storage.sql.engine.tables import metadata

if TYPE_CHECKING:
    from soong.shared.storage.sql.engine.postgres_wire import PostgresWire


Row: TypeAlias = Any
"""A tuple whose items also have the names of the statement's columns."""

T = TypeVar("T")

SAMPLE_PAGES: Final = 2000
"""Maximum pages of each table that PostgreSQL reads to weigh its rows."""
PAGE_BYTES: Final = 8192
ROW_BYTES: Final = 28
"""Header and pointer of a row on PostgreSQL."""
ENTRY_BYTES: Final = 120
"""Roughly what a row and its index entries take in addition to its texts."""

OF_FILES: Final = {
    "sqlite": Statement(
        "used bytes: pages of the file that hold something",
        """
        SELECT (c.page_count - f.freelist_count) * s.page_size
        FROM pragma_page_count AS c, pragma_freelist_count AS f, pragma_page_size AS s
        """,
    ),
    "postgresql": Statement(
        "table sizes: bytes of a table's pages and of those with what belongs to it, pages of its rows alone",
        """
        SELECT pg_table_size(c.oid), pg_total_relation_size(c.oid), pg_relation_size(c.oid)
        FROM pg_class AS c WHERE c.oid = to_regclass(:name)
        """,
    ),
}


Reply: TypeAlias = Callable[[], Sequence[Row]]
"""Returns the rows of a statement that has been sent; on PostgreSQL it waits for the server."""


class Transaction:
    """The transaction of a store method. Lives for one call; its :class:`Database` begins and commits it.

    ``has_written``: rows were changed. Until then the method may raise and leave no trace.
    """

    __slots__ = ("_raw", "_wire", "connection", "has_written", "is_postgres")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_postgres = connection.dialect.name == "postgresql"
        self.has_written = False
        self._raw: Any = connection.connection.dbapi_connection
        wire: Any = getattr(self._raw, "wire", None)
        self._wire: PostgresWire = wire

    def rows(self, statement: Statement, **parameters: Any) -> Sequence[Row]:
        """Execute and return all rows; none for a statement without RETURNING."""
        if self.is_postgres:
            return self._postgres_rows(statement, parameters)
        cursor = self._raw.execute(statement.sqlite, statement.parameters(parameters))
        rows: Sequence[Row] = cursor.fetchall()
        if rows:
            rows = list(map(row_class(statement.sqlite, lambda: (column[0] for column in cursor.description)), rows))
        if statement.writes and (rows or cursor.rowcount > 0):
            self.has_written = True
        return rows

    def first(self, statement: Statement, **parameters: Any) -> Row | None:
        """Execute and return the first row, or None."""
        return next(iter(self.rows(statement, **parameters)), None)

    def column(self, statement: Statement, **parameters: Any) -> list[Any]:
        """Execute and return the first column of all rows."""
        return [row[0] for row in self.rows(statement, **parameters)]

    def value(self, statement: Statement, **parameters: Any) -> Any:
        """Execute and return the first column of the first row; without rows None."""
        rows = self.rows(statement, **parameters)
        return rows[0][0] if rows else None

    def count(self, statement: Statement, **parameters: Any) -> int:
        """Execute and return how many rows were changed."""
        if self.is_postgres:
            changed = self._wire.execute(statement.postgres, statement.parameters(parameters)).changed
        else:
            changed = max(0, int(self._raw.execute(statement.sqlite, statement.parameters(parameters)).rowcount))
        self.has_written = self.has_written or changed > 0
        return changed

    def send(self, statement: Statement, **parameters: Any) -> Reply:
        """Execute without waiting; inside :meth:`pipeline` several statements then share one round trip.

        On PostgreSQL the error of one that returns no rows is raised by a later statement or by the commit, with which
        it shares the round trip; so are those of :meth:`insert`, :meth:`put` and :meth:`change`.
        """
        if not self.is_postgres:
            rows = self.rows(statement, **parameters)
            return lambda: rows
        self.has_written = self.has_written or statement.writes
        send = self._wire.execute if statement.returns else self._wire.post
        return send(statement.postgres, statement.parameters(parameters)).rows

    def insert(self, insert: Insert, rows: Iterable[Sequence[Any]]) -> None:
        """Insert rows given in the order of the insert's columns; their iterator runs between the statements."""
        self.put(insert, batches_of(rows, is_postgres=self.is_postgres))

    def put(self, insert: Insert, batches: Iterable[Any]) -> None:
        """Insert rows as :func:`batches_of` yields them."""
        for batch in batches:
            self.has_written = True
            if self.is_postgres:
                self._wire.post(insert.postgres, (batch,))
            else:
                self._raw.executemany(insert.sqlite, batch)

    def change(self, statement: Statement, rows: Sequence[Sequence[Any]], **values: Any) -> None:
        """Apply a statement to rows, its table ``changes``, without waiting for its answer."""
        for start in range(0, len(rows), BATCH_ROWS):
            self.has_written = True
            given = statement.parameters({"changes": rows[start : start + BATCH_ROWS], **values})
            if self.is_postgres:
                self._wire.post(statement.postgres, given)
            else:
                self._raw.execute(statement.sqlite, given)

    def execute(
        self, statement: Executable, parameters: Sequence[Mapping[str, Any]] | None = None
    ) -> CursorResult[Any]:
        """Execute a Core statement: for what is not hot."""
        result = self.connection.execute(statement, parameters) if parameters else self.connection.execute(statement)
        if not isinstance(statement, Select | CompoundSelect) and result.rowcount != 0:
            self.has_written = True
        return result

    def paced(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items to a loop that may compute for long; meanwhile PostgreSQL gets a statement now and then.

        It distinguishes a slow process from a frozen one, whose locks others must get. Not inside :meth:`pipeline`.
        """
        if not self.is_postgres:
            yield from items
            return
        since = time.monotonic()
        for item in items:
            yield item
            if time.monotonic() - since > timing.LEAST_PAUSE_S:
                self._wire.execute("SELECT 1", ())
                since = time.monotonic()

    def flush(self) -> None:
        """Inside :meth:`pipeline`, let PostgreSQL begin with what was sent, while more is made and sent."""
        if self.is_postgres:
            self._wire.flush()

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        """On PostgreSQL, send statements without waiting for the answers to earlier ones. Not for Core statements."""
        if not self.is_postgres:
            yield
            return
        with self._wire.batch():
            yield

    def _postgres_rows(self, statement: Statement, parameters: dict[str, Any]) -> Sequence[Row]:
        rows: Sequence[Row] = ()
        if statement.returns:
            rows = self._wire.execute(statement.postgres, statement.parameters(parameters)).rows()
        else:
            self._wire.post(statement.postgres, statement.parameters(parameters))
        if statement.writes and (rows or not statement.returns):
            self.has_written = True
        return rows


def _sampled(table: Table) -> Statement:
    size = " + ".join(f"coalesce(pg_column_size({column.name}), 0)" for column in table.columns)
    return Statement(
        f"sampled {table.name}: bytes of the live rows in a share of the pages",
        f"SELECT coalesce(sum({ROW_BYTES} + {size}), 0) FROM {table.name} TABLESAMPLE SYSTEM (:percent)",  # noqa: S608  # our own names
    )


SAMPLED: Final = {name: _sampled(table) for name, table in metadata.tables.items()}


def used_bytes(tx: Transaction) -> int:
    """Return what the rows take with their indexes, without space that removed rows left free.

    On PostgreSQL an estimate: the share of live rows in sampled pages, times the size of table and indexes.
    """
    if not tx.is_postgres:
        return int(tx.rows(OF_FILES["sqlite"])[0][0])
    total = 0
    for name in SAMPLED:
        total += _table_bytes(tx, name)
    return total


def _table_bytes(tx: Transaction, name: str) -> int:
    pages_bytes, total_bytes, heap_bytes = (int(size) for size in tx.rows(OF_FILES["postgresql"], name=name)[0])
    if not heap_bytes:
        return 0
    percent = min(100.0, 100.0 * SAMPLE_PAGES * PAGE_BYTES / heap_bytes)
    sampled_bytes = int(tx.rows(SAMPLED[name], percent=percent)[0][0])
    return round(total_bytes * min(1.0, sampled_bytes * 100.0 / percent / pages_bytes))


def _weighed(name: str, where: str) -> str:
    size = " + ".join(
        f"coalesce(length({column.name}), 0)"
        for column in metadata.tables[name].columns
        if isinstance(column.type, Text)
    )
    return f"SELECT sum({ENTRY_BYTES} + {size}) AS size FROM {name} WHERE {where}"  # noqa: S608  # our own names


_OF_A_TASK: Final = (
    _weighed("tasks", "id = :task_id"),
    _weighed("steps", "task_id = :task_id"),
    _weighed("runs", "task_id = :task_id"),
    *(
        _weighed(name, "run_id IN (SELECT r.id FROM runs AS r WHERE r.task_id = :task_id)")
        for name in ("events", "nodes", "calls", "log_lines", "permission_requests")
    ),
)
WEIGHT: Final = Statement(
    "weight: roughly what the rows of one task take",
    f"SELECT sum(part.size) FROM ({' UNION ALL '.join(_OF_A_TASK)}) AS part",  # noqa: S608  # our own names
)
RUNS_OF_TASK: Final = Statement("runs of task: all of them", "SELECT id FROM runs WHERE task_id = :task_id")


def footprint(tx: Transaction, task_id: str) -> Footprint:
    """Return what a task consists of; its size is a rough one."""
    run_ids = tuple(tx.column(RUNS_OF_TASK, task_id=task_id))
    return Footprint(run_ids, int(tx.rows(WEIGHT, task_id=task_id)[0][0] or 0))
