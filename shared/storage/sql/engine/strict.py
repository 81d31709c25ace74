"""Values of columns that a worker's role writes, read as what a stranger wrote (OPS-12).

A function here returns what a program of ours may have written, or raises :class:`MalformedError`. A reader of rows
catches that for each row: one malformed row fails or is passed over, and the others are read.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from soong.shared.core.jsontext import MAX_DEPTH, Json, JsonObject, deeper_than
from soong.shared.engine.runs.record import Usage
from soong.shared.storage.sql.engine.columns import MAX_CHARS, MAX_COUNT, MAX_WORD_CHARS
from soong.shared.storage.sql.engine.texts import unpack

T = TypeVar("T")

MAX_COST_USD: Final = Decimal(1_000_000_000)
MAX_COST_DIGITS: Final = 60
MAX_SHOWN_CHARS: Final = 200


class MalformedError(ValueError):
    """A column holds what no program of ours writes; the text says which one, and why."""


@dataclass(slots=True)
class RowReader:
    """The reading of one row: what cannot be read is replaced, and noted in ``problems``."""

    problems: list[str] = field(default_factory=list)

    def take(self, read: Callable[[], T], instead: T) -> T:
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


def document_of(column: str, text: Any, kind: str, most: int) -> Any:
    """Return the value of a column that holds JSON of a kind; a list is one of words. Raises: MalformedError."""
    if kind == "object":
        return object_of(column, text, most)
    return words_of(column, text, most) if kind == "array" else value_of(column, text, most)


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
