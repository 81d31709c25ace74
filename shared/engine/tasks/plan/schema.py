"""The published JSON Schema of plans, for editors and for models (DAG-08).

Both forms are made from the models that the reader validates with. ``soong tasks validate`` checks the rules beyond the
shape of a plan (ids, edges, references, scripts), and is the judge.
"""

from typing import Any, Final, TypeAlias

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.plan.models import PlanDocument

SCHEMA_ID: Final = "plan.schema.json"

_Schema: TypeAlias = dict[str, Any]


class SchemaGenerator(GenerateJsonSchema):
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
    schema = PlanDocument.model_json_schema(schema_generator=SchemaGenerator)
    definitions = schema["$defs"]
    short = {"type": ["string", "number", "boolean", "array", "null"]}
    definitions["InputDocument"] = {"anyOf": [definitions["InputDocument"], short]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **schema}
