"""JSON Schemas of Pydantic, of other libraries and of MCP servers as schemas of the core subset (SCH-02, MCP-01.b).

References are put in their place, ``anyOf`` with null becomes an optional field, annotations without an effect on
validity are dropped. A schema of a library is the tool's own check: anything else outside the subset is refused by name
rather than weakened in silence. A server checks every call itself, so a rule that only narrows a value (a pattern, a
format) may be left out here. A rule on the shape of a value may not: a list of types becomes a field of any type that
names them; a schema outside the subset (a choice between objects, a type that holds itself) takes any value, and its
description has the schema. A schema that is not valid is refused with its place. A schema of results is made wider: it
refuses nothing that the server's own accepts.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from soong.shared.core.errors import InvalidToolError
from soong.shared.core.jsontext import Json, dump
from soong.shared.tools.schema import MAX_SCHEMA_DEPTH, TYPES, schema_problems

if TYPE_CHECKING:
    from pydantic import BaseModel

MAX_SCHEMA_PARTS: Final = 5_000
"""References that refer to each other twice, thirty levels deep, would be a schema of a billion parts."""

_KEPT: Final = frozenset(
    {
        "type",
        "description",
        "title",
        "default",
        "enum",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
    }
)
_ANNOTATIONS: Final = {"discriminator"}.union(
    ("$defs", "$comment", "examples", "deprecated", "readOnly", "writeOnly", "format", "contentMediaType")
)
_OF_TYPE: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength"}),
    "number": frozenset({"minimum", "maximum"}),
    "integer": frozenset({"minimum", "maximum"}),
}
_EVERY_TYPES: Final = frozenset().union(*_OF_TYPE.values())


MAX_SHOWN_CHARS: Final = 1_500
"""How much of a schema that the subset cannot say is put into a description."""


class SchemaRefusedError(ValueError):
    """A schema that is not valid, or too large; the message names the place."""


class _UnsayableError(Exception):
    """A valid schema that the subset cannot say."""


def from_pydantic(model: "type[BaseModel]", *, tool: str = "") -> dict[str, Json]:
    """Return the model's schema in the subset.
    Raises: InvalidToolError, the model needs what the subset cannot say; names the field and the keyword.
    """
    return from_json_schema(model.model_json_schema(), tool=tool or model.__name__, of=f"the model {model.__name__}")


def from_json_schema(exported: Mapping[str, Any], *, tool: str, of: str = "its schema") -> dict[str, Json]:
    """Return a schema that a library made of annotations, brought into the subset.
    Raises: InvalidToolError, it needs what the subset cannot say; names the field and the keyword.
    """
    try:
        return _checked(_Simplifier(exported, is_strict=True).simplified(exported, "$", 0))
    except SchemaRefusedError as error:
        raise InvalidToolError(tool, f"{of} cannot be a tool's input: {error}") from error


def input_schema(native: object) -> dict[str, Json]:
    """Return the schema of a tool's arguments in the subset. An empty one takes any named arguments.
    Raises: SchemaRefusedError, it is not the schema of an object.
    """
    if not isinstance(native, Mapping):
        raise SchemaRefusedError("is missing" if native is None else f"{str(native)[:40]!r} is not a schema object")
    schema = _Simplifier(native).simplified(native, "$", 0)
    schema.setdefault("type", "object")
    if schema["type"] != "object":
        raise SchemaRefusedError(f"$.type: is {schema['type']!r}; a tool takes named arguments, an object")
    schema.pop("default", None)
    return _checked(schema)


def output_schema(native: Mapping[str, Any]) -> dict[str, Json] | None:
    """Return a schema that takes whatever the schema of a tool's results takes; None for an inexpressible one."""
    try:
        return _checked(_Simplifier(native, is_wider=True).simplified(native, "$", 0))
    except SchemaRefusedError:
        return None


def _checked(schema: dict[str, Json]) -> dict[str, Json]:
    problem = next(schema_problems(schema), None)
    if problem is not None:
        raise SchemaRefusedError(str(problem))
    return schema


