"""The one schema language inside: JSON Schema 2020-12 in a small subset (SCH-01, SCH-03), for programs and for people.

Owns what a schema may say, whether a value holds to it, and its arguments in words: ``soong tools show`` and
``docs/reference/tools.md`` are both made of these. Getting a Pydantic model into the subset is
:mod:`soong.shared.tools.foreign_schema`. Messages name places as ``$.a[0].b`` and never repeat a value: it may be
a secret.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from soong.shared.core.errors import InvalidJsonError, InvalidToolError
from soong.shared.core.jsontext import MAX_SAFE_INTEGER, Json, JsonObject, deeper_than, dotted, parse_strict
from soong.shared.core.value import Value
from soong.shared.tools.limits import integral

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError


MAX_SCHEMA_DEPTH: Final = 32
MAX_VALUE_DEPTH: Final = 100
MAX_VIOLATIONS: Final = 20
MAX_NAME_CHARS: Final = 256
"""Length of a property's name."""

TYPES: Final = ("object", "string", "number", "integer", "boolean", "array")
_ANYWHERE: Final = frozenset({"type", "description", "title", "default", "enum"})
_BY_TYPE: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength"}),
    "number": frozenset({"minimum", "maximum"}),
    "integer": frozenset({"minimum", "maximum"}),
    "boolean": frozenset(),
}
_COUNTS: Final = frozenset({"minItems", "maxItems", "minLength", "maxLength"})
_SUPPORTED: Final = _ANYWHERE.union(*_BY_TYPE.values())


def text_of(call_input: JsonObject, name: str, default: str = "") -> str:
    value = call_input.get(name, default)
    return value if isinstance(value, str) else default


def number_of(call_input: JsonObject, name: str, default: int) -> int:
    """Return a validated integer field; JSON Schema counts 1.0 among the integers."""
    value = call_input.get(name, default)
    return int(value) if isinstance(value, int | float) else default


def flag_of(call_input: JsonObject, name: str, *, default: bool) -> bool:
    value = call_input.get(name, default)
    return value if isinstance(value, bool) else default


def string(description: str, **limits: Json) -> dict[str, Json]:
    return {"type": "string", "description": description, **limits}


def integer(description: str, default: int, minimum: int, maximum: int | None = None) -> dict[str, Json]:
    schema: dict[str, Json] = {"type": "integer", "description": description, "default": default, "minimum": minimum}
    return schema if maximum is None else {**schema, "maximum": maximum}


def flag(description: str, *, default: bool) -> dict[str, Json]:
    return {"type": "boolean", "description": description, "default": default}


def arguments(*required: str, **properties: Json) -> dict[str, Json]:
    schema: dict[str, Json] = {"type": "object", "properties": properties}
    return {**schema, "required": list(required)} if required else schema


class Violation(Value):
    """One rule that does not hold: where, which keyword, and what would hold."""

    path: str
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def check_schema(schema: JsonObject, *, tool: str, part: str = "input_schema") -> None:
    """Hold a schema to the subset.
    Raises: InvalidToolError, names the place and the keyword; an input schema must describe an object.
    """
    problem = next(schema_problems(schema), None)
    if problem is not None:
        raise InvalidToolError(tool, f"{part} {problem}")
    if part == "input_schema" and schema.get("type") != "object":
        raise InvalidToolError(tool, "input_schema $: its type is not 'object'; a tool takes named arguments")


def schema_problems(schema: Json, path: str = "$", depth: int = 0) -> Iterator[Violation]:
    """Yield the parts of a schema outside the subset, in document order. No type means any value."""
    if not isinstance(schema, Mapping):
        yield Violation(path, "schema", "is not a schema object")
        return
    if depth > MAX_SCHEMA_DEPTH:
        yield Violation(path, "depth", f"is nested deeper than {MAX_SCHEMA_DEPTH} levels")
        return
    kind = schema.get("type")
    if "type" in schema and kind not in TYPES:
        yield Violation(f"{path}.type", "type", f"is {kind!r}; it must be one of {', '.join(TYPES)}")
        return
    allowed = _ANYWHERE | (_BY_TYPE[str(kind)] if kind is not None else frozenset())
    for keyword, value in schema.items():
        if keyword not in allowed:
            yield Violation(f"{path}.{keyword}", keyword, _unsupported(keyword, kind))
        else:
            yield from _keyword_problems(keyword, value, schema, path, depth)


def close(schema: JsonObject) -> dict[str, Json]:
    """Return an input schema in which every object that lists properties refuses others by default."""
    closed: dict[str, Json] = dict(schema)
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        closed["properties"] = {
            name: close(part) if isinstance(part, Mapping) else part for name, part in properties.items()
        }
    items = schema.get("items")
    if isinstance(items, Mapping):
        closed["items"] = close(items)
    if isinstance(properties, Mapping):
        closed.setdefault("additionalProperties", False)
    return closed


def validate(schema: JsonObject, value: Json) -> list[Violation]:
    """Return how a value breaks a schema; empty when it holds. At most ``MAX_VIOLATIONS``, in document order.

    The compiled form is kept by the schema's identity: schemas are immutable once registered.
    """
    if deeper_than(value, MAX_VALUE_DEPTH):
        return [Violation("$", "depth", f"is nested deeper than {MAX_VALUE_DEPTH} levels")]
    found: list[Violation] = []
    for error in _compiled(schema).iter_errors(value):
        found.append(Violation(dotted(("$", *error.absolute_path)), str(error.validator), _say(error)))
        if len(found) == MAX_VIOLATIONS:
            break
    return found


