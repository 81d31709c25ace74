import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse

from soong.shared.agents.ports import AgentEnd
from soong.shared.agents.runtime.call_log import RunningCalls
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.tools.definition import HandlerOutput, Permission, ToolContext, ToolDefinition
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.hook import HookCall, NamedHook, PreOutcome
from soong.shared.tools.ports import CallRecord, ToolCall
from soong.shared.tools.result import ErrorType, ToolResult
from soong.shared.tools.schedule import run_turn
from tests.unit.agents.parts import Notebook, make_task, run_task
from tests.unit.agents.test_loop import Talker, calls
from tests.unit.tools.parts import PipelineHarness, make_bench, make_tool
from tests.waiting import others_run

WORDS = "a person aborted this call: it hangs"


@dataclass
class Turn:
    """A turn under way whose tools tell when they were reached."""

    bench: PipelineHarness
    running: RunningCalls
    task: "asyncio.Task[list[ToolResult]]"

    async def results(self) -> dict[str, ToolResult]:
        results = await asyncio.wait_for(asyncio.shield(self.task), 5)
        assert self.task.cancelling() == 0
        return {result.tool_call_id: result for result in results}

    def recorded(self) -> dict[str, ErrorType | None]:
        ends = self.bench.log.ends
        assert len({call.id for call, _, _ in ends}) == len(ends)
        return {call.id: result.error.type if result.error else None for call, result, _ in ends}


