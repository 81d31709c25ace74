"""The published JSON Schema of plans, for editors and for models (DAG-08).

Both forms are made from the models that the reader validates with. ``soong tasks validate`` checks the rules beyond the
shape of a plan (ids, edges, references, scripts), and is the judge.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.plan.kinds.registry import KINDS
from soong.shared.engine.tasks.plan.models import PlanDocument

SCHEMA_ID: Final = "plan.schema.json"
MODELINE: Final = "# yaml-language-server: $schema="

_Schema: TypeAlias = dict[str, Any]

_FOR_TOOLS: Final = frozenset(
    {"type", "description", "default", "enum", "properties", "required", "additionalProperties", "items"}
    | {"minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum"}
)
"""The keywords that a tool's schema may have (:mod:`soong.shared.tools.schema`)."""


class _Generator(GenerateJsonSchema):
    """Leaves out parts without use for a reader of the schema: titles of fields, empty defaults, null for left out."""

    def field_title_should_be_set(self, _schema: Any) -> bool:
        return False

    def nullable_schema(self, schema: core_schema.NullableSchema) -> _Schema:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> _Schema:
        found = super().default_schema(schema)
        return {name: value for name, value in found.items() if name != "default" or value not in (None, "", [], {})}

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> _Schema:
        return {"anyOf": super().tagged_union_schema(schema)["oneOf"]}

    def dict_schema(self, schema: core_schema.DictSchema) -> _Schema:
        found = {name: value for name, value in super().dict_schema(schema).items() if value is not True}
        for pattern, part in found.pop("patternProperties", {}).items():
            found |= {"propertyNames": {"pattern": pattern}, "additionalProperties": part}
        return found

    def enum_schema(self, schema: core_schema.EnumSchema) -> _Schema:
        return {"type": "string", "enum": [member.value for member in schema["members"]]}


def plan_schema() -> JsonObject:
    """Return the full schema, JSON Schema 2020-12."""
    schema = PlanDocument.model_json_schema(schema_generator=_Generator)
    definitions = schema["$defs"]
    short = {"type": ["string", "number", "boolean", "array", "null"]}
    definitions["InputDocument"] = {"anyOf": [definitions["InputDocument"], short]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **schema}


def step_schema() -> JsonObject:
    """Return a step as tools describe it to models: one flat object in the subset of tool schemas (SCH-01)."""
    properties: _Schema = {}
    for kind in KINDS.values():
        properties = {**tool_schema(kind.document)["properties"], **properties}
    kinds = [kind.value for kind in KINDS]
    properties["kind"] = {"type": "string", "description": "What does the work.", "enum": kinds}
    properties["step"] = {"type": "object", "description": properties["step"]["description"]}
    return {"type": "object", "required": ["id"], "properties": properties}


def tool_schema(model: type[BaseModel]) -> _Schema:
    """Return a model's schema in the subset of tool schemas: the first of several forms, without patterns."""
    schema = model.model_json_schema(schema_generator=_Generator)
    return _flat(schema, schema.get("$defs", {}))


def _flat(node: _Schema, definitions: Mapping[str, _Schema]) -> _Schema:
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
