"""Hand-written SQL with a name, one text for both databases.

The text is SQLite's; additions for PostgreSQL are in ``/*pg … */``, which SQLite skips as a comment. Parameters are
``:name``; ``IN @name`` takes a list; ``FROM @name alias(column type, …)`` takes a list of tuples as a table, so a batch
of any size is one statement with one plan. ``EACH OF column AS alias`` takes a column's JSON list as a table: each
``value`` with its place, ``key``. ``FIELD name OF column`` is a field of a column's JSON object.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, Final, TypeAlias

from sqlalchemy import Table

from soong.shared.storage.sql.engine.columns import MAX_WORD_CHARS, type_of
from soong.shared.storage.sql.engine.row_mapper import encode_ascii

_ROWS: Final = re.compile(r"@(\w+) (\w+)\(([^)]*)\)")
_LIST: Final = re.compile(r"IN @(\w+)")
_EACH: Final = re.compile(r"EACH OF (\w+\.\w+) AS (\w+)")
_FIELD: Final = re.compile(r"FIELD (\w+) OF (\w+\.\w+)")
_NAME: Final = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_WRITES: Final = re.compile(r"\b(INSERT INTO|(?<!FOR )(?<!KEY )UPDATE|DELETE FROM)\b")
_POSTGRES_ONLY: Final = re.compile(r"/\*pg (.*?)\*/", re.DOTALL)

_POSTGRES_EACH: Final = r"json_array_elements_text(\1::json) WITH ORDINALITY AS \2(value, key)"
_POSTGRES_LIST: Final = r"= ANY(ARRAY(SELECT json_array_elements_text(:\1::json)))"

SIZE: Final = "/*pg octet_*/length({0})"
"""How long a text is, in bytes on PostgreSQL: to know it, a text that is stored apart is not loaded."""
PAGE_SIZE: Final = 8 * 1024 * 1024
"""The size of a page's rows before its last one, by ``SIZE``: a larger row is a page of its own."""
BATCH_ROWS: Final = 1_000
BATCH_CHARS: Final = 256 * 1024
"""Limits of one statement that writes rows. A batch is encoded and sent in a few milliseconds of CPU time."""


class Statement:
    """One named statement in both dialects.

    The text is read at the first use: there are some 250 statements, and a client uses a tenth of them.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._written = text

    @cached_property
    def _text(self) -> str:
        return " ".join(self._written.split())

    @cached_property
    def sqlite(self) -> str:
        text = _FIELD.sub(r"json_extract(\2, '$.\1')", _EACH.sub(r"json_each(\1) AS \2", self._text))
        return _LIST.sub(r"IN (SELECT value FROM json_each(:\1))", _ROWS.sub(_sqlite_table, text))

    @cached_property
    def postgres(self) -> str:
        text = _FIELD.sub(r"(\2::json ->> '\1')", _EACH.sub(_POSTGRES_EACH, self._with_postgres))
        return _NAME.sub(r"%(\1)s", _LIST.sub(_POSTGRES_LIST, _ROWS.sub(_postgres_table, text)))

    @cached_property
    def packed(self) -> tuple[str, ...]:
        """Parameters that are lists or tables: both databases take them as JSON text, one value whatever their size."""
        text = self._with_postgres
        return tuple(dict.fromkeys([*(match[1] for match in _ROWS.finditer(text)), *_LIST.findall(text)]))

    @cached_property
    def writes(self) -> bool:
        """Whether it changes rows."""
        return _WRITES.search(self._text) is not None

    @cached_property
    def returns(self) -> bool:
        """Whether it has rows to read."""
        return not self.writes or "RETURNING" in self._text

    @property
    def _with_postgres(self) -> str:
        return _POSTGRES_ONLY.sub(r"\1", self._text)

    def parameters(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters as the drivers take them."""
        for name in self.packed:
            given[name] = encode_ascii(given[name])
        return given


def row_class(text: str, names: Callable[[], Iterable[str]]) -> type[Any]:
    """Return the class of a statement's rows: tuples whose items have the names of the columns, too."""
    made = _ROW_CLASSES.get(text)
    if made is None:
        named = {name: property(itemgetter(place)) for place, name in enumerate(names())}
        made = _ROW_CLASSES[text] = type("NamedRow", (tuple,), {"__slots__": (), **named})
    return made


_ROW_CLASSES: Final[dict[str, type[Any]]] = {}