@dataclass
class Holding:
    """A handler that holds until it is released or cut off; ``on_cut`` is what it does then."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    on_cut: Callable[[], Awaitable[HandlerOutput]] | None = None

    async def __call__(self, context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        self.reached.set()
        try:
            context.keep_partial("so far")
            await self.release.wait()
        except asyncio.CancelledError:
            if self.on_cut is None:
                raise
            return await self.on_cut()
        return "done"


def begin(tools: Sequence[ToolDefinition], *names: str) -> Turn:
    running = RunningCalls()
    bench = make_bench(tools, around=(running.entered,))
    return _begin(bench, running, names)


def _begin(bench: PipelineHarness, running: RunningCalls, names: Sequence[str]) -> Turn:
    calls = [ToolCall(f"c{number}", name, {"text": "hi"}) for number, name in enumerate(names, 1)]
    return Turn(bench, running, asyncio.ensure_future(run_turn(calls, bench.pipeline)))


async def reached(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 5)


def holding(handler: Holding, name: str = "test.hold", **fields: object) -> ToolDefinition:
    return make_tool(name, handler=handler, **fields)


@pytest.mark.spec("EXE-07.a")
async def test_an_aborted_call_ends_as_an_error_that_says_who_and_why() -> None:
    turn = begin([holding(hold := Holding())], "test.hold")
    await reached(hold.reached)

    assert turn.running.abort("c1", "it hangs")

    result = (await turn.results())["c1"]
    assert result.error is not None
    assert (result.error.type, result.error.message) == (ErrorType.ABORTED, WORDS)
    assert result.metadata == {"aborted": True, "partial": True, "abort_reason": WORDS, "aborted_by": "person"}
    assert "so far" in str(result.content[-1])
    assert turn.bench.ended == result


async def test_only_the_one_of_several_calls_at_once_is_touched() -> None:
    first, second = Holding(), Holding()
    tools = [holding(first, "test.one"), holding(second, "test.two")]
    turn = begin(tools, "test.one", "test.two")
    await reached(first.reached)
    await reached(second.reached)

    assert turn.running.abort("c1")
    await others_run()
    second.release.set()

    assert {key: result.is_error for key, result in (await turn.results()).items()} == {"c1": True, "c2": False}
    assert turn.recorded() == {"c1": ErrorType.ABORTED, "c2": None}


async def test_writes_after_an_aborted_write_are_not_run() -> None:
    write = make_tool("test.write", permission=Permission.WRITE)
    turn = begin([holding(hold := Holding(), permission=Permission.WRITE), write], "test.hold", "test.write")
    await reached(hold.reached)

    turn.running.abort("c1", "it hangs")

    await turn.results()
    assert turn.recorded() == {"c1": ErrorType.ABORTED, "c2": ErrorType.NOT_RUN}


@pytest.mark.spec("EXE-07.f")
async def test_a_tool_that_must_not_be_cut_ends_with_its_own_result() -> None:
    turn = begin([holding(hold := Holding(), interrupt="block")], "test.hold")
    await reached(hold.reached)

    assert turn.running.abort("c1", "it hangs")
    await others_run()
    assert not turn.task.done()
    hold.release.set()

    assert (await turn.results())["c1"].data == "done"


async def test_a_call_that_waits_for_consent_is_aborted_before_it_starts() -> None:
    running, asked, withdrawn = RunningCalls(), asyncio.Event(), asyncio.Event()
    bench = make_bench([make_tool()], around=(running.entered,))

    async def consent() -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()

    bench.gate.before = consent
    turn = _begin(bench, running, ["test.echo"])
    await reached(asked)

    assert running.abort("c1", "it hangs")

    assert (await turn.results())["c1"].is_error
    assert withdrawn.is_set()
    assert bench.log.entries == [("finished", "c1")]


@pytest.mark.parametrize("first", ["run", "call"])
async def test_the_end_of_the_run_at_the_same_moment_wins(first: str) -> None:
    turn = begin([holding(hold := Holding())], "test.hold")
    await reached(hold.reached)

    if first == "run":
        turn.task.cancel("the task was cancelled")
        assert not turn.running.abort("c1", "it hangs")
    else:
        assert turn.running.abort("c1", "it hangs")
        turn.task.cancel("the task was cancelled")

    with pytest.raises(asyncio.CancelledError):
        await turn.task
    assert turn.recorded() == {"c1": ErrorType.ABORTED}
    assert "aborted_by" not in turn.bench.ended.metadata


async def test_the_end_of_the_run_while_the_aborted_call_cleans_up_wins() -> None:
    cleaning = asyncio.Event()

    async def clean_up() -> HandlerOutput:
        cleaning.set()
        await asyncio.Event().wait()
        return None

    turn = begin([holding(hold := Holding(on_cut=clean_up))], "test.hold")
    await reached(hold.reached)
    turn.running.abort("c1", "it hangs")
    await reached(cleaning)

    turn.task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await turn.task
    assert "aborted_by" not in turn.bench.ended.metadata


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["alone", "the run too"])
async def test_an_abort_while_the_end_is_written_comes_too_late(is_cancelled: bool) -> None:
    running, writing, release = RunningCalls(), asyncio.Event(), asyncio.Event()
    bench = make_bench([make_tool()], around=(running.entered,))
    finish = bench.log.finished

    async def slow(call: ToolCall, result: ToolResult, *, duration_ms: int, record: CallRecord | None = None) -> None:
        writing.set()
        await release.wait()
        await finish(call, result, duration_ms=duration_ms, record=record)

    bench.log.finished = slow  # type: ignore[method-assign]
    turn = _begin(bench, running, ["test.echo"])
    await reached(writing)
    running.abort("c1", "it hangs")
    if is_cancelled:
        turn.task.cancel()
    await others_run()
    release.set()

    if is_cancelled:
        with pytest.raises(asyncio.CancelledError):
            await turn.task
    else:
        assert (await turn.results())["c1"].data == "hi"
    assert turn.recorded() == {"c1": None}


async def test_a_handler_that_ends_in_spite_of_the_abort_leaves_none_behind() -> None:
    async def ended() -> HandlerOutput:
        return "done anyway"

    turn = begin([holding(hold := Holding(on_cut=ended)), make_tool()], "test.hold", "test.echo")
    await reached(hold.reached)
    turn.running.abort("c1", "it hangs")

    assert [result.data for result in (await turn.results()).values()] == ["done anyway", "hi"]


async def test_a_handler_that_raises_a_cancellation_of_its_own_is_aborted_alone() -> None:
    async def other() -> HandlerOutput:
        raise asyncio.CancelledError("of a library")

    turn = begin([holding(hold := Holding(on_cut=other))], "test.hold")
    await reached(hold.reached)
    turn.running.abort("c1", "it hangs")

    assert (await turn.results())["c1"].metadata["abort_reason"] == WORDS


async def test_a_call_that_is_not_under_way_or_is_ending_is_refused() -> None:
    turn = begin([holding(hold := Holding())], "test.hold")
    assert not turn.running.abort("c1"), "it has not begun"
    await reached(hold.reached)

    assert [turn.running.abort(each, "it hangs") for each in ("c2", "c1", "c1")] == [False, True, False]

    await turn.results()
    assert not turn.running.abort("c1"), "it has ended"


WORD: JsonObject = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}


class World:
    """Runs agents whose hook stops at one word, and keeps the words that tools were run with."""

    def __init__(self, *, stops_at: str) -> None:
        self.words: list[str] = []
        self.stops_at = stops_at
        self.tools = (
            ToolDefinition("test.read", "Reads.", WORD, self._run, Permission.READONLY),
            ToolDefinition("test.write", "Writes.", WORD, self._run, Permission.WRITE),
        )

    async def _run(self, _context: ToolContext, call_input: JsonObject) -> Json:
        self.words.append(str(call_input["word"]))
        return None

    async def _stop(self, call: HookCall) -> PreOutcome:
        return PreOutcome("stop", "enough") if call.call_input["word"] == self.stops_at else PreOutcome()

    async def run(self, talker: Talker, notebook: Notebook, *, is_resumed: bool = False) -> AgentEnd:
        task = make_task(tools=self.tools, is_resumed=is_resumed)
        return await run_task(task, talker.model, notebook, hooks=Hooks((NamedHook("curfew", self._stop),)))


def turn(*asked: tuple[str, str]) -> ModelResponse:
    return calls(*((f"test__{tool}", {"word": word}, f"c{n}") for n, (tool, word) in enumerate(asked, 1)))


def ended(notebook: Notebook) -> dict[str, str]:
    """Return the error type of each recorded call; empty for a call that succeeded."""
    results: list[Any] = [node.payload for node in notebook.written if node.kind is NodeKind.TOOL_RESULT]
    return {one["tool_call_id"]: one["error"]["type"] if one["error"] else "" for one in results}


@pytest.mark.spec("EXE-13.b", "DIS-05")
@pytest.mark.parametrize("stopped", ["read", "write"])
async def test_a_stop_ends_the_run_and_later_calls_are_not_run(stopped: str) -> None:
    world, notebook = World(stops_at="b"), Notebook()
    talker = Talker(turn(("read", "a"), ("write", "a2"), (stopped, "b"), ("write", "c"), ("read", "d")))

    end = await world.run(talker, notebook)

    assert end.end_reason is EndReason.STOPPED_BY_HOOK
    assert end.error is not None
    assert end.error.message == "enough"
    assert world.words == ["a", "a2"]
    assert ended(notebook) == {"c1": "", "c2": "", "c3": "hook_denied", "c4": "not_run", "c5": "not_run"}
    assert len(talker.told) == 1


@pytest.mark.spec("EXE-13", "EXE-05")
async def test_reads_that_wait_for_room_are_not_begun_after_a_stop() -> None:
    world, notebook = World(stops_at="w0"), Notebook()

    await world.run(Talker(turn(*(("read", f"w{n}") for n in range(12)))), notebook)

    assert [ended(notebook)[f"c{n}"] for n in (1, 11, 12)] == ["hook_denied", "not_run", "not_run"]


@pytest.mark.spec("EXE-13", "DAG-07")
async def test_a_stopped_run_that_is_taken_up_again_asks_no_model_and_runs_no_call() -> None:
    world, notebook = World(stops_at="b"), Notebook()
    await world.run(Talker(turn(("read", "b"), ("write", "c"))), notebook)
    del notebook.written[-1]  # the process died before the second call's end was written

    end = await world.run(Talker(), notebook, is_resumed=True)

    assert end.end_reason is EndReason.STOPPED_BY_HOOK
    assert world.words == []
    assert ended(notebook) == {"c1": "hook_denied", "c2": "not_run"}
