"""Reads of the columns of one table, with the text made once.

SQLAlchemy's Core makes a statement, finds its compiled form and wraps the rows again for each execution. In a read of
few rows that costs several times what the database takes, so the reads on the path of a task do without.
"""

from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Table

from soong.shared.storage.sql.engine.statements import SIZE, Statement
from soong.shared.storage.sql.engine.strict import MAX_WORD_CHARS
from soong.shared.storage.sql.engine.transaction import Transaction


class TableRead:
    """One named read of a table's columns. ``rest`` is what follows ``FROM table``, in the form of a statement.

    ``without`` names columns that are not read, ``bounded`` those that are read as empty when they are longer than a
    word: before they are loaded.
    """

    __slots__ = ("_row_of", "statement")

    def __init__(
        self, name: str, table: Table, rest: str, *, without: Collection[str] = (), bounded: Collection[str] = ()
    ) -> None:
        columns = [column.name for column in table.columns if column.name not in without]
        short = f"CASE WHEN {SIZE} <= {MAX_WORD_CHARS} THEN {{0}} ELSE '' END"
        listed = ", ".join(
            (short if column in bounded else "{0}").format(f"{table.name}.{column}") for column in columns
        )
        self.statement: Final = Statement(name, f"SELECT {listed} FROM {table.name} {rest}")  # noqa: S608  # our words
        make: Any = namedtuple  # noqa: PYI024  # its fields are the table's, which no checker knows
        self._row_of: Callable[[Iterable[Any]], Any] = make("row", columns)._make

    def read(self, tx: Transaction, **parameters: Any) -> Sequence[Any]:
        """Return the rows; their fields have the names of the columns."""
        return self.rows_of(tx.rows(self.statement, **parameters))

    def rows_of(self, rows: Iterable[Sequence[Any]]) -> Sequence[Any]:
        """Return rows of the statement that was sent, with the names of the columns."""
        return list(map(self._row_of, rows))

    def first(self, tx: Transaction, **parameters: Any) -> Any:
        """Return the first row, or None."""
        rows = tx.rows(self.statement, **parameters)
        return self._row_of(rows[0]) if rows else None
