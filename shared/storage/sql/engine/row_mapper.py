"""Rows as values and values as rows, by names: a field of a class is the column of its name.

Each column has its form (:mod:`soong.shared.storage.sql.engine.columns`). Rows that a worker's role can write are
untrusted (OPS-12): a reader here returns a value that a program of ours may have written, or raises
:class:`MalformedError`. Readers of rows catch that for each row: one malformed row fails or is passed over.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from msgspec.structs import replace
from sqlalchemy import Column, Table

from soong.shared.core.jsontext import MAX_DEPTH, Json, JsonObject, deeper_than, finite_float, refuse_constant
from soong.shared.core.value import Value
from soong.shared.engine.runs.record import Usage
from soong.shared.storage.sql.engine.columns import MAX_CHARS, MAX_COUNT, MAX_WORD_CHARS

encode_ascii: Final = json.JSONEncoder(check_circular=False, allow_nan=False, separators=(",", ":")).encode
_encode: Final = json.JSONEncoder(
    check_circular=False, allow_nan=False, separators=(",", ":"), ensure_ascii=False
).encode


def pack(value: object) -> str:
    """Return JSON text for a column. Lone surrogates, which no database takes as text, are escaped."""
    text = _encode(value)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return encode_ascii(value)
    return text


def unpack(text: str) -> Any:
    """Return the value of JSON text. Raises: ValueError, RecursionError."""
    try:
        # Ours has no blanks around it; to look for them takes as long as to read what is there.
        value, end = _DECODER.raw_decode(text)
    except ValueError:
        value, end = None, -1
    return value if end == len(text) else _DECODER.decode(text)


def plain(text: str) -> str:
    """Return free text as both databases can keep it: NUL and lone surrogates become U+FFFD."""
    if text.isascii():
        return text.replace("\0", "\ufffd") if "\0" in text else text
    return text.replace("\0", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def digest_of(text: str) -> str:
    """Return the SHA-256 of stored text."""
    return hashlib.sha256(text.encode()).hexdigest()


_DECODER: Final = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite_float)
"""Less strict than what comes from outside: outputs may hold integers beyond 2^53, and half characters as escapes."""


Read = TypeVar("Read")

MAX_COST_USD: Final = Decimal(1_000_000_000)
MAX_COST_DIGITS: Final = 60
MAX_SHOWN_CHARS: Final = 200

T = TypeVar("T", bound=Value)


class MalformedError(ValueError):
    """A column holds what no program of ours writes; the text names it, and the reason."""


@dataclass(slots=True)
class RowReader:
    """The reading of one row: an unreadable value is replaced, and noted in ``problems``."""

    problems: list[str] = field(default_factory=list)

    def take(self, read: Callable[[], Read], instead: Read) -> Read:
        """Return what ``read`` returns, or ``instead`` when that is malformed."""
        try:
            return read()
        except MalformedError as error:
            self.problems.append(str(error))
            return instead

    def object(self, column: str, text: Any, most: int = MAX_CHARS) -> dict[str, Any]:
        """Return what :func:`object_of` does, or an empty object."""
        return self.take(lambda: object_of(column, text, most), {})

    def instant(self, column: str, value: Any) -> int | None:
        """Return what :func:`instant_of` does, or None."""
        return self.take(lambda: instant_of(column, value), None)

    @property
    def problem(self) -> str:
        """All problems as one text, empty for a row that is as it should be."""
        return "; ".join(self.problems)


def value_of(column: str, text: Any, most: int = MAX_CHARS, depth: int = MAX_DEPTH) -> Json:
    """Return the value of a JSON column. Raises: MalformedError."""
    if not isinstance(text, str) or len(text) > most:
        raise MalformedError(f"{column} is longer than {most} characters")
    try:
        value: Json = unpack(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{column} is not JSON: {_words_of(error)}") from error
    if text.count("[") + text.count("{") > depth and deeper_than(value, depth):
        raise MalformedError(f"{column} is nested deeper than {depth} levels")
    return value


def object_of(column: str, text: Any, most: int = MAX_CHARS) -> dict[str, Any]:
    """Return the value of a column that holds a JSON object. Raises: MalformedError."""
    value = value_of(column, text, most)
    if not isinstance(value, dict):
        raise MalformedError(f"{column} is {_kind(value)}, not an object")
    return value


def words_of(column: str, text: Any, most: int = MAX_WORD_CHARS) -> tuple[str, ...]:
    """Return the value of a column that holds a JSON list of words. Raises: MalformedError."""
    value = value_of(column, text, most)
    if not isinstance(value, list):
        raise MalformedError(f"{column} is {_kind(value)}, not a list of words")
    if not all(isinstance(word, str) for word in value):
        raise MalformedError(f"{column} holds what is not a word")
    return tuple(str(word) for word in value)


def word_of(column: str, value: Any) -> str:
    """Return the value of a column that holds a name. Raises: MalformedError."""
    if not isinstance(value, str) or len(value) > MAX_WORD_CHARS:
        raise MalformedError(f"{column} is longer than {MAX_WORD_CHARS} characters")
    return value


def number_of(column: str, value: Any, most: int = MAX_COUNT) -> int:
    """Return the value of a column that holds a count. Raises: MalformedError."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise MalformedError(f"{column} is {str(value)[:MAX_SHOWN_CHARS]}, not a number from 0 to {most}")
    return value


