"""The limits on the values of a call, in and out: JSON, of a size and depth that every later reader can take.

Arguments come from a model and output from foreign code; neither is trusted to be JSON, small or shallow. Everything
here walks a value once and never deeper than ``MAX_DEPTH``, so that nothing behind it needs a recursion limit.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from operator import is_
from typing import Final

from soong.shared.core.jsontext import MAX_BYTES, MAX_SAFE_INTEGER, Json

MAX_DEPTH: Final = 100
MAX_INTEGER_BITS: Final = 1024
"""Integers of output beyond 308 digits are refused: no reader takes them, and Python refuses to write some."""

_SHOWN_KEY: Final = 80


class UnfitError(ValueError):
    """The value cannot be taken. ``path`` is the place below the root, ``rule`` what it breaks there."""

    def __init__(self, path: str, rule: str, problem: str) -> None:
        self.path, self.rule, self.problem = path, rule, problem
        super().__init__(f"${path[:400]}: {problem}")

    def below(self, step: str) -> "UnfitError":
        return UnfitError(step + self.path, self.rule, self.problem)


def check_incoming(value: object, *, max_chars: int = MAX_BYTES) -> None:
    """Refuse arguments that are too large or nested too deep, without reading on (SCH-03).

    Counts characters of texts and keys, and one for every value; stops at the limit.
    Raises: UnfitError, it is too large, too deep, or not JSON.
    """
    room = max_chars
    level: list[object] = [value]
    for _ in range(MAX_DEPTH + 1):
        following: list[object] = []
        for item in level:
            room -= _weight(item)
            if room < 0:
                raise UnfitError("", "size", f"is larger than {max_chars} characters")
            if isinstance(item, Mapping):
                following.extend(item.values())
            elif isinstance(item, list):
                following.extend(item)
        if not following:
            return
        level = following
    raise UnfitError("", "depth", f"is nested deeper than {MAX_DEPTH} levels")


def _weight(item: object) -> int:
    if isinstance(item, str):
        return 1 + len(item)
    if item is None or isinstance(item, bool):
        return 1
    if isinstance(item, int):
        if abs(item) > MAX_SAFE_INTEGER:
            raise UnfitError("", "integer", "holds an integer beyond 2^53, which other readers would round")
        return 1
    if isinstance(item, float):
        if not isfinite(item):
            raise UnfitError("", "number", f"holds {item}, which is not a JSON number")
        return 1
    if isinstance(item, list):
        return 1 + len(item)
    if isinstance(item, Mapping):
        return 1 + sum(len(key) if isinstance(key, str) else _not_json(key) for key in item)
    return _not_json(item)


def _not_json(item: object) -> int:
    raise UnfitError("", "type", f"holds a {type(item).__name__}, which is not JSON")


def storable(text: str) -> str:
    """Return text that databases, files and providers take: lone surrogates become U+FFFD; the same object if fit."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def plain(value: object, depth: int = 0) -> Json:
    """Return output as plain JSON data that can be stored; the same object where nothing had to change.
    Raises: UnfitError, something in it is not JSON, or it is nested too deep.
    """
    if isinstance(value, str):
        return storable(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if isinstance(value, int):
            if value.bit_length() > MAX_INTEGER_BITS:
                raise UnfitError("", "integer", f"an integer of {value.bit_length()} bits is too large")
        elif not isfinite(value):
            raise UnfitError("", "number", f"{value} is not a JSON number")
        return value
    if isinstance(value, list | tuple | Mapping) and depth == MAX_DEPTH:
        raise UnfitError("", "depth", f"it is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, list | tuple):
        return _plain_list(value, depth)
    if isinstance(value, Mapping):
        return _plain_object(value, depth)
    raise UnfitError("", "type", f"a {type(value).__name__} is not JSON")


def _plain_object(value: Mapping[object, object], depth: int) -> Json:
    pairs: dict[str, Json] = {}
    is_same = isinstance(value, dict)
    for key, item in value.items():
        if not isinstance(key, str):
            problem = f"the key {str(key)[:_SHOWN_KEY]!r} is a {type(key).__name__}; JSON keys are texts"
            raise UnfitError("", "key", problem)
        try:
            kept = plain(item, depth + 1)
        except UnfitError as error:
            raise error.below(f".{key[:_SHOWN_KEY]}") from None
        name = storable(key)
        is_same = is_same and name is key and kept is item
        pairs[name] = kept
    return value if is_same else pairs  # type: ignore[return-value]  # a dict whose keys and values were all checked


def _plain_list(value: Sequence[object], depth: int) -> Json:
    items: list[Json] = []
    for index, item in enumerate(value):
        try:
            items.append(plain(item, depth + 1))
        except UnfitError as error:
            raise error.below(f"[{index}]") from None
    is_same = isinstance(value, list) and all(map(is_, items, value))
    return value if is_same else items  # type: ignore[return-value]  # a list whose items were all checked


def integral(value: Json) -> Json:
    """Return a value with integral floats as integers: JSON knows no difference, Python's ``range`` does.

    The digest stays the same (RFC 8785 writes both alike). The same object when it holds no such number.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < MAX_SAFE_INTEGER else value
    if isinstance(value, dict):
        pairs = {key: integral(item) for key, item in value.items()}
        return pairs if any(pairs[key] is not item for key, item in value.items()) else value
    if isinstance(value, list):
        items = [integral(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value
