from collections.abc import Callable
from typing import Any

import pytest

from soong.shared.core.jsontext import Json
from soong.shared.tools.execution import parsed, shown_arguments
from soong.shared.tools.result import ErrorType
from tests.unit.tools.parts import make_bench, make_tool

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


@pytest.mark.spec("SCH-03")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(lambda: "x" * 9_000_000, "has 9000000 bytes", id="huge text"),  # made by the test alone
        pytest.param(lambda: {"text": "x" * 100_000_000}, "larger than", id="100 MB"),
        pytest.param(lambda: "[" * 10_000 + "]" * 10_000, "nested deeper", id="10,000 levels of text"),
        pytest.param(lambda: '{"n": 9007199254740993}', "2^53", id="beyond 2^53"),
        pytest.param(lambda: {"n": 9007199254740993}, "2^53", id="beyond 2^53, parsed"),
        pytest.param(lambda: {"n": float("inf")}, "not a JSON number", id="infinity"),
    ],
)
async def test_arguments_nobody_should_read_end_as_invalid_input_and_are_not_kept(
    arguments: Callable[[], Json], said: str
) -> None:
    bench = make_bench([make_tool(input_schema=NUMBER)])

    result = await bench.call("test.echo", arguments())

    assert result.error is not None
    assert result.error.type is ErrorType.INVALID_INPUT
    assert said in result.error.message
    assert (bench.gate.asked, bench.log.starts) == ([], [])
    assert len(repr(bench.log.ends[0][0].arguments)) < 50_000


def test_what_is_too_large_is_named_where_it_would_be_kept() -> None:
    assert shown_arguments("x" * 10_000_000) == {"left_out": "10000000 characters"}
    assert shown_arguments({"a": "x"}) == {"a": "x"}


async def test_a_whole_float_is_an_integer_for_the_handler() -> None:
    bench = make_bench([make_tool(input_schema=NUMBER, handler=_type_of_n)])

    assert (await bench.call("test.echo", {"n": 3.0})).data == "int"


async def _type_of_n(_context: object, call_input: Any) -> str:
    return type(call_input["n"]).__name__


@pytest.mark.spec("SCH-03.b")
@pytest.mark.parametrize(
    ("arguments", "path", "rule"),
    [
        ({"n": "three"}, "$.n", "type"),
        ({"n": 1, "m": 2}, "$", "additionalProperties"),
        ({"text": "x"}, "$", "required"),
        ({"n": 1, "list": [{"a": 1}, {"a": 5}]}, "$.list[1].a", "maximum"),
        ({"n": 1, "word": "no"}, "$.word", "enum"),
    ],
)
async def test_each_violation_names_its_path_and_its_rule_for_programs_too(
    arguments: Json, path: str, rule: str
) -> None:
    schema: Any = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "text": {"type": "string"},
            "word": {"type": "string", "enum": ["yes"]},
            "list": {
                "type": "array",
                "items": {"type": "object", "properties": {"a": {"type": "integer", "maximum": 2}}},
            },
        },
        "required": ["n"],
        "additionalProperties": False,
    }
    bench = make_bench([make_tool(input_schema=schema)])

    result = await bench.call("test.echo", arguments)

    assert result.error is not None
    assert result.error.details == {"violations": [{"path": path, "rule": rule}]}
    assert result.error.message.startswith(f"{path}: ")
