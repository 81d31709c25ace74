from enum import StrEnum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from soong.shared.core.errors import InvalidToolError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.tools.foreign_schema import from_pydantic
from soong.shared.tools.schema import MAX_SCHEMA_DEPTH, MAX_VALUE_DEPTH, check_schema, close, schema_problems, validate

FULL: JsonObject = {
    "type": "object",
    "title": "All that is supported",
    "description": "d",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 9, "default": "x"},
        "size": {"type": "integer", "minimum": 0, "maximum": 10},
        "ratio": {"type": "number", "minimum": 0.5},
        "is_on": {"type": "boolean"},
        "kind": {"enum": ["a", 1, None]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
        "more": {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": True},
    },
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.spec("SCH-01.a", "SCH-01.b")
def test_the_whole_subset_is_accepted() -> None:
    check_schema(FULL, tool="test.x")


@pytest.mark.spec("SCH-01.c", "SCH-01.d")
@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({"oneOf": []}, "$.properties.a.oneOf"),
        ({"anyOf": []}, "$.properties.a.anyOf"),
        ({"allOf": []}, "$.properties.a.allOf"),
        ({"$ref": "#/x"}, "$.properties.a.$ref"),
        ({"type": "object", "if": {}}, "$.properties.a.if"),
        ({"type": "object", "then": {}}, "$.properties.a.then"),
        ({"type": "object", "patternProperties": {}}, "$.properties.a.patternProperties"),
        ({"not": {}}, "$.properties.a.not"),
        ({"type": "object", "dependentSchemas": {}}, "$.properties.a.dependentSchemas"),
        ({"type": ["string", "null"]}, "$.properties.a.type"),
        ({"type": "null"}, "$.properties.a.type"),
        ({"type": "string", "pattern": "x"}, "$.properties.a.pattern"),
        ({"type": "string", "minimum": 1}, "$.properties.a.minimum"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "$.properties.a.additionalProperties"),
        ({"type": "array", "items": [{"type": "string"}]}, "$.properties.a.items"),
        ({"type": "array", "items": {"type": "array", "items": {"const": 1}}}, "$.properties.a.items.items.const"),
        ({"type": "object", "properties": {}, "required": ["b"]}, "$.properties.a.required"),
        ({"type": "string", "maxLength": -1}, "$.properties.a.maxLength"),
        ({"type": "string", "maxLength": True}, "$.properties.a.maxLength"),
        ({"type": "integer", "minimum": "1"}, "$.properties.a.minimum"),
        ({"enum": []}, "$.properties.a.enum"),
        ({"type": "string", "description": 3}, "$.properties.a.description"),
        ("string", "$.properties.a"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_anything_outside_the_subset_is_refused_with_its_path(part: Json, place: str) -> None:
    schema: JsonObject = {"type": "object", "properties": {"a": part}}

    with pytest.raises(InvalidToolError, match="test") as caught:
        check_schema(schema, tool="test.x")

    assert f"{place}:" in str(caught.value)


def test_a_schema_nested_too_deep_is_refused() -> None:
    schema: Json = {"type": "string"}
    for _ in range(MAX_SCHEMA_DEPTH + 1):
        schema = {"type": "array", "items": schema}

    assert [found.rule for found in schema_problems(schema)] == ["depth"]


@pytest.mark.spec("SCH-03.b")
@pytest.mark.parametrize(
    ("value", "path", "rule"),
    [
        ({}, "$", "required"),
        ({"name": ""}, "$.name", "minLength"),
        ({"name": "x", "size": True}, "$.size", "type"),
        ({"name": "x", "size": 1.5}, "$.size", "type"),
        ({"name": "x", "size": 10**400}, "$.size", "maximum"),
        ({"name": "x", "size": "1"}, "$.size", "type"),
        ({"name": "x", "ratio": 0.1}, "$.ratio", "minimum"),
        ({"name": "x", "kind": "b"}, "$.kind", "enum"),
        ({"name": "x", "kind": True}, "$.kind", "enum"),
        ({"name": "x", "tags": ["a", 1]}, "$.tags[1]", "type"),
        ({"name": "x", "tags": []}, "$.tags", "minItems"),
        ({"name": "x", "more": {"x": None}}, "$.more.x", "type"),
        ({"name": "x", "__proto__": {}}, "$", "additionalProperties"),
        ([], "$", "type"),
        (None, "$", "type"),
    ],
    ids=str,
)
def test_a_violation_names_its_path_and_its_rule(value: Json, path: str, rule: str) -> None:
    (violation,) = validate(FULL, value)

    assert (violation.path, violation.rule) == (path, rule)


def test_a_violation_never_repeats_the_value() -> None:
    violations = validate(FULL, {"name": "hunter2-hunter2", "size": "hunter2"})

    assert violations
    assert "hunter2" not in "".join(map(str, violations))


def test_a_value_nested_too_deep_is_refused_before_it_is_walked() -> None:
    value: Json = 1
    for _ in range(100_000):
        value = [value]

    assert [violation.rule for violation in validate({"type": "array"}, value)] == ["depth"]
    assert MAX_VALUE_DEPTH < 1000


def test_closing_a_schema_refuses_extras_wherever_fields_are_listed() -> None:
    closed = close(
        {"type": "object", "properties": {"a": {"type": "object", "properties": {}}, "b": {"type": "object"}}}
    )

    assert validate(closed, {"b": {"free": 1}}) == []
    assert [each.path for each in validate(closed, {"a": {"x": 1}, "c": 1})] == ["$.a", "$"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_value_gets_a_verdict(value: Json) -> None:
    for violation in validate(FULL, value):
        assert violation.path.startswith("$")


class Colour(StrEnum):
    RED = "red"


class Inner(BaseModel):
    size: int = Field(gt=0, lt=5)


class Outer(BaseModel):
    name: str
    inner: Inner
    maybe: int | None = None
    maybe_inner: Inner | None
    colour: Colour = Colour.RED
    word: Literal["on"] = "on"
    many: list[Inner] = []


@pytest.mark.spec("SCH-02.a")
def test_a_pydantic_model_is_brought_into_the_subset() -> None:
    schema = from_pydantic(Outer)

    check_schema(schema, tool="test.x")
    assert schema["required"] == ["name", "inner"]
    assert "$defs" not in schema
    good: JsonObject = {
        "name": "n",
        "inner": {"size": 1},
        "maybe": 3,
        "colour": "red",
        "word": "on",
        "many": [{"size": 4}],
    }
    assert validate(schema, good) == []
    assert [each.path for each in validate(schema, {**good, "inner": {"size": 5}})] == ["$.inner.size"]


class Node(BaseModel):
    children: "list[Node]" = []


class Choice(BaseModel):
    value: int | str


class Mapped(BaseModel):
    value: dict[str, int]


class Patterned(BaseModel):
    value: str = Field(pattern="x+")


class Bounded(BaseModel):
    value: float = Field(gt=0)


class Paired(BaseModel):
    value: tuple[int, str]


@pytest.mark.spec("SCH-02.b")
@pytest.mark.parametrize("model", [Node, Choice, Mapped, Patterned, Bounded, Paired])
def test_a_model_the_subset_cannot_say_is_refused_by_name(model: Any) -> None:
    with pytest.raises(InvalidToolError, match=r"\$\.") as caught:
        from_pydantic(model, tool="test.x")

    assert caught.value.tool == "test.x"
