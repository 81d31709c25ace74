import asyncio
from typing import Any

import pytest

from soong.shared.core.errors import InvalidToolError
from soong.shared.tools.naming import NameTable
from soong.shared.tools.result import ErrorType
from tests.unit.tools.parts import make_bench, make_registry, make_tool

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "is": {"type": "boolean"},
        "name": {"type": "string"},
        "some": {"type": "string", "minLength": 1},
        "inner": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "list": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name"],
}
VERDICTS: list[tuple[str, Any, bool]] = [
    ("row-48-boolean-for-integer", {"name": "", "n": True}, False),
    ("row-48-boolean-for-number", {"name": "", "x": False}, False),
    ("row-48-integer-for-boolean", {"name": "", "is": 1}, False),
    ("row-48-1.0-for-integer", {"name": "", "n": 1.0}, True),
    ("row-48-1.5-for-integer", {"name": "", "n": 1.5}, False),
    ("row-48-10^400", {"name": "", "n": 10**400}, False),
    ("row-48-10^400-as-text", '{"name": "", "n": 1' + "0" * 400 + "}", False),
    ("row-48-1e400-as-text", '{"name": "", "x": 1e400}', False),
    ("row-48-infinity", {"name": "", "x": float("inf")}, False),
    ("row-48-nan", {"name": "", "x": float("nan")}, False),
    ("row-48-empty-for-required", {"name": ""}, True),
    ("row-48-empty-for-min-length", {"name": "", "some": ""}, False),
    ("row-48-missing", {}, False),
    ("row-48-null-for-required", {"name": None}, False),
    ("row-48-extra", {"name": "", "more": 1}, False),
    ("row-48-proto", {"name": "", "__proto__": {}}, False),
    ("row-48-constructor", {"name": "", "constructor": {"prototype": {}}}, False),
    ("row-48-inner-extra", {"name": "", "inner": {"n": 1, "m": 2}}, False),
    ("row-48-inner-proto", {"name": "", "inner": {"__proto__": 1}}, False),
    ("row-48-list-for-object", [], False),
    ("row-48-text-for-object", '"name"', False),
    ("row-48-number-for-text", {"name": 1}, False),
    ("row-48-item", {"name": "", "list": [1, "two"]}, False),
    ("row-48-two-documents", '{"name": ""} {"name": ""}', False),
    ("row-48-duplicate-key", '{"name": "", "name": "x"}', False),
    ("row-48-python", "{'name': ''}", False),
]


@pytest.mark.spec("SCH-01.a", "SCH-03")
@pytest.mark.parametrize(
    ("arguments", "is_valid"), [row[1:] for row in VERDICTS], ids=[name for name, _, _ in VERDICTS]
)
async def test_a_value_has_the_verdict_that_json_schema_gives(arguments: Any, is_valid: bool) -> None:
    reached: list[object] = []

    async def handler(_context: object, call_input: object) -> None:
        reached.append(call_input)

    bench = make_bench([make_tool(input_schema=SCHEMA, handler=handler)])

    async with asyncio.timeout(20):
        result = await bench.call("test.echo", arguments)

    assert result.ok is is_valid
    assert result.error is None or result.error.type is ErrorType.INVALID_INPUT
    assert len(reached) == len(bench.gate.asked) == int(is_valid)


@pytest.mark.spec("REG-02.a", "REG-02.b")
@pytest.mark.parametrize(
    "name",
    [
        "code.read_file",
        "Code.read_file",
        "code.Read_file",
        "c\u043ede.read_file",
        "code.read\u200b_file",
        "code.re\uff41d_file",
        "code..x",
        ".code.x",
        "code.x.",
        "code",
        "",
        "code.x y",
        "code.x\n",
        "code.x\0",
        "code/x",
        "1.x",
        "code.\u202ex",
        "c" * 130 + ".x",
    ],
    ids=lambda name: f"row-49-{name[:20]!r}",
)
def test_a_name_that_is_taken_or_could_pass_for_another_is_refused(name: str) -> None:
    registry = make_registry(make_tool("code.read_file"))

    with pytest.raises(InvalidToolError):
        registry.register(make_tool(name))

    assert [tool.name for tool in registry.definitions()] == ["code.read_file"]


@pytest.mark.spec("REG-02", "REG-10")
@pytest.mark.parametrize(
    "aliases",
    [("code.read_file",), ("Read",), ("Same", "Same"), ("test.x",), ("r\u0435ad",), ("a b",), ("",)],
    ids=lambda aliases: f"row-49-alias-{aliases!r}",
)
def test_an_alias_hides_no_other_tool(aliases: tuple[str, ...]) -> None:
    registry = make_registry(make_tool("code.read_file", aliases=("Read",)))

    with pytest.raises(InvalidToolError):
        registry.register(make_tool("test.x", aliases=aliases))

    assert registry.get("test.x") is None


@pytest.mark.spec("REG-04.c")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("x.a__b", "x.a.b"),
        ("x.a_.b", "x.a._b"),
        ("x._a", "x__a.a"),
        ("x.a_b", "x.a-b"),
        ("x." + "y" * 90 + ".a", "x." + "y" * 90 + ".b"),
    ],
    ids=lambda name: f"row-49-{name[:10]}",
)
def test_two_names_are_two_names_for_a_provider_and_come_back_as_they_were(first: str, second: str) -> None:
    table = NameTable([first, second])

    told = [table.to_provider(name) for name in (first, second)]

    assert len(set(told)) == 2
    assert [table.to_canonical(name) for name in told] == [first, second]


@pytest.mark.spec("REG-04.c")
def test_row_49_a_collision_that_an_alphabet_leaves_no_way_round_is_refused() -> None:
    names = [f"x.{chr(97 + first)}{chr(97 + second)}" for first in range(26) for second in range(26)]

    with pytest.raises(InvalidToolError):
        NameTable(names, pattern="[0-9]+", max_length=3)