def instant_of(column: str, value: Any) -> int | None:
    """Return the value of a column that holds an instant in microseconds or NULL. Raises: MalformedError."""
    return None if value is None else number_of(column, value)


def usage_of(text: Any) -> Usage:
    """Return the usage in a run's row. Raises: MalformedError."""
    value = object_of("usage", text, MAX_WORD_CHARS)
    parts = value.get("by_model") or {}
    if not isinstance(parts, Mapping) or not all(isinstance(part, Mapping) for part in parts.values()):
        raise MalformedError(f"usage has {_kind(parts)} by model")
    return replace(_used(value), by_model={name: _used(part) for name, part in parts.items()})


def _used(value: JsonObject) -> Usage:
    names = ("requests", "input_tokens", "output_tokens", "tool_calls", "cached_tokens", "files")
    counts: dict[str, Any] = {name: number_of("usage", value.get(name) or 0) for name in names}
    return Usage(**counts, cost_usd=_cost_of(value.get("cost_usd")))


def _cost_of(value: Any) -> Decimal | None:
    if value is None:
        return None
    with suppress(InvalidOperation):
        cost = Decimal(str(value))
        exponent = cost.as_tuple().exponent  # a word, of what is not a number
        if isinstance(exponent, int) and abs(exponent) <= MAX_COST_DIGITS and 0 <= cost <= MAX_COST_USD:
            return cost
    raise MalformedError(f"usage names {str(value)[:MAX_SHOWN_CHARS]!r} as its cost")


def _kind(value: Json) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    return {str: "a text", bool: "a truth value", type(None): "null"}.get(type(value), "a number")


def _words_of(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error)[:MAX_SHOWN_CHARS]


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
        self._writers = [(column.name, _writer(column)) for column in columns]
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
        return {name: write(value) for name, write in self._writers}


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
                document: Callable[[str, Any, int], Any] = {"object": object_of, "array": words_of}.get(kind, value_of)
                return lambda text: document(name, text, most)
            return (lambda text: tuple(unpack(text))) if kind == "array" else unpack
        case "number" if is_strict:
            return lambda value: number_of(name, value)
        case "word" if "INSERT" in info["worker"]:
            return lambda value: word_of(name, value)
    return None


def _writer(column: Column[Any]) -> Callable[[Any], Any]:
    get, write = attrgetter(column.name), _WRITERS.get(column.info.get("form", ""))
    if write is None:
        return get
    if column.nullable:
        return lambda value: None if (given := get(value)) is None else write(given)
    return lambda value: write(get(value))


def _empty(column: Column[Any]) -> Any:
    """Return what a malformed value is replaced by."""
    if column.nullable:
        return None
    return {} if column.info.get("kind") == "object" else _EMPTY.get(column.info.get("form", ""))


_WRITERS: Final[Mapping[str, Callable[[Any], Any]]] = {"choice": str, "flag": int, "document": pack, "word": plain}

_EMPTY: Final[Mapping[str, Any]] = {"document": (), "number": 0, "word": ""}
