"""JSON at the borders: strict reading, plain writing, canonical digests.

Strict means what the standard library does not: duplicate keys, NaN and Infinity, integers that a
JavaScript reader would round, half characters, and documents nested or sized to hurt the reader are refused
(RFC 8259; RFC 7493 I-JSON for numbers and strings).
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import rfc8785

from soong.shared.core.errors import InvalidJsonError

if TYPE_CHECKING:
    Json: TypeAlias = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
    """A JSON value as plain Python data. Treated as immutable once it has left its maker."""
else:
    Json = Any  # msgspec reads no type that names itself

JsonObject: TypeAlias = Mapping[str, Json]

MAX_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 200
MAX_SAFE_INTEGER = 2**53


def parse_strict(text: str | bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Json:
    """Read one JSON document or say exactly why it is not one.
    Raises: InvalidJsonError, not JSON, too large, too deep, a duplicate key, NaN/Infinity, or a number out of range.
    """
    size = len(text)  # at most a text's bytes: a far too large one is refused without a copy being made
    if size <= max_bytes:
        try:
            size = len(text.encode("utf-8") if isinstance(text, str) else text)
            text = text if isinstance(text, str) else text.decode("utf-8")
        except UnicodeError as error:
            raise InvalidJsonError(f"the document is not UTF-8: {error}") from error
    if size > max_bytes or not isinstance(text, str):
        raise InvalidJsonError(f"the document has {size} bytes; at most {max_bytes} are read")
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise InvalidJsonError(f"the document is nested deeper than {max_depth} levels") from error
    except ValueError as error:
        raise InvalidJsonError(str(error)) from error
    if deeper_than(value, max_depth):
        raise InvalidJsonError(f"the document is nested deeper than {max_depth} levels")
    if "\\u" in text:
        _refuse_surrogates(value)
    return cast(Json, value)


_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def dump(value: object) -> str:
    """Write compact JSON for storage and wire; refuses NaN and what JSON cannot say."""
    return _encode(value)


def canonical(value: Json) -> bytes:
    """Return the RFC 8785 form: equal values, equal bytes.
    Raises: InvalidJsonError, the value has no canonical form (NaN, an integer beyond 2^53, a lone surrogate).
    """
    try:
        return rfc8785.dumps(cast(Any, value))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise InvalidJsonError(f"the value has no canonical form: {error}") from error


def digest(value: Json) -> str:
    """Return the lower-case hexadecimal SHA-256 of the canonical form."""
    return hashlib.sha256(canonical(value)).hexdigest()


def _refuse_surrogates(value: object) -> None:
    # Half of a character can be escaped in JSON and stored nowhere.
    text = dump(value)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        shown = ascii(text[max(0, error.start - 30) : error.start + 30])
        raise InvalidJsonError(f"a string holds a lone surrogate, which is not Unicode: {shown}") from error


def refuse_constant(name: str) -> object:
    """Refuse NaN and Infinity, as a decoder's ``parse_constant``."""
    raise InvalidJsonError(f"{name} is not a JSON number")


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise InvalidJsonError(f"duplicate key {key!r} in one object")
        result[key] = value
    return result


def _safe_int(text: str) -> int:
    if len(text) > 17 or abs(int(text)) > MAX_SAFE_INTEGER:
        raise InvalidJsonError(f"the integer {text[:40]} is beyond 2^53 and would be rounded by other readers")
    return int(text)


def finite_float(text: str) -> float:
    """Return a number that is not infinite, as a decoder's ``parse_float``. Raises: InvalidJsonError."""
    value = float(text)
    if not math.isfinite(value):
        raise InvalidJsonError(f"the number {text[:40]} is too large for any reader")
    return value


_DECODER = json.JSONDecoder(
    parse_constant=refuse_constant, object_pairs_hook=_unique, parse_int=_safe_int, parse_float=finite_float
)
"""Made once: making it takes longer than a small document."""


def deeper_than(value: object, limit: int) -> bool:
    """Say whether a value that was read is nested deeper than ``limit`` levels; looks no deeper than that."""
    level: list[object] = [value]
    for _ in range(limit + 1):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict | list):
                below += item.values() if isinstance(item, dict) else item
        level = below
        if not level:
            return False
    return True
