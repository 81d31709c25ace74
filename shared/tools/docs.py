"""The description of a tool for people: its arguments, its limits, how its calls may end. From the definition alone.

``soong tools show`` and ``docs/reference/tools.md`` say the same because both are made of this.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from soong.shared.core.jsontext import MAX_SAFE_INTEGER, Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.tools.result import ErrorType

EVERY_CALL: Mapping[str, tuple[ErrorType, ...]] = {
    "before it runs": (ErrorType.TOOL_NOT_AVAILABLE, ErrorType.INVALID_INPUT, ErrorType.HOOK_DENIED, ErrorType.NOT_RUN),
    "permission": (
        ErrorType.PERMISSION_DENIED,
        ErrorType.PERMISSION_TIMEOUT,
        ErrorType.PERMISSION_NO_CALLBACK,
        ErrorType.PERMISSION_FAILED,
        ErrorType.PERMISSION_WITHDRAWN,
        ErrorType.PERMISSION_STALE,
        ErrorType.NETWORK_DENIED,
    ),
    "while it runs": (
        ErrorType.TIMEOUT,
        ErrorType.ABORTED,
        ErrorType.EXECUTION_FAILED,
        ErrorType.SANDBOX_DENIED,
        ErrorType.INVALID_OUTPUT,
        ErrorType.UNKNOWN_AFTER_CRASH,
    ),
}
"""How any call may end, whatever its tool: these are not repeated in a definition's ``errors``."""

_BOUNDS = (("minimum", "maximum", ""), ("minLength", "maxLength", " characters"), ("minItems", "maxItems", " items"))


class ArgumentDoc(Value):
    """One argument, or a field inside one (``edits[].old_text``). ``says`` is its type with its bounds, for people."""

    name: str
    says: str
    is_required: bool
    default: Json
    description: str


def arguments_of(schema: JsonObject) -> tuple[ArgumentDoc, ...]:
    """Return the arguments of an input schema in its order, each before the fields inside it."""
    return tuple(_fields(schema, ""))


def first_sentence(text: str) -> str:
    """Return a description's first sentence, on one line."""
    line = " ".join(text.split())
    sentence, dot, _ = line.partition(". ")
    return f"{sentence}." if dot else line


def _fields(schema: JsonObject, prefix: str) -> Iterator[ArgumentDoc]:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping):
        return
    names = required if isinstance(required, Sequence) else ()
    for name, part in properties.items():
        if isinstance(part, Mapping):
            place = f"{prefix}{name}"
            description = " ".join(str(part.get("description") or "").split())
            yield ArgumentDoc(place, _says(part), name in names, part.get("default"), description)
            yield from _inner(part, place)


def _inner(part: JsonObject, place: str) -> Iterator[ArgumentDoc]:
    items = part.get("items")
    if isinstance(items, Mapping):
        yield from _fields(items, f"{place}[].")
    yield from _fields(part, f"{place}.")


def _says(part: JsonObject) -> str:
    kind = str(part.get("type") or "any value")
    items = part.get("items")
    if kind == "array" and isinstance(items, Mapping):
        kind = f"array of {items.get('type') or 'any value'}"
    choice = part.get("enum")
    if isinstance(choice, Sequence) and not isinstance(choice, str):
        return f"{kind}: {', '.join(_text(value) for value in choice)}"
    bounds = (_range(part.get(low), part.get(high), unit) for low, high, unit in _BOUNDS)
    return ", ".join((kind, *filter(None, bounds)))


def _range(low: Json, high: Json, unit: str) -> str:
    """Return what lies between two bounds; one that every number keeps is none."""
    has_high = isinstance(high, int | float) and high < MAX_SAFE_INTEGER - 1
    if low is None or (low == 1 and unit and has_high):
        return f"at most {_text(high)}{unit}" if has_high else ""
    return f"{_text(low)} to {_text(high)}{unit}" if has_high else f"{_text(low)} or more{unit}"


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
