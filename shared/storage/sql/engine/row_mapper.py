"""Rows as values and values as rows, by names: a field of a class is the column of its name.

Each column has its form (:mod:`soong.shared.storage.sql.engine.columns`); what workers write is read as strangers'
(:mod:`soong.shared.storage.sql.engine.strict`).
"""

from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Column, Table

from soong.shared.core.value import Value
from soong.shared.storage.sql.engine.strict import MalformedError, document_of, number_of, word_of
from soong.shared.storage.sql.engine.texts import pack, plain, unpack

T = TypeVar("T", bound=Value)


class RowMapper(Generic[T]):
    """``own`` reads fields that are not a column as it is, each from the row, and ``instead`` has what a malformed one
    of them is replaced by, where that is not nothing. Fields in ``without`` have other columns, or none.
    """

    def __init__(
        self,
        made: type[T],
        table: Table,
        *,
        own: Mapping[str, Callable[[Any], Any]] | None = None,
        instead: Mapping[str, Any] | None = None,
        without: Collection[str] = (),
    ) -> None:
        self._made = made
        own = own or {}
        names = [name for name in made.__struct_fields__ if name not in own and name not in without]
        columns = [table.columns[name] for name in names if name in table.columns]
        self._instead = {column.name: _empty(column) for column in columns} | dict(instead or {})
        self._readers = [(column.name, _reader(column)) for column in columns] + list(own.items())
        self._writers = [(column.name, attrgetter(column.name), _writer(column)) for column in columns]
        self.written: Final = tuple(column.name for column in columns)
        """The columns of :meth:`values`."""

    def read(self, row: Any) -> T:
        """Return the value of a row. Raises: MalformedError."""
        return self._made(**{name: read(row) for name, read in self._readers})

    def salvage(self, row: Any) -> tuple[dict[str, Any], str]:
        """Return the fields of a row, those that are malformed replaced, and what is malformed."""
        found: dict[str, Any] = {}
        problems: list[str] = []
        for name, read in self._readers:
            try:
                found[name] = read(row)
            except MalformedError as error:
                problems.append(str(error))
                found[name] = self._instead.get(name)
        return found, "; ".join(problems)

    def values(self, value: object) -> dict[str, Any]:
        """Return what a row holds of a value, by column."""
        return {name: write(get(value)) for name, get, write in self._writers}


def _reader(column: Column[Any]) -> Callable[[Any], Any]:
    get, read = attrgetter(column.name), _decoder(column)
    if read is None:
        return get
    if column.nullable:
        return lambda row: None if (value := get(row)) is None else read(value)
    return lambda row: read(get(row))


def _decoder(column: Column[Any]) -> Callable[[Any], Any] | None:
    """Return how a value that is not null is read; None: as it is."""
    name, info = column.name, column.info
    is_strict = bool(info.get("worker"))
    match info.get("form"):
        case "choice":
            words: Callable[[Any], Any] = info["words"]
            return words
        case "flag":
            return bool
        case "document":
            kind, most = info["kind"], info["most"]
            if is_strict:
                return lambda text: document_of(name, text, kind, most)
            return (lambda text: tuple(unpack(text))) if kind == "array" else unpack
        case "number" if is_strict:
            return lambda value: number_of(name, value)
        case "word" if "INSERT" in info["worker"]:
            return lambda value: word_of(name, value)
    return None


def _writer(column: Column[Any]) -> Callable[[Any], Any]:
    write = _WRITERS.get(column.info.get("form", ""), _as_it_is)
    return (lambda value: None if value is None else write(value)) if column.nullable else write


def _empty(column: Column[Any]) -> Any:
    """Return what a malformed value is replaced by."""
    if column.nullable:
        return None
    return {} if column.info.get("kind") == "object" else _EMPTY.get(column.info.get("form", ""))


def _as_it_is(value: Any) -> Any:
    return value


_WRITERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "choice": str,
    "flag": int,
    "document": pack,
    "word": plain,
}

_EMPTY: Final[Mapping[str, Any]] = {"document": (), "number": 0, "word": ""}
