from typing import Any

import pytest

from soong.shared.core.jsontext import Json
from soong.shared.tools.execution import parsed, shown_arguments
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


def test_what_is_too_large_is_named_where_it_would_be_kept() -> None:
    assert shown_arguments("x" * 10_000_000) == {"left_out": "10000000 characters"}
    assert shown_arguments({"a": "x"}) == {"a": "x"}


async def test_a_whole_float_is_an_integer_for_the_handler() -> None:
    bench = make_bench([make_tool(input_schema=NUMBER, handler=_type_of_n)])

    assert (await bench.call("test.echo", {"n": 3.0})).data == "int"


async def _type_of_n(_context: object, call_input: Any) -> str:
    return type(call_input["n"]).__name__


@pytest.mark.spec("SCH-03.b")
async def test_a_violation_names_its_path_and_its_rule_for_programs_too() -> None:
    result = await make_bench([make_tool(input_schema=NUMBER)]).call("test.echo", {"n": "three"})

    assert result.error is not None
    assert result.error.details == {"violations": [{"path": "$.n", "rule": "type"}]}
    assert result.error.message.startswith("$.n: ")
