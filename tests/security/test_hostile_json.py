"""Arguments and results that were made to hurt whoever reads them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from soong.shared.core.jsontext import Json, dump
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, JsonBlock, TextBlock, ToolError, ToolResult
from tests.security.scene import SecurityHarness
from tests.security.test_bad_inputs import check_alive
from tests.unit.tools.parts import make_bench, make_tool
from tests.unit.toolsets.parts import text_of


def nested(depth: int, leaf: Any = 1) -> Any:
    for _ in range(depth):
        leaf = [leaf]
    return leaf


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "duplicate keys": lambda: '{"path": "a", "path": "b"}',
    "nan": lambda: '{"path": NaN}',
    "infinity": lambda: '{"path": "a", "start_line": -Infinity}',
    "10,000 levels": lambda: '{"path": ' + "[" * 10_000 + "]" * 10_000 + "}",
    "10,000 levels of objects": lambda: '{"a":' * 10_000 + "1" + "}" * 10_000,
    "1,000,000 levels, open": lambda: "[" * 1_000_000,
    "100 MB": lambda: '{"path": "' + "x" * 100_000_000 + '"}',
    "100 MB of keys": lambda: "{" + ",".join(f'"{n}":1' for n in range(2_000_000)) + "}",
    "half": lambda: '{"path": "a"',
    "escaped half character": lambda: '{"path": "\\ud800"}',
    "utf-7": lambda: "+AHs-",
    "levels, read already": lambda: {"path": nested(10_000)},
    "levels of objects, read already": lambda: {"path": "a", **deep_object(5_000)},
    "100 MB, read already": lambda: {"path": "x" * 100_000_000},
    "half character in a key": lambda: {"path": "a", "\udfff": 1},
    "number as key": lambda: {1: "a"},
    "bytes": lambda: {"path": b"a"},
    "a set": lambda: {"path": {"a"}},
    "beyond 2^53": lambda: '{"path": "a", "start_line": 9007199254740993}',
    "beyond 2^53, read already": lambda: {"path": "a", "start_line": 9007199254740993},
    "not an object": lambda: [1, 2],
}


def deep_object(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.spec("SCH-03.a", "RES-04")
@pytest.mark.parametrize("make", ARGUMENTS.values(), ids=ARGUMENTS)
async def test_hostile_arguments_are_invalid_input_and_nobody_is_asked(
    scene: SecurityHarness, make: Callable[[], Json]
) -> None:
    async with asyncio.timeout(60):
        result = await scene.bench.pipeline.execute(ToolCall("call_1", "code.read_file", make()))

    assert result.error is not None
    assert result.error.type is ErrorType.INVALID_INPUT
    assert len(result.error.message) < 5_000
    assert scene.gate.asked == []
    assert len(repr(scene.bench.log.ends[-1][0].arguments)) < 2_000_000
    await check_alive(scene)


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("not even a repr")


def circular() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def fail_with(data: Any) -> None:
    raise ToolError(ErrorType.EXECUTION_FAILED, "no", data=data)


OUTPUTS: dict[str, Callable[[], Any]] = {
    "object": lambda: {"a": object()},
    "odd": lambda: [Odd()],
    "bytes": lambda: b"bytes",
    "set": lambda: {"a", "b"},
    "nan": lambda: {"a": float("nan")},
    "circular": circular,
    "10,000 levels": lambda: nested(10_000),
    "number as key": lambda: {1: {2: Odd()}},
    "half character": lambda: "\ud800",
    "a tuple": lambda: {"a": (1, None)},
    "an endless integer": lambda: {"n": 10**5_000},
    "content that is no tuple": lambda: ToolResult("", content="text"),  # type: ignore[arg-type]
    "a text that is none": lambda: ToolResult("", (TextBlock(3),)),  # type: ignore[arg-type]
    "metadata": lambda: ToolResult("", metadata={"a": object()}),  # type: ignore[dict-item]
    "a set in a block": lambda: ToolResult("", (JsonBlock({"a": {1, 2}}),)),  # type: ignore[dict-item]
    "10,000 levels beside an error": lambda: fail_with(nested(10_000)),
}


@pytest.mark.spec("RES-01", "RES-04")
@pytest.mark.parametrize("make", OUTPUTS.values(), ids=OUTPUTS)
async def test_what_a_tool_returns_that_is_no_json_never_ends_the_run(make: Callable[[], Any]) -> None:
    async def handler(_context: object, _input: object) -> Any:
        return make()

    bench = make_bench([make_tool(handler=handler), make_tool("test.ok")])

    async with asyncio.timeout(20):
        result = await bench.call("test.echo")

    assert result.error is None or result.error.type in (ErrorType.INVALID_OUTPUT, ErrorType.EXECUTION_FAILED)
    dump([text_of(bench.ended), bench.ended.summary, bench.ended.data]).encode()  # it can be stored
    assert (await bench.call("test.ok", text="alive")).ok
