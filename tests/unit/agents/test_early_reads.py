"""Reads that start while the rest of an answer arrives: which, in which order, and what a cut one leaves (EXE-10)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace
from pydantic_ai.exceptions import ModelConnectionError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from soong.shared.agents.ports import AgentEnd
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.record import EndReason
from soong.shared.tools.definition import Permission, ToolContext, ToolDefinition
from tests.unit.agents.parts import Notebook, make_task, run_task
from tests.waiting import others_run

pytestmark = pytest.mark.spec("EXE-10.a")

Turn = Callable[[], AsyncIterator[str | DeltaToolCalls]]


@dataclass
class Stage:
    """A stream that waits where a test wants it to, and tools that tell when they begin and end."""

    begun: dict[str, asyncio.Event] = field(default_factory=dict)
    """By what a call reads or writes."""
    order: list[str] = field(default_factory=list)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    notebook: Notebook = field(default_factory=Notebook)

    def has_begun(self, name: str) -> asyncio.Event:
        return self.begun.setdefault(name, asyncio.Event())

    async def handle(self, _context: ToolContext, call_input: JsonObject) -> Json:
        name = str(call_input["name"])
        self.order.append(name)
        self.has_begun(name).set()
        if self.order.count(name) == 1 and name == "slow":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.order.append(f"{name} is cut")
                raise
        return f"{name} done"

    async def run(self, *turns: Turn) -> AgentEnd:
        left = list(turns)

        async def stream(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
            turn = left.pop(0)
            async for piece in turn():
                yield piece

        named: JsonObject = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        read = ToolDefinition("test.read", "Read.", named, self.handle, Permission.READONLY)
        write, block = replace(read, name="test.write", permission=Permission.WRITE), replace(read, name="test.block")
        tools = (read, write, replace(block, interrupt="block"))
        model = FunctionModel(stream_function=stream)
        async with asyncio.timeout(20):
            return await run_task(make_task(tools=tools), model, self.notebook, clock=SystemClock())

    @property
    def results(self) -> list[str]:
        return [str(node.payload["tool_call_id"]) for node in self.notebook.written if node.kind == "tool_result"]


def call(index: int, tool: str, name: str, call_id: str = "") -> DeltaToolCalls:
    arguments = f'{{"name": "{name}"}}'
    return {index: DeltaToolCall(f"test__{tool}", arguments, tool_call_id=call_id or f"c{index}")}


async def test_a_read_that_cannot_be_cut_begins_after_the_answer() -> None:
    stage = Stage()

    async def turn() -> AsyncIterator[str | DeltaToolCalls]:
        yield call(1, "block", "a")
        yield call(2, "read", "b")
        await others_run(10)
        assert stage.order == []

    end = await stage.run(turn, done)

    assert (end.output, sorted(stage.order)) == ("done", ["a", "b"])


async def done() -> AsyncIterator[str | DeltaToolCalls]:
    yield "done"


async def test_a_complete_read_begins_while_the_answer_still_arrives() -> None:
    stage = Stage()

    async def turn() -> AsyncIterator[str | DeltaToolCalls]:
        yield call(1, "read", "a")
        await stage.has_begun("a").wait()
        yield {2: DeltaToolCall("test__read", '{"name": ', tool_call_id="c2")}
        await others_run(10)
        assert stage.order == ["a"]
        yield {2: DeltaToolCall(json_args='"b"}')}
        await stage.has_begun("b").wait()
        assert stage.notebook.written == []

    end = await stage.run(turn, done)

    assert (end.end_reason, end.output) == (EndReason.COMPLETED, "done")
    assert stage.order == ["a", "b"]
    kinds = [str(node.kind) for node in stage.notebook.written]
    assert kinds[kinds.index("assistant") :] == ["assistant", "tool_result", "tool_result"]
    assert sorted(stage.results) == ["c1", "c2"]


async def test_nothing_behind_a_write_begins_early() -> None:
    stage = Stage()

    async def turn() -> AsyncIterator[str | DeltaToolCalls]:
        yield call(1, "read", "a")
        yield call(2, "write", "w")
        yield call(3, "read", "b")
        yield call(4, "read", "c")
        await stage.has_begun("a").wait()
        await others_run(10)
        assert stage.order == ["a"]

    end = await stage.run(turn, done)

    assert end.output == "done"
    assert stage.order[:2] == ["a", "w"]
    assert sorted(stage.order[2:]) == ["b", "c"]


async def test_a_call_whose_arguments_are_not_valid_does_not_begin_and_stops_those_behind_it() -> None:
    stage = Stage()

    async def turn() -> AsyncIterator[str | DeltaToolCalls]:
        yield {1: DeltaToolCall("test__read", '{"path": 1}', tool_call_id="c1")}
        yield call(2, "read", "b")
        yield call(3, "read", "c")
        await others_run(10)
        assert stage.order == []

    end = await stage.run(turn, done)

    assert end.output == "done"
    assert stage.results[0] == "c1"
    assert sorted(stage.order) == ["b", "c"]


@pytest.mark.spec("EXE-10.b", "RES-04.d")
async def test_calls_of_a_stream_that_is_cut_are_discarded_and_no_model_sees_them() -> None:
    stage = Stage()

    async def cut() -> AsyncIterator[str | DeltaToolCalls]:
        yield call(1, "read", "slow")
        yield call(2, "read", "quick")
        yield {3: DeltaToolCall("test__read", '{"name": "ne', tool_call_id="c3")}
        await stage.has_begun("slow").wait()
        await stage.has_begun("quick").wait()
        raise ModelConnectionError("m", "the connection is gone")

    async def again() -> AsyncIterator[str | DeltaToolCalls]:
        assert stage.order == ["slow", "quick", "slow is cut"]
        yield call(1, "read", "a")

    end = await stage.run(cut, again, done)
    told = [node for node in stage.notebook.written if node.kind == "assistant"]

    assert end.output == "done"
    assert sorted(stage.notebook.discarded) == ["c1", "c2"]
    assert stage.results == ["c1_1"]  # an id that was spent is not given again
    assert "slow" not in str(told)
    assert end.outcome == "clean"


async def test_a_call_that_changes_after_it_began_is_made_as_it_is_in_the_end() -> None:
    stage = Stage()

    async def turn() -> AsyncIterator[str | DeltaToolCalls]:
        yield call(1, "read", "slow")
        await stage.has_begun("slow").wait()
        yield {1: DeltaToolCall(json_args="}")}

    end = await stage.run(turn, done)

    assert end.output == "done"
    assert stage.order == ["slow", "slow is cut"]
    assert stage.notebook.discarded == ["c1"]
    (result,) = [node.payload for node in stage.notebook.written if node.kind == "tool_result"]
    assert "invalid_input" in str(result)


async def test_space_after_the_arguments_changes_nothing() -> None:
    stage = Stage()

    async def turn() -> AsyncIterator[str | DeltaToolCalls]:
        yield call(1, "read", "a")
        await stage.has_begun("a").wait()
        yield {1: DeltaToolCall(json_args=" \n")}

    end = await stage.run(turn, done)

    assert (end.output, stage.order, stage.notebook.discarded) == ("done", ["a"], [])


async def test_an_early_read_is_cut_when_the_run_is_cancelled() -> None:
    stage = Stage()

    async def turn() -> AsyncIterator[str | DeltaToolCalls]:
        yield call(1, "read", "slow")
        await asyncio.Event().wait()

    running = asyncio.create_task(stage.run(turn))
    await stage.has_begun("slow").wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert stage.order == ["slow", "slow is cut"]
    assert stage.notebook.discarded == ["c1"]
    assert [node for node in stage.notebook.written if node.kind == "tool_result"] == []


async def test_no_model_asks_for_more_reads_at_once_than_a_run_may() -> None:
    stage = Stage()
    names = [f"r{number}" for number in range(15)]

    async def turn() -> AsyncIterator[str | DeltaToolCalls]:
        for number, name in enumerate(names, 1):
            yield call(number, "read", name)
        await others_run(30)
        assert stage.order == names[:10]

    end = await stage.run(turn, done)

    assert end.output == "done"
    assert sorted(stage.order) == sorted(names)
