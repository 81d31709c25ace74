"""Pydantic models and annotated functions as schemas of the core subset (SCH-02, REG-06).

Local definitions are inlined, Optional becomes "not required", annotations that say nothing about validity are dropped.
Whatever else lies outside the subset is refused by name rather than weakened in silence.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, get_type_hints

from soong.shared.core.errors import InvalidToolError
from soong.shared.core.jsontext import Json
from soong.shared.tools.schema import MAX_SCHEMA_DEPTH, schema_problems

if TYPE_CHECKING:
    from pydantic import BaseModel

_ANNOTATIONS = frozenset(
    {"examples", "deprecated", "readOnly", "writeOnly", "format", "contentMediaType", "$comment", "discriminator"}
)
_NULL: Mapping[str, Json] = {"type": "null"}


def from_pydantic(model: "type[BaseModel]", *, tool: str = "") -> dict[str, Json]:
    """Return the model's schema in the subset.

    Raises:
        InvalidToolError: the model needs what the subset cannot say; names the field and the keyword.
    """
    return from_json_schema(model.model_json_schema(), tool=tool or model.__name__, of=f"the model {model.__name__}")


def from_json_schema(exported: Mapping[str, Any], *, tool: str, of: str = "its schema") -> dict[str, Json]:
    """Return a schema that a library made of annotations, brought into the subset.

    Raises:
        InvalidToolError: it needs what the subset cannot say; names the field and the keyword.
    """
    rest = dict(exported)
    definitions = rest.pop("$defs", {})
    schema = _simplify(rest, definitions, tool, "$", 0)
    problem = next(schema_problems(schema), None)
    if problem is not None:
        raise InvalidToolError(tool, f"{of} cannot be a tool's input: {problem}")
    return schema


def model_of(function: Callable[..., object], *, tool: str, skip: int) -> "type[BaseModel]":
    """Build a model of an annotated function's parameters after the first ``skip``.

    Raises:
        InvalidToolError: a parameter has no annotation or cannot be given by name.
    """
    from pydantic import ConfigDict, create_model  # heavy, and only decorators need it

    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in list(signature(function).parameters.values())[skip:]:
        if parameter.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            raise InvalidToolError(tool, f"the parameter {parameter.name!r} cannot be given by name")
        if parameter.name not in hints:
            raise InvalidToolError(tool, f"the parameter {parameter.name!r} has no annotation")
        fields[parameter.name] = (
            hints[parameter.name],
            ... if parameter.default is Parameter.empty else parameter.default,
        )
    model: type[BaseModel] = create_model(f"{function.__name__}_input", __config__=ConfigDict(extra="forbid"), **fields)
    return model


def _simplify(node: Any, definitions: Mapping[str, Any], subject: str, path: str, depth: int) -> dict[str, Json]:
    if depth > MAX_SCHEMA_DEPTH:
        raise InvalidToolError(subject, f"{path}: the model contains itself; a schema of the subset cannot say that")
    if not isinstance(node, Mapping):
        raise InvalidToolError(subject, f"{path}: {node!r} is not a schema the subset can say")
    node = _resolved(dict(node), definitions)
    branches = node.get("anyOf")
    if branches is not None:
        node = _without_null(node, branches, subject, path)
        return _simplify(node, definitions, subject, path, depth + 1)
    result: dict[str, Json] = {key: value for key, value in node.items() if key not in _ANNOTATIONS}
    if "const" in result:
        result["enum"] = [result.pop("const")]
    _inclusive(result)
    if isinstance(node.get("items"), Mapping):
        result["items"] = _simplify(node["items"], definitions, subject, f"{path}.items", depth + 1)
    if isinstance(node.get("properties"), Mapping):
        _simplify_properties(result, node, definitions, subject, path, depth)
    return result


def _simplify_properties(
    result: dict[str, Json],
    node: Mapping[str, Any],
    definitions: Mapping[str, Any],
    subject: str,
    path: str,
    depth: int,
) -> None:
    properties: dict[str, Json] = {}
    optional: set[str] = set()
    for name, part in node["properties"].items():
        resolved = _resolved(dict(part), definitions)
        if _NULL in resolved.get("anyOf", ()):
            optional.add(name)
        properties[name] = _simplify(part, definitions, subject, f"{path}.properties.{name}", depth + 1)
    result["properties"] = properties
    required = [name for name in node.get("required", ()) if name not in optional]
    result.pop("required", None)
    if required:
        result["required"] = required


def _resolved(node: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a reference, also one wrapped in a single allOf; what is next to it wins."""
    only = node.get("allOf")
    if isinstance(only, Sequence) and len(only) == 1:
        node = {**only[0], **{key: value for key, value in node.items() if key != "allOf"}}
    reference = node.pop("$ref", None)
    if isinstance(reference, str):
        node = {**definitions.get(reference.rpartition("/")[2], {}), **node}
        return _resolved(node, definitions) if "$ref" in node else node
    return node


def _without_null(node: dict[str, Any], branches: Sequence[Any], subject: str, path: str) -> dict[str, Any]:
    others = [branch for branch in branches if branch != _NULL]
    if len(others) != 1:
        raise InvalidToolError(
            subject, f"{path}.anyOf: a choice between types is not supported; take one type or two fields"
        )
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    if rest.get("default", ...) is None:
        del rest["default"]
    return {**others[0], **rest}


def _inclusive(schema: dict[str, Json]) -> None:
    """Say the exclusive bounds of an integer inclusively; those of a number have no such form and are refused later."""
    if schema.get("type") != "integer":
        return
    low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if isinstance(low, int):
        del schema["exclusiveMinimum"]
        schema["minimum"] = low + 1
    if isinstance(high, int):
        del schema["exclusiveMaximum"]
        schema["maximum"] = high - 1
