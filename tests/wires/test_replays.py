"""The record of a run over a real wire is enough to play it again: its streamed answers, failures and fallbacks."""

from collections.abc import Sequence
from typing import Any, Final

import pytest
from llmock.scenarios import Fail, Match, Reply, ToolCall
from msgspec.structs import replace

from soong.shared.agents.ports import AgentTask
from soong.shared.agents.replay.replay import ReplayedRun, replay_run
from soong.shared.agents.runtime.agent_task import ModelRules
from soong.shared.core.config import Config
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.events import EventType
from soong.shared.sandbox.redact import Redactor
from tests.unit.agents.parts import make_task
from tests.unit.agents.test_replay import Tape
from tests.wires.wire import LOOK, MODELS, Wires


async def no_pause(_seconds: float) -> None:
    return


def task_for(wire: str) -> AgentTask:
    task = make_task()
    return replace(task, identity=replace(task.identity, model=MODELS[wire]))


async def replayed(tape: Tape, wire: str) -> ReplayedRun:
    task = replace(task_for(wire), tools=(LOOK,))
    return await replay_run(await tape.record(), task, ModelRules(Config()), Redactor())


@pytest.mark.spec("DAG-11.a")
@pytest.mark.parametrize("wire", MODELS)
async def test_a_run_with_streamed_answers_is_the_same_when_it_is_replayed(wires: Wires, wire: str) -> None:
    wires.will(Fail(503), Reply(tool_calls=(ToolCall("code__list_dir", {"path": "a"}),)), Reply(text="done"))
    tape = Tape()
    tape.begins()

    tape.ends(await wires.run(wire, task_for(wire), notebook=tape, sleep=no_pause))  # type: ignore[arg-type]  # both logs
    found = await replayed(tape, wire)

    assert list(map(str, found.differences)) == []
    assert (found.turns, found.calls) == (2, 1)


@pytest.mark.spec("DAG-11.a")
async def test_a_fallback_or_a_count_that_is_another_in_an_event_alone_is_a_difference(wires: Wires) -> None:
    wires.will(Fail(401, times=None, match=Match(model="gpt-5")), Reply(text="done"))
    tape, wire = Tape(), "openai-chat"
    tape.begins()
    notebook: Any = tape
    tape.ends(await wires.run(wire, task_for(wire), notebook=notebook, fallbacks=[MODELS["anthropic"]]))
    written = list(tape.events)

    assert list((await replayed(tape, wire)).differences) == []
    for type_, changed in CHANGES:
        tape.events = [replace(one, data={**one.data, **changed}) if one.type == type_ else one for one in written]
        assert (await replayed(tape, wire)).differences, (type_, changed)


CHANGES: Final[Sequence[tuple[EventType, JsonObject]]] = (
    (EventType.MODEL_FALLBACK, {"from": "openai-chat:another"}),
    (EventType.MODEL_RESPONDED, {"input_tokens": 999}),
    (EventType.MODEL_RESPONDED, {"output_tokens": 999}),
    (EventType.MODEL_RESPONDED, {"finish_reason": "another"}),
)
