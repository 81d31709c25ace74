"""The forms in which the planning tools show a step, a task's limits and its changes, made from the models."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.growth import UpdateDocument
from soong.shared.engine.tasks.plan.checks import KINDS
from soong.shared.engine.tasks.plan.reader import SchemaGenerator, TaskLimitsDocument

_FOR_TOOLS: Final = frozenset(
    {"type", "description", "default", "enum", "properties", "required", "additionalProperties", "items"}
    | {"minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum"}
)
"""The keywords that a tool's schema may have (:mod:`soong.shared.tools.schema`)."""


def planning_schemas() -> JsonObject:
    return {
        "step": step_schema(),
        "limits": tool_schema(TaskLimitsDocument),
        "changes": tool_schema(UpdateDocument)["properties"],
    }


def step_schema() -> JsonObject:
    """Return a step as tools describe it to models: one flat object in the subset of tool schemas (SCH-01)."""
    properties: dict[str, Any] = {}
    for kind in KINDS.values():
        properties = {**tool_schema(kind.document)["properties"], **properties}
    kinds = [kind.value for kind in KINDS]
    properties["kind"] = {"type": "string", "description": "What does the work.", "enum": kinds}
    properties["step"] = {"type": "object", "description": properties["step"]["description"]}
    return {"type": "object", "required": ["id"], "properties": properties}


def tool_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return a model's schema in the subset of tool schemas: the first of several forms, without patterns."""
    schema = model.model_json_schema(schema_generator=SchemaGenerator)
    return _flat(schema, schema.get("$defs", {}))


def _flat(node: dict[str, Any], definitions: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    while "$ref" in node or "anyOf" in node:
        said = {name: value for name, value in node.items() if name not in ("$ref", "anyOf")}
        meant = definitions[node["$ref"].rpartition("/")[2]] if "$ref" in node else node["anyOf"][0]
        node = {**meant, **said}
    flat = {name: value for name, value in node.items() if name in _FOR_TOOLS}
    if "const" in node:
        flat["enum"] = [node["const"]]
    if "exclusiveMinimum" in node:
        flat["minimum"] = node["exclusiveMinimum"]
    if flat.get("additionalProperties", True) is not False:  # the subset has no schema for the values of a mapping
        flat.pop("additionalProperties", None)
    if "items" in flat:
        flat["items"] = _flat(flat["items"], definitions)
    if "properties" in flat:
        flat["properties"] = {name: _flat(part, definitions) for name, part in flat["properties"].items()}
    return flat