def repaired(schema: JsonObject, value: Json) -> Json:
    """Return a value with clear errors repaired; the same object if nothing is, or nothing can be.

    Null for an optional field that takes no null is the field left out. Text that is exactly the JSON of the list,
    object, number or boolean in the schema becomes that value; it stays text if text is allowed.
    """
    if not validate(schema, value):
        return value
    return _repaired(schema, value)


def _repaired(schema: Json, value: Json) -> Json:
    if not isinstance(schema, Mapping):
        return value
    kind = schema.get("type")
    if isinstance(value, str) and kind in _MEANT:
        with suppress(InvalidJsonError):
            meant = integral(parse_strict(value))
            if _type_of(meant) in _MEANT[kind]:
                return _repaired(schema, meant)
        return value
    if kind == "array" and isinstance(value, list):
        return [_repaired(schema.get("items"), item) for item in value]
    properties = schema.get("properties")
    if kind != "object" or not isinstance(value, dict) or not isinstance(properties, Mapping):
        return value
    left_out = {name for name, item in value.items() if item is None and _takes_no_null(schema, properties, name)}
    return {name: _repaired(properties.get(name), item) for name, item in value.items() if name not in left_out}


def _takes_no_null(schema: JsonObject, properties: JsonObject, name: str) -> bool:
    """Say whether a field may be left out and may not be null: no type of a schema is null's."""
    part, required = properties.get(name), schema.get("required", ())
    return isinstance(part, Mapping) and "type" in part and _is_list(required) and name not in required


_MEANT: Final[Mapping[Json, tuple[str, ...]]] = {
    "object": ("object",),
    "array": ("array",),
    "number": ("number", "integer"),
    "integer": ("integer",),
    "boolean": ("boolean",),
}
"""The types that text may be read as, by the type in the schema."""

_CACHE: OrderedDict[int, tuple[JsonObject, "Draft202012Validator"]] = OrderedDict()


def _compiled(schema: JsonObject) -> "Draft202012Validator":
    # The entry holds the schema itself, so that its id cannot be given to another object meanwhile.
    entry = _CACHE.get(id(schema))
    if entry is not None:
        return entry[1]
    from jsonschema import Draft202012Validator  # 60 ms that `soong --help` does not pay

    validator = Draft202012Validator(dict(schema))
    if len(_CACHE) >= 2048:
        _CACHE.popitem(last=False)
    _CACHE[id(schema)] = (schema, validator)
    return validator


def _unsupported(keyword: str, kind: Json) -> str:
    if keyword in _SUPPORTED:
        return f"says nothing about {'a value without type' if kind is None else f'type {kind!r}'}; remove it"
    known = ", ".join(sorted(_SUPPORTED))
    return f"is not supported; a schema may use {known}"


def _keyword_problems(keyword: str, value: Json, schema: JsonObject, path: str, depth: int) -> Iterator[Violation]:
    place = f"{path}.{keyword}"
    match keyword:
        case "properties":
            yield from _properties_problems(value, place, depth)
        case "items":
            yield from schema_problems(value, place, depth + 1)
        case "required":
            yield from _required_problems(value, schema, place)
        case "enum":
            if not _is_list(value) or not value:
                yield Violation(place, keyword, "is not a list with at least one value")
        case "additionalProperties" if not isinstance(value, bool):
            yield Violation(place, keyword, "is not true or false; a schema here is not supported")
        case "description" | "title" if not isinstance(value, str):
            yield Violation(place, keyword, "is not a string")
        case "minimum" | "maximum" if isinstance(value, bool) or not isinstance(value, int | float):
            yield Violation(place, keyword, "is not a number")
        case _ if keyword in _COUNTS and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            yield Violation(place, keyword, "is not an integer from 0 up")


def _properties_problems(value: Json, place: str, depth: int) -> Iterator[Violation]:
    if not isinstance(value, Mapping):
        yield Violation(place, "properties", "is not an object of schemas")
        return
    for name, part in value.items():
        if len(name) > MAX_NAME_CHARS:  # each part below it would be named by it
            shown = f"{place}.{name[:MAX_NAME_CHARS]}…"
            yield Violation(shown, "properties", f"has a name of {len(name):,} characters; at most {MAX_NAME_CHARS}")
            continue
        yield from schema_problems(part, f"{place}.{name}", depth + 1)


def _required_problems(value: Json, schema: JsonObject, place: str) -> Iterator[Violation]:
    properties = schema.get("properties")
    known = set(properties) if isinstance(properties, Mapping) else set()
    if not _is_list(value) or not all(isinstance(name, str) for name in value):
        yield Violation(place, "required", "is not a list of property names")
        return
    for name in value:
        if name not in known:
            yield Violation(place, "required", f"names {name!r}, which is not among the properties")


def _is_list(value: Json) -> TypeGuard[Sequence[Json]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _say(error: "ValidationError") -> str:
    rule: Any = error.validator_value
    instance: Any = error.instance
    match error.validator:
        case "type":
            return f"must be {rule}, is {_type_of(error.instance)}"
        case "required":
            missing = [name for name in rule if name not in instance]
            return f"lacks {', '.join(map(repr, missing))}"
        case "additionalProperties":
            known = error.schema.get("properties", {}) if isinstance(error.schema, Mapping) else {}
            extra = sorted(str(name)[:60] for name in instance if name not in known)
            taken = ", ".join(map(repr, known)) or "none"
            return f"has unknown fields {', '.join(map(repr, extra[:5]))}; it takes {taken}"
        case "enum":
            return f"must be one of {', '.join(map(repr, rule[:20]))}"
        case _:
            return f"breaks {error.validator} {rule!r}"


def _type_of(value: object) -> str:
    names: dict[type, str] = {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        dict: "object",
        list: "array",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


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