class _Simplifier:
    """Simplifies one document. ``is_wider``: an inexpressible part takes any value instead of being refused;
    ``is_strict``: all of it is refused.
    """

    def __init__(self, document: Mapping[str, Any], *, is_wider: bool = False, is_strict: bool = False) -> None:
        self._document = document
        self._is_wider, self._is_strict = is_wider, is_strict
        self._parts = 0
        self._within: list[str] = []
        """The references in whose place a part lies."""

    def simplified(self, node: object, path: str, depth: int) -> dict[str, Json]:
        outside = len(self._within)
        try:
            return self._simplified(node, path, depth)
        except _UnsayableError:
            del self._within[outside:]
            if self._is_strict:
                problem = "is a choice between types, or contains itself; take one type or two fields"
                raise SchemaRefusedError(f"{path}: {problem}") from None
            shown = dict(node) if isinstance(node, Mapping) else {}
            if "$ref" in shown:
                shown |= {**self._referred(shown.pop("$ref"), path), **shown}
            return {} if self._is_wider else _explained({}, shown, shown)
        finally:
            del self._within[outside:]

    def _simplified(self, node: object, path: str, depth: int) -> dict[str, Json]:
        self._parts += 1
        if self._parts > MAX_SCHEMA_PARTS:
            raise SchemaRefusedError(f"{path}: has more than {MAX_SCHEMA_PARTS} parts, with references in their place")
        if depth > MAX_SCHEMA_DEPTH:
            raise _UnsayableError
        if node is True:
            return {}
        if not isinstance(node, Mapping):
            raise SchemaRefusedError(f"{path}: {str(node)[:40]!r} is not a schema object")
        node = self._resolved(dict(node), path, depth)
        if "anyOf" in node or "oneOf" in node:
            return self._one_of(node, path, depth)
        kind = node.get("type")
        if isinstance(kind, Sequence) and not isinstance(kind, str):
            return self._of_types(node, kind, path, depth)
        return self._plain(node, path, depth)

    def _plain(self, node: dict[str, Any], path: str, depth: int) -> dict[str, Json]:
        """Return a node of one type, or of none."""
        kind = node.get("type")
        if kind is None and isinstance(node.get("properties"), Mapping):
            kind = node["type"] = "object"
        if kind is not None and kind not in TYPES:
            if (kind == "null" and not self._is_strict) or self._is_wider:
                return _annotated({}, node)
            raise SchemaRefusedError(f"{path}.type: is {str(kind)[:40]!r}; it must be one of {', '.join(TYPES)}")
        kept = node.keys() - _ANNOTATIONS if self._is_strict else node.keys() & _KEPT
        result: dict[str, Json] = {key: value for key, value in node.items() if key in kept}
        if "const" in node:
            result["enum"] = [node["const"]]
            result.pop("const", None)
        _bound(result, node)
        for keyword in () if self._is_strict else _EVERY_TYPES - _OF_TYPE.get(str(kind), frozenset()):
            result.pop(keyword, None)
        if result.get("default", ...) is None:
            del result["default"]
        self._children(result, node, path, depth)
        return _texts_only(result)

    def _children(self, result: dict[str, Json], node: dict[str, Any], path: str, depth: int) -> None:
        if "items" in result:
            items = node["items"]
            if isinstance(items, Mapping | bool):
                result["items"] = self.simplified(items, f"{path}.items", depth + 1)
            elif not self._is_strict:
                del result["items"]  # one schema for each place: the server checks them
        is_open = not isinstance(result.get("additionalProperties", False), bool)
        has_patterns = "patternProperties" in node and result.get("type") == "object"
        if (is_open or has_patterns) and not self._is_strict:
            result["additionalProperties"] = True
        if not isinstance(node.get("properties"), Mapping):
            result.pop("properties", None)
            result.pop("required", None)
            return
        self._properties(result, node, path, depth)

    def _properties(self, result: dict[str, Json], node: dict[str, Any], path: str, depth: int) -> None:
        properties: dict[str, Json] = {}
        optional: set[str] = set()
        for name, part in node["properties"].items():
            place = f"{path}.properties.{str(name)[:80]}"
            if self._takes_null(part, place, depth):
                optional.add(str(name))
            properties[str(name)] = self.simplified(part, place, depth + 1)
        result["properties"] = properties
        required = node.get("required")
        named = required if isinstance(required, list) else []
        # A required output may be null: for a reader it is the same as a missing one.
        kept: list[Json] = [name for name in named if name in properties and (self._is_wider or name not in optional)]
        result.pop("required", None)
        if kept:
            result["required"] = kept

    def _takes_null(self, part: object, path: str, depth: int) -> bool:
        if not isinstance(part, Mapping):
            return False
        outside = len(self._within)
        try:
            node = self._resolved(dict(part), path, depth)
        except _UnsayableError:
            return False
        finally:
            del self._within[outside:]
        kind = node.get("type")
        is_listed = isinstance(kind, list) and "null" in kind
        return is_listed or any(_is_null(each) for key in ("anyOf", "oneOf") for each in _branches(node, key))

    def _one_of(self, node: dict[str, Any], path: str, depth: int) -> dict[str, Json]:
        key = "anyOf" if "anyOf" in node else "oneOf"
        branches = _branches(node, key)
        rest = {name: value for name, value in node.items() if name not in ("oneOf", "anyOf", "allOf")}
        others = [branch for branch in branches if not _is_null(branch)]
        if self._is_wider and (len(others) != len(branches) or len(others) != 1):
            return _annotated({}, rest)
        if len(others) == 1:
            only = others[0]
            merged = {**only, **rest} if isinstance(only, Mapping) else rest
            return self.simplified(merged, path, depth + 1)
        if self._is_strict:
            raise _UnsayableError
        if "type" in rest or "properties" in rest:  # the choice narrows what has a shape already
            return _explained(self._simplified(rest, path, depth), rest, {key: branches})
        parts = [self.simplified(branch, f"{path}.{key}[{place}]", depth + 1) for place, branch in enumerate(others)]
        return self._united(parts, rest, f"{path}.{key}")

    def _of_types(self, node: dict[str, Any], kinds: Sequence[Any], path: str, depth: int) -> dict[str, Json]:
        others = [kind for kind in kinds if kind != "null"]
        if self._is_wider and (len(others) != 1 or len(others) != len(kinds)):
            return _annotated({}, node)
        rest = {name: value for name, value in node.items() if name != "type"}
        if len(others) == 1:
            return self._plain({**_without_null(rest), "type": others[0]}, path, depth)
        if self._is_strict:
            raise _UnsayableError
        parts = [self._plain({**rest, "type": kind}, path, depth) for kind in others]
        return self._united(parts, rest, f"{path}.type")

    def _united(self, parts: Sequence[dict[str, Json]], rest: Mapping[str, Any], place: str) -> dict[str, Json]:
        """Return one schema for a choice between simple values. Raises: SchemaRefusedError, _UnsayableError."""
        if not parts:
            raise SchemaRefusedError(f"{place}: lists nothing but null")
        kinds = list(dict.fromkeys(str(part.get("type", "any value")) for part in parts))
        enums = [part.get("enum") for part in parts]
        united: dict[str, Json] = {"type": kinds[0]} if len(kinds) == 1 and kinds[0] in TYPES else {}
        if "object" in kinds or united.get("type") == "array":
            raise _UnsayableError
        if all(isinstance(each, list) for each in enums):
            united["enum"] = [value for values in enums if isinstance(values, list) for value in values]
        words = str(rest.get("description") or "").strip()
        choice = "" if united.get("type") or "enum" in united else f"One of: {', '.join(kinds)}."
        return _annotated(united, {**rest, "description": f"{words} {choice}".strip()})

    def _resolved(self, node: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        """Replace references and ``allOf`` by their content; fields next to them win."""
        for _ in range(MAX_SCHEMA_DEPTH):
            parts = _branches(node, "allOf")
            reference = node.pop("$ref", None)
            if not parts and reference is None:
                return node
            merged: dict[str, Any] = {}
            if reference in self._within or (self._is_strict and len(parts) > 1):
                raise _UnsayableError
            if reference is not None:
                parts = [self._referred(reference, path), *parts]
                self._within.append(reference)
            for part in parts:
                if not isinstance(part, Mapping):
                    raise SchemaRefusedError(f"{path}.allOf: holds what is not a schema object")
                merged = _merged(merged, part)
            node = _merged(merged, {key: value for key, value in node.items() if key != "allOf"})
        raise SchemaRefusedError(f"{path}: refers to itself, or {depth} levels of references are too many")

    def _referred(self, reference: object, path: str) -> Mapping[str, Any]:
        found: Any = self._document
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SchemaRefusedError(f"{path}.$ref: {str(reference)[:80]!r} lies outside the schema")
        for word in filter(None, reference[1:].split("/")):
            name = word.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            raise SchemaRefusedError(f"{path}.$ref: {reference[:80]!r} leads nowhere")
        return found


def _bound(result: dict[str, Any], node: Mapping[str, Any]) -> None:
    """Write the exclusive bounds of an integer as inclusive ones; the server checks those of a number."""
    if node.get("type") != "integer":
        return
    for exclusive, inclusive, step, closer in (
        ("exclusiveMinimum", "minimum", 1, max),
        ("exclusiveMaximum", "maximum", -1, min),
    ):
        bound = node.get(exclusive)
        if isinstance(bound, int) and not isinstance(bound, bool):
            result.pop(exclusive, None)
            result[inclusive] = closer(bound + step, result.get(inclusive, bound + step))


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both schemas in one: fields and required names are joined, of the rest the second wins."""
    merged = {**first, **second}
    if isinstance(first.get("properties"), Mapping) and isinstance(second.get("properties"), Mapping):
        merged["properties"] = {**first["properties"], **second["properties"]}
    if isinstance(first.get("required"), list) and isinstance(second.get("required"), list):
        merged["required"] = list(dict.fromkeys((*first["required"], *second["required"])))
    if any(key in first and key in second for key in ("anyOf", "oneOf")):
        raise _UnsayableError
    return merged


def _branches(node: Mapping[str, Any], key: str) -> list[Any]:
    found = node.get(key)
    return found if isinstance(found, list) else []


def _is_null(branch: object) -> bool:
    return isinstance(branch, Mapping) and (branch.get("type") == "null" or branch.get("const", ...) is None)


def _without_null(node: Mapping[str, Any]) -> dict[str, Any]:
    values = node.get("enum")
    if isinstance(values, list) and None in values:
        return {**node, "enum": [value for value in values if value is not None]}
    return dict(node)


def _annotated(schema: dict[str, Json], rest: Mapping[str, Any]) -> dict[str, Json]:
    for key in ("description", "title", "default"):
        value = rest.get(key)
        if value is not None and value != "":
            schema.setdefault(key, value)
    return _texts_only(schema)


def _explained(schema: dict[str, Json], rest: Mapping[str, Any], native: Mapping[str, Any]) -> dict[str, Json]:
    """Add an inexpressible schema to the description, for a model to read; the server checks it."""
    words = str(rest.get("description") or "").strip()
    shown = dump({key: value for key, value in native.items() if key != "description"})
    shown = shown if len(shown) <= MAX_SHOWN_CHARS else f"{shown[:MAX_SHOWN_CHARS]}…"
    return _annotated(schema | {"description": f"{words} JSON Schema: {shown}".strip()}, rest)


def _texts_only(schema: dict[str, Json]) -> dict[str, Json]:
    for key in ("description", "title"):
        if key in schema and not isinstance(schema[key], str):
            del schema[key]
    return schema
