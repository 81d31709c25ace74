"""A run that a hook stops: it ends so, what had not begun is not run, and a process that takes it up agrees."""

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse

from soong.shared.agents.loop import run_agent
from soong.shared.agents.ports import AgentEnd
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.tools.definition import Permission, RunDirs, ToolContext, ToolDefinition
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.hook import HookCall, NamedHook, PreOutcome
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from tests.model.clock import FakeClock
from tests.unit.agents.parts import Notebook, RuleGate, make_task
from tests.unit.agents.test_loop import Talker, calls

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
        place = RunDirs(Path("/p"), Path("/p"), Path("/r"))
        hooks = Hooks((NamedHook("curfew", self._stop),))
        pipeline = ToolPipeline(task.tools, RunScope(task.identity, 1, place), RuleGate(), notebook, hooks=hooks)
        return await run_agent(task, talker.model, pipeline, notebook, notebook, FakeClock())


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
