"""A server's JSON Schemas in the core subset: what is simplified, what is refused, and what stays true of it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing import Registry

from soong.shared.core.jsontext import Json
from soong.shared.tools.foreign_schema import SchemaRefusedError, input_schema, output_schema
from soong.shared.tools.schema import schema_problems, validate

pytestmark = pytest.mark.spec("MCP-01.b", "SCH-01")


def taking(part: Json, *, is_required: bool = True) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": part}, "required": ["x"] if is_required else []}


def simplified(part: Json) -> tuple[Any, bool]:
    """Return what becomes of one argument, and whether it is still required."""
    schema: Any = input_schema(taking(part))
    return schema["properties"]["x"], "x" in schema.get("required", ())


@pytest.mark.parametrize(
    ("part", "expected", "is_required"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, {"type": "string"}, False),
        ({"oneOf": [{"type": "null"}, {"type": "integer", "minimum": 1}]}, {"type": "integer", "minimum": 1}, False),
        ({"type": ["string", "null"], "enum": ["a", None]}, {"type": "string", "enum": ["a"]}, False),
        ({"type": ["boolean", "string"]}, {"description": "One of: boolean, string."}, True),
        (
            {"anyOf": [{"type": "string"}, {"type": "number"}], "description": "When."},
            {"description": "When. One of: string, number."},
            True,
        ),
        ({"anyOf": [{"const": "a"}, {"const": "b"}]}, {"enum": ["a", "b"]}, True),
        ({"const": 3}, {"enum": [3]}, True),
        ({"type": "string", "pattern": "^a", "format": "uri"}, {"type": "string"}, True),
        ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 1}, True),
        ({"allOf": [{"type": "string"}], "description": "D"}, {"type": "string", "description": "D"}, True),
        (
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"type": "object", "additionalProperties": True},
            True,
        ),
        ({"type": "array", "items": True}, {"type": "array", "items": {}}, True),
        ({"type": "integer", "minimum": 5, "exclusiveMinimum": 0}, {"type": "integer", "minimum": 5}, True),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": 5}, {"type": "integer", "minimum": 6}, True),
        ({"type": "integer", "maximum": 5, "exclusiveMaximum": 9}, {"type": "integer", "maximum": 5}, True),
        ({"type": "integer", "maximum": 9, "exclusiveMaximum": 5}, {"type": "integer", "maximum": 4}, True),
        (True, {}, True),
    ],
)
def test_what_is_everyday_is_simplified(part: Json, expected: Json, *, is_required: bool) -> None:
    assert simplified(part) == (expected, is_required)


def test_references_are_put_in_their_place() -> None:
    native = {
        "$defs": {"A/b": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}, "n": {"type": "integer"}},
        **taking({"$ref": "#/$defs/A~1b", "description": "here"}),
    }

    schema: Any = input_schema(native)

    assert schema["properties"]["x"] == {
        "description": "here",
        "type": "object",
        "properties": {"n": {"type": "integer"}},
    }
    assert not list(schema_problems(schema))


@pytest.mark.parametrize(
    ("native", "place"),
    [
        (taking({"$ref": "https://example.org/schema"}), "lies outside"),
        (taking({"$ref": "#/nowhere"}), "leads nowhere"),
        ({"type": "array"}, "tool takes named arguments"),
        (taking(False), "not a schema object"),
        (taking({"type": "file"}), "must be one of"),
        (taking({"type": []}), "nothing but null"),
        (taking(7), "not a schema object"),
    ],
)
def test_what_cannot_be_said_is_refused_with_its_place(native: dict[str, Any], place: str) -> None:
    with pytest.raises(SchemaRefusedError, match=place):
        input_schema(native)


@pytest.mark.spec("MCP-01.b", "SCH-03")
def test_arguments_by_a_pattern_of_their_names_are_taken() -> None:
    schema = input_schema(
        {"type": "object", "patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False}
    )

    assert not list(validate(schema, {"x-trace": "7"}))


CAT = {"type": "object", "properties": {"lives": {"type": "integer"}}, "required": ["lives"]}
DOG = {"type": "object", "properties": {"bark": {"type": "string"}}}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "name": {"type": "string"}}}


@pytest.mark.parametrize("part", [{"oneOf": [CAT, DOG]}, {"anyOf": [CAT, {"type": "string"}]}], ids=["oneOf", "anyOf"])
def test_a_choice_between_objects_takes_any_value_and_shows_its_schema(part: Json) -> None:
    schema, is_required = simplified(part)

    assert set(schema) == {"description"}
    assert '"lives"' in schema["description"]
    assert is_required


def test_a_type_that_holds_itself_is_written_out_once() -> None:
    schema: Any = input_schema({"$defs": {"node": NODE}, **taking({"$ref": "#/$defs/node", "description": "First."})})

    first = schema["properties"]["x"]["properties"]
    assert first["name"] == {"type": "string"}
    assert set(first["next"]) == {"description"}
    assert '"name"' in first["next"]["description"]
    assert not list(schema_problems(schema))


def test_fields_stay_where_a_choice_only_says_which_of_them_are_needed() -> None:
    fields = {"a": {"type": "string"}, "b": {"type": "string"}}
    schema: Any = input_schema(
        {"type": "object", "properties": fields, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    )

    assert schema["properties"] == fields
    assert '{"anyOf":[{"required":["a"]}' in schema["description"]


@pytest.mark.parametrize(
    "native", [{}, {"anyOf": [CAT, DOG]}, {"$defs": {"a": {"anyOf": [CAT, DOG]}}, "$ref": "#/$defs/a"}]
)
def test_arguments_without_fields_of_their_own_are_an_object(native: dict[str, Any]) -> None:
    schema = input_schema(native)

    assert schema["type"] == "object"
    assert not list(validate(schema, {"lives": 7}))


def test_a_schema_that_doubles_with_each_reference_is_refused_at_once() -> None:
    bomb: dict[str, Any] = {f"d{n}": taking({"$ref": f"#/$defs/d{n + 1}"}) for n in range(30)}
    for n in range(30):
        bomb[f"d{n}"]["properties"]["y"] = {"$ref": f"#/$defs/d{n + 1}"}
    bomb["d30"] = {"type": "string"}

    with pytest.raises(SchemaRefusedError):
        input_schema({"$defs": bomb, "$ref": "#/$defs/d0"})


_PARTS = st.recursive(
    st.sampled_from(
        [
            {"type": "string"},
            {"type": ["integer", "null"]},
            {"type": "integer", "minimum": 1},
            {"const": "a"},
            {"type": "string", "pattern": "^a+$"},
            {"enum": ["a", None, 3]},
            {},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(lambda part: {"anyOf": [part, {"type": "null"}]}, inner),
        st.builds(lambda a, b: {"oneOf": [a, b]}, inner, inner),
        st.builds(lambda part: {"type": "array", "items": part}, inner),
        st.builds(lambda a, b: {"type": "object", "properties": {"a": a, "b": b}, "required": ["a"]}, inner, inner),
    ),
    max_leaves=6,
)
_VALUES = st.recursive(
    st.sampled_from([None, "a", "aaa", "b", 0, 1, 3, True]),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)),
    max_leaves=6,
)


@given(part=_PARTS, value=_VALUES)
def test_a_schema_of_results_refuses_nothing_that_the_servers_own_takes(part: dict[str, Any], value: Any) -> None:
    ours = output_schema(part)

    if ours is not None and Draft202012Validator(part, registry=Registry()).is_valid(value):
        assert not validate(ours, value)
    assert ours is None or not list(schema_problems(ours))
