"""What is told of a tool: its arguments in the order of its schema, with bounds a person can read."""

import pytest

from soong.shared.core.jsontext import JsonObject, first_sentence
from soong.shared.tools.result import EVERY_CALL
from soong.shared.tools.schema import ArgumentDoc, arguments_of


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


def test_a_schema_without_properties_has_no_arguments() -> None:
    assert arguments_of({"type": "object"}) == ()


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


def test_no_error_of_every_call_is_said_twice() -> None:
    every = [error for errors in EVERY_CALL.values() for error in errors]

    assert len(every) == len(set(every))
