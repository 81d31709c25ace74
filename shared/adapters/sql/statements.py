"""Hand-written SQL with a name, one text for both databases.

The text is SQLite's; what PostgreSQL needs besides stands in ``/*pg … */``, which SQLite skips as a comment. Parameters
are ``:name``; ``IN @name`` takes a list; ``FROM @name alias(column type, …)`` takes a list of tuples as a table, so a
batch of any size is one statement with one plan.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_ROWS: Final = re.compile(r"@(\w+) (\w+)\(([^)]*)\)")
_LIST: Final = re.compile(r"IN @(\w+)")
_NAME: Final = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_WRITES: Final = re.compile(r"\b(INSERT INTO|(?<!FOR )(?<!KEY )UPDATE|DELETE FROM)\b")
_POSTGRES_ONLY: Final = re.compile(r"/\*pg (.*?)\*/", re.DOTALL)

_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, init=False)
class Statement:
    """One named statement in both dialects. ``writes``: it changes rows; ``returns``: it has rows to read."""

    name: str
    sqlite: str
    postgres: str
    writes: bool
    returns: bool
    lists: tuple[str, ...]
    tables: Mapping[str, tuple[str, ...]]
    """Parameters that are tables, with their columns."""

    def __init__(self, name: str, text: str) -> None:
        text = " ".join(text.split())
        postgres = _POSTGRES_ONLY.sub(r"\1", text)
        tables = {match[1]: tuple(_columns(match[3])) for match in _ROWS.finditer(postgres)}
        set_ = object.__setattr__
        set_(self, "name", name)
        set_(self, "tables", tables)
        set_(self, "lists", tuple(_LIST.findall(postgres)))
        set_(self, "sqlite", _LIST.sub(r"IN (SELECT value FROM json_each(:\1))", _ROWS.sub(_sqlite_table, text)))
        postgres = _LIST.sub(r"= ANY(:\1)", _ROWS.sub(_postgres_table, postgres))
        set_(self, "postgres", _NAME.sub(r"%(\1)s", postgres))
        set_(self, "writes", _WRITES.search(text) is not None)
        set_(self, "returns", not self.writes or "RETURNING" in text)

    def sqlite_parameters(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parameters with lists and tables as JSON text."""
        if not self.tables and not self.lists:
            return parameters
        packed = (*self.tables, *self.lists)
        return {name: _encode(value) if name in packed else value for name, value in parameters.items()}

    def postgres_parameters(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parameters with each table cut into one list a column."""
        if not self.tables:
            return parameters
        cut = {name: value for name, value in parameters.items() if name not in self.tables}
        for name, columns in self.tables.items():
            values: Sequence[Sequence[Any]] = list(zip(*parameters[name], strict=True)) or [()] * len(columns)
            cut.update(
                {f"{name}_{column}": list(column_values) for column, column_values in zip(columns, values, strict=True)}
            )
        return cut


@dataclass(frozen=True, slots=True, init=False)
class Insert:
    """Rows into one table in one round trip: ``executemany`` on SQLite, arrays on PostgreSQL.

    ``columns`` maps each column to its PostgreSQL type, or, for a computed one, to None with its expression in
    ``computed``; expressions name the given values as ``:name``.
    """

    sqlite: str
    postgres: str
    columns: tuple[str, ...]

    def __init__(
        self, table: str, columns: Mapping[str, str], *, computed: Mapping[str, str] | None = None, then: str = ""
    ) -> None:
        computed = computed or {}
        given = tuple(columns)
        stored = [name for name in given if not name.startswith("_")] + list(computed)
        values = [f":{name}" for name in given if not name.startswith("_")] + list(computed.values())
        into = f"INSERT INTO {table} ({', '.join(stored)})"
        arrays = ", ".join(f"%s::{kind}[]" for kind in columns.values())
        selected = ", ".join(_NAME.sub(r"given.\1", value) for value in values)
        set_ = object.__setattr__
        set_(self, "columns", given)
        set_(self, "sqlite", f"{into} VALUES ({', '.join(_positional(value, given) for value in values)}) {then}")
        set_(self, "postgres", f"{into} SELECT {selected} FROM unnest({arrays}) AS given({', '.join(given)}) {then}")


def _positional(expression: str, given: Sequence[str]) -> str:
    return _NAME.sub(lambda match: f"?{given.index(match[1]) + 1}", expression)


def _columns(text: str) -> list[str]:
    return [column.split()[0] for column in text.split(",")]


def _sqlite_table(match: re.Match[str]) -> str:
    columns = ", ".join(
        f"json_extract(value, '$[{index}]') AS {column}" for index, column in enumerate(_columns(match[3]))
    )
    return f"(SELECT {columns} FROM json_each(:{match[1]})) AS {match[2]}"


def _postgres_table(match: re.Match[str]) -> str:
    pairs = [column.split(maxsplit=1) for column in match[3].split(",")]
    arrays = ", ".join(f":{match[1]}_{column}\x00{kind}[]" for column, kind in pairs).replace("\x00", "::")
    return f"unnest({arrays}) AS {match[2]}({', '.join(column for column, _ in pairs)})"
