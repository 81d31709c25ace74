from enum import StrEnum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from soong.shared.core.errors import InvalidToolError
from soong.shared.core.jsontext import Json, JsonObject, digest, dump, first_sentence
from soong.shared.tools.execution import parsed
from soong.shared.tools.foreign_schema import from_pydantic
from soong.shared.tools.limits import check_incoming, integral, plain, storable
from soong.shared.tools.schema import (
    MAX_SCHEMA_DEPTH,
    MAX_VALUE_DEPTH,
    ArgumentDoc,
    arguments_of,
    check_schema,
    close,
    schema_problems,
    validate,
)
from tests.unit.tools.parts import make_bench, make_tool

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


def said(part: JsonObject) -> str:
    (argument,) = arguments_of({"type": "object", "properties": {"x": part}})
    return argument.says


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"type": "string"}, "string"),
        ({"type": "string", "minLength": 1}, "string, 1 or more characters"),
        ({"type": "string", "minLength": 1, "maxLength": 9}, "string, at most 9 characters"),
        ({"type": "string", "minLength": 2, "maxLength": 9}, "string, 2 to 9 characters"),
        ({"type": "integer", "minimum": 1, "maximum": 2**53 - 1}, "integer, 1 or more"),
        ({"type": "integer", "minimum": 0, "maximum": 5}, "integer, 0 to 5"),
        ({"type": "number", "maximum": 0.5}, "number, at most 0.5"),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 3}, "array of string, at most 3 items"),
        ({"type": "array"}, "array"),
        ({"enum": ["a", 1, True]}, "any value: a, 1, true"),
        ({}, "any value"),
    ],
    ids=str,
)
def test_a_type_is_said_with_its_bounds(part: JsonObject, says: str) -> None:
    assert said(part) == says


def test_fields_inside_an_argument_follow_it() -> None:
    edit: JsonObject = {"type": "object", "properties": {"old": {"type": "string"}}, "required": ["old"]}
    schema: JsonObject = {
        "type": "object",
        "properties": {
            "edits": {"type": "array", "items": edit, "description": "What to\n  change."},
            "where": {"type": "object", "properties": {"line": {"type": "integer", "default": 1}}},
        },
        "required": ["edits"],
    }

    assert arguments_of(schema) == (
        ArgumentDoc("edits", "array of object", is_required=True, default=None, description="What to change."),
        ArgumentDoc("edits[].old", "string", is_required=True, default=None, description=""),
        ArgumentDoc("where", "object", is_required=False, default=None, description=""),
        ArgumentDoc("where.line", "integer", is_required=False, default=1, description=""),
    )


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One. Two.", "One."),
        ("One.", "One."),
        ("See README.md\n  first. Then go.", "See README.md first."),
        ("No end", "No end"),
    ],
)
def test_the_first_sentence_is_one_line(text: str, first: str) -> None:
    assert first_sentence(text) == first


NUMBER: Any = {"type": "object", "properties": {"n": {"type": "integer"}, "text": {"type": "string"}}}


@pytest.mark.spec("SCH-03.c")
@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ("  ", {}),
        ("", {}),
        (None, {}),
        ({"a": 1}, {"a": 1}),
        ("[1]", [1]),
    ],
)
def test_a_string_that_holds_json_is_parsed_first(arguments: Json, value: Json) -> None:
    assert parsed(arguments) == value


async def test_a_whole_float_is_an_integer_for_the_handler() -> None:
    bench = make_bench([make_tool(input_schema=NUMBER, handler=_type_of_n)])

    assert (await bench.call("test.echo", {"n": 3.0})).data == "int"


async def _type_of_n(_context: object, call_input: Any) -> str:
    return type(call_input["n"]).__name__


@pytest.mark.spec("SCH-03.b", "RES-04.b")
async def test_a_violation_names_its_path_and_its_rule_for_programs_too() -> None:
    result = await make_bench([make_tool(input_schema=NUMBER)]).call("test.echo", {"n": "three"})

    assert result.error is not None
    assert result.error.details == {"violations": [{"path": "$.n", "rule": "type"}]}
    assert result.error.message.startswith("$.n: ")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(1 - 2**53, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def nested(levels: int) -> Json:
    value: Json = 1
    for _ in range(levels):
        value = [value]
    return value


@given(JSON)
def test_json_passes_both_ways_unchanged(value: Json) -> None:
    check_incoming(value)

    assert plain(value) == value


@given(JSON)
def test_whole_numbers_become_integers_and_nothing_else_changes(value: Json) -> None:
    assert integral(value) == value
    assert digest(integral(value)) == digest(value)


@pytest.mark.spec("RES-01")
@given(st.text(st.characters(exclude_categories=()), max_size=20))
def test_whatever_text_a_tool_returns_can_be_stored(text: str) -> None:
    kept = storable(text)

    assert kept.encode().decode() == kept
    assert storable(kept) is kept


def test_lone_surrogates_are_replaced_in_keys_and_texts_and_tuples_become_lists() -> None:
    assert plain({"\ud800": ("a\udfff", 1)}) == {"\ufffd": ["a\ufffd", 1]}
    assert dump(plain({"nul": "\0"})) == '{"nul":"\\u0000"}'