def table_read(
    name: str, table: Table, rest: str, *, without: Collection[str] = (), bounded: Collection[str] = ()
) -> Statement:
    """Return the read of a table's columns; ``rest`` is what follows ``FROM table``.

    SQLAlchemy's Core finds the compiled form of a statement again and wraps its rows for each execution, which costs
    several times what the database takes to read a few. ``without`` names columns that are not read, ``bounded`` those
    that are read as empty when they are longer than a word: before they are loaded.
    """
    columns = [column.name for column in table.columns if column.name not in without]
    short = f"CASE WHEN {SIZE} <= {MAX_WORD_CHARS} THEN {{0}} ELSE '' END AS {{1}}"
    listed = ", ".join((short if each in bounded else "{0}").format(f"{table.name}.{each}", each) for each in columns)
    return Statement(name, f"SELECT {listed} FROM {table.name} {rest}")  # noqa: S608  # our words


class Insert:
    """Rows into one table in one round trip: ``executemany`` on SQLite, one JSON value on PostgreSQL.

    ``columns`` names the given values in their order; those that are not columns of the table are in ``more``, with
    their PostgreSQL types. They serve the expressions in ``computed``, which name the given values as ``:name``.
    """

    def __init__(
        self,
        table: Table,
        columns: Iterable[str],
        *,
        more: Mapping[str, str] | None = None,
        computed: Mapping[str, str] | None = None,
        then: str = "",
    ) -> None:
        extra = more or {}
        types = {name: extra.get(name) or type_of(table, name) for name in (*columns, *extra)}
        self.names = given = tuple(types)
        values = {name: f":{name}" for name in given if name not in extra} | dict(computed or {})
        into = f"INSERT INTO {table.name} ({', '.join(values)})"
        positional = ", ".join(
            _NAME.sub(lambda match: f"?{given.index(match[1]) + 1}", each) for each in values.values()
        )
        selected = ", ".join(_NAME.sub(r"given.\1", value) for value in values.values())
        rows = _json_rows("%s", list(types.items()))
        # The texts are ours, written out in this package; no value of anybody's stands in them.
        self.sqlite = f"{into} VALUES ({positional}) {then}"
        self.postgres = f"{into} SELECT {selected} FROM {rows} AS given {then}"  # noqa: S608

    def row(self, values: Mapping[str, object]) -> tuple[object, ...]:
        """Return a row as it is given to the statement, from values by their names."""
        return tuple(values[name] for name in self.names)


ReadyRows: TypeAlias = tuple[Insert, Sequence[Any]]
"""Batches of one insert, built before a transaction begins, so that it holds its locks for the statements alone."""


def batches_of(rows: Iterable[Sequence[Any]], *, is_postgres: bool) -> Iterator[Any]:
    """Yield rows, given in the order of an insert's columns, as one statement each takes them: none if there are none.

    JSON texts on PostgreSQL, one list on SQLite.
    """
    if is_postgres:
        yield from packed_batches(rows)
    elif given := list(rows):
        yield given


def packed_batches(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield rows as JSON texts of at most ``BATCH_ROWS`` rows; one that is larger than ``BATCH_CHARS`` goes alone."""
    texts: list[str] = []
    size = 0
    for row in rows:
        text = encode_ascii(row)
        if texts and (len(texts) == BATCH_ROWS or size + len(text) > BATCH_CHARS):
            yield f"[{','.join(texts)}]"
            texts, size = [], 0
        texts.append(text)
        size += len(text)
    if texts:
        yield f"[{','.join(texts)}]"


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(name, kind) for name, kind in (column.split(maxsplit=1) for column in text.split(","))]


def _sqlite_table(match: re.Match[str]) -> str:
    columns = ", ".join(
        f"json_extract(value, '$[{index}]') AS {name}" for index, (name, _) in enumerate(_pairs(match[3]))
    )
    return f"(SELECT {columns} FROM json_each(:{match[1]})) AS {match[2]}"  # noqa: S608


def _postgres_table(match: re.Match[str]) -> str:
    return f"{_json_rows(f':{match[1]}', _pairs(match[3]))} AS {match[2]}"


def _json_rows(parameter: str, columns: Sequence[tuple[str, str]]) -> str:
    """Return the PostgreSQL text that reads a JSON list of lists as a table: a third of the client's cost of arrays.

    As ``jsonb``, which is parsed once: each ``->>`` of a ``json`` value reads all that is before its place.
    """
    read = ", ".join(_postgres_column(index, name, kind) for index, (name, kind) in enumerate(columns))
    return f"(SELECT {read} FROM jsonb_array_elements({parameter}::jsonb))"  # noqa: S608  # our own words


def _postgres_column(index: int, name: str, kind: str) -> str:
    if kind == "jsonb":
        return f"value->{index} AS {name}"
    return f"(value->>{index}){'' if kind == 'text' else f'::{kind}'} AS {name}"
