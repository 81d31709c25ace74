"""Answers of models that are malformed, cut or meaningless."""

import gc
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponseStreamEvent,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.settings import ModelSettings

from soong.shared.agents.loop import run_agent
from soong.shared.agents.model_request import AnswerSource, BrokenAnswerError, UnmarkedAnswerError, can_stream
from soong.shared.agents.ports import NO_FOLLOWER, AnswerFollower
from soong.shared.agents.scripted_model import ScriptedModel
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.functions import resolve_script
from soong.shared.tools.definition import RunDirs
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from tests.model.clock import FakeClock
from tests.unit.agents.parts import Notebook, RuleGate, make_identity, make_task
from tests.unit.agents.test_loop import SHOUT, Talker
from tests.unit.agents.test_model import Provider, answer

WHOLE = answer("stop", "stop", provider="openai")
CUT = answer("stop", provider="openai")
NUMBERS = count()


class Streaming(Provider):
    """A provider whose answers come as streams; ``asked`` says how each was asked for."""

    def __init__(self, *answers: ModelResponse | Exception) -> None:
        super().__init__(*answers)
        self.asked: list[str] = []
        self.name = f"m{next(NUMBERS)}"

    @property
    def model_name(self) -> str:
        return self.name  # what a process has seen of one is no business of another test's

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        self.asked.append("whole")
        return await super().request(messages, model_settings, model_request_parameters)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: Any = None,
    ) -> AsyncGenerator[StreamedResponse]:
        self.asked.append("stream")
        whole = await super().request(messages, model_settings, model_request_parameters)
        yield CompletedStreamedResponse(whole, model_request_parameters=model_request_parameters, replay_events=True)


@dataclass
class Follower(AnswerFollower):
    seen: list[str] = field(default_factory=list)

    def take(self, event: ModelResponseStreamEvent) -> None:
        self.seen.append(event.event_kind)

    async def discard(self) -> None:
        self.seen.append("discarded")


async def ask(source: AnswerSource, follower: AnswerFollower = NO_FOLLOWER) -> ModelResponse:
    messages: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("hi")])]
    return await source.next(messages, ModelSettings(), ModelRequestParameters(), follower)


@pytest.mark.spec("DIS-12.a")
async def test_what_was_seen_of_a_stream_without_its_mark_is_discarded() -> None:
    follower = Follower()

    with pytest.raises(UnmarkedAnswerError):
        await ask(AnswerSource(Streaming(CUT), True), follower)

    assert follower.seen[-1] == "discarded"


async def test_an_empty_stream_is_a_broken_answer() -> None:
    empty = UnexpectedModelBehavior("Streamed response ended without content or tool calls")

    with pytest.raises(BrokenAnswerError):
        await ask(AnswerSource(Streaming(empty), True))


async def test_an_endpoint_whose_answers_never_have_a_mark_is_asked_for_whole_ones() -> None:
    model = Streaming(CUT, CUT, CUT, CUT, CUT)
    source = AnswerSource(model, True)

    for _ in range(2):
        with pytest.raises(UnmarkedAnswerError):
            await ask(source)
    for _ in range(2):
        await ask(source)
    await ask(AnswerSource(model, True))  # another run of this process

    assert model.asked == ["stream", "stream", "whole", "whole", "whole"]


async def test_streams_that_were_cut_do_not_end_streaming() -> None:
    model = Streaming(CUT, CUT, WHOLE, WHOLE)
    source = AnswerSource(model, True)

    for _ in range(2):
        with pytest.raises(UnmarkedAnswerError):
            await ask(source)
    for _ in range(2):
        await ask(source)

    assert model.asked == ["stream", "stream", "whole", "stream"]


async def test_models_without_streams_are_asked_for_whole_answers() -> None:
    async def streamed(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncGenerator[str]:
        yield "a"

    def whole(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        return WHOLE

    models: list[Model[Any]] = [ScriptedModel(resolve_script("builtin.echo")), FunctionModel(whole), Provider()]

    assert [can_stream(model) for model in models] == [False] * 3
    assert can_stream(FunctionModel(whole, stream_function=streamed))


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
