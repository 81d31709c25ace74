"""What a run had is freed when it ends: a process would spend a tenth of its time on searching it for cycles."""

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model

from soong.shared.agents.loop import run_agent
from soong.shared.agents.scripted_model import ScriptedModel
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.functions import resolve_script
from soong.shared.tools.definition import RunDirs
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from tests.model.clock import FakeClock
from tests.unit.agents.parts import Notebook, RuleGate, make_identity, make_task
from tests.unit.agents.test_loop import SHOUT, Talker

CALL = {"calls": [{"call": "test.shout", "with": {"text": "a"}}]}


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _talker() -> Model[None]:
    call = ModelResponse(parts=[ToolCallPart("test__shout", {"text": "a"}, "c1")])
    return Talker(call, ModelResponse(parts=[TextPart("done")])).model


def _script() -> Model[None]:
    return ScriptedModel(resolve_script("builtin.calls"))


async def _ran(model: Model[None], folder: Path) -> "weakref.ref[ToolPipeline]":
    """Run an agent with one call to its end; return what shows whether what made the call is still there."""
    notebook, clock = Notebook(), FakeClock()
    scope = RunScope(make_identity(), 1, RunDirs(folder, folder, folder))
    pipeline = ToolPipeline([SHOUT], scope, RuleGate(), notebook, clock=clock)
    task = make_task(tools=[SHOUT], inputs=CALL)
    end = await run_agent(task, model, pipeline, notebook, notebook, clock)
    assert end.end_reason is EndReason.COMPLETED
    return weakref.ref(pipeline)


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("make", [_talker, _script])
async def test_a_run_that_has_ended_leaves_no_cycle(make: Callable[[], Model[None]], tmp_path: Path) -> None:
    assert (await _ran(make(), tmp_path))() is None
