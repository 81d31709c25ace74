"""Recorded conversations through the providers' clients and our loop: nothing of an answer is lost in our nodes."""

import json
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, cast

import pytest
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, ToolCallPart

from soong.shared.agents.definition import AgentLimits, ModelOptions
from soong.shared.agents.loop import run_agent
from soong.shared.agents.messages import arguments_of, assistant_node, calls_of, messages_of
from soong.shared.agents.model import provider_model, resolve_model
from soong.shared.agents.ports import AgentEnd
from soong.shared.core.jsontext import dump
from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.events import NewNode, NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, TextBlock, ToolFailure, ToolResult
from tests.unit.agents.parts import Notebook, make_task
from tests.wires.expected import Told, told_by
from tests.wires.recordings import VARIABLE, Exchange, load, names
from tests.wires.replay import ENDED, RecordedModel, Recording, environment, playing
from tests.wires.wire import LOOK

pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")

_MISTRAL: Final = "an answer on Mistral's own wire, whose client is no part of the tests, and OpenAI's refuses it"
_UNMARKED: Final = "a stream without a finish reason; its endpoint is asked for whole answers, which are not recorded"
NOT_REPLAYED: Final = {
    "openai-chat--1c757598.yaml": _MISTRAL,
    "openai-chat--935fa78a.yaml": _MISTRAL,
    "openai-chat--ef0aeff8.yaml": _UNMARKED,
}
"""Recordings that cannot be played, by name, with the reason."""


class Stubs:
    """Answers every call, of whatever tool, as a tool that is done would."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook

    def resolve(self, _name: str) -> ToolDefinition | None:
        return None

    async def execute(self, call: ToolCall) -> ToolResult:
        return await self._ended(call, ToolResult(call.id, (TextBlock("done"),), "done"))

    async def refuse(self, call: ToolCall, type: ErrorType, message: str) -> ToolResult:
        return await self._ended(call, ToolResult(call.id, error=ToolFailure(type, message)))

    async def _ended(self, call: ToolCall, result: ToolResult) -> ToolResult:
        await self.notebook.finished(call, result, duration_ms=0)
        return result


@dataclass(slots=True)
class Played:
    """One run over a part of a recording: its end, its nodes, and what its model heard."""

    end: AgentEnd
    nodes: list[NewNode]
    model: RecordedModel
    last: Exchange

    @property
    def answers(self) -> list[NewNode]:
        return [node for node in self.nodes if node.kind is NodeKind.ASSISTANT]


async def no_pause(_seconds: float) -> None:
    return


async def play(exchanges: list[Exchange], monkeypatch: pytest.MonkeyPatch) -> list[Played]:
    """Play exchanges with one model, in as many runs as the agent's final answers among them end."""
    recording, runs = Recording(exchanges), []
    with playing(recording) as address:
        for name, value in environment(address).items():
            monkeypatch.setenv(name, value)
        while recording.next is not None:
            provider_model.cache_clear()  # a model's connections are closed with it
            before = len(recording.asked)
            runs.append(await _run(recording))
            assert len(recording.asked) > before, runs[-1].end.error
    return runs


async def _run(recording: Recording) -> Played:
    exchange = recording.exchanges[len(recording.asked)]
    wrapped = resolve_model(f"{exchange.wire}:{exchange.model}")
    options = ModelOptions(max_tokens=1024)  # Anthropic's client streams by itself where an answer may be long
    task = make_task(tools=(LOOK,), options=options, limits=AgentLimits(max_repeated_failures=0))
    notebook = Notebook()
    model = RecordedModel(wrapped, recording)
    async with wrapped:
        end = await run_agent(task, model, Stubs(notebook), notebook, notebook, SystemClock(), sleep=no_pause)
    last = recording.exchanges[len(recording.asked) - 1]
    return Played(end, [*notebook.written, *end.nodes], model, last)


@pytest.fixture(params=names() or [""])
async def played(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Played]:
    """Return the runs of one recording."""
    name: str = request.param
    if not name:
        pytest.skip(f"no recordings: {VARIABLE} names no folder of VCR cassettes")
    if name in NOT_REPLAYED:
        pytest.skip(f"not replayed: {NOT_REPLAYED[name]}")
    if name not in _PLAYED:
        exchanges = load(name)
        if not exchanges:
            pytest.skip("not replayed: no exchange with a model on these wires")
        parts = [list(part) for _, part in groupby(exchanges, lambda one: (one.wire, one.model))]
        _PLAYED[name] = [run for part in parts for run in await play(part, monkeypatch)]
        provider_model.cache_clear()
    return _PLAYED[name]


_PLAYED: Final[dict[str, list[Played]]] = {}
"""What each recording came to, for all tests of it."""


def full(response: object) -> bytes:
    """Return everything that the model library knows of a message."""
    return ModelMessagesTypeAdapter.dump_json([response])  # type: ignore[list-item]  # a message


def told(run: Played) -> list[tuple[Told, ModelResponse]]:
    return [(told_by(exchange), response) for exchange, response in run.model.heard]


@pytest.mark.spec("DIS-09.a")
async def test_a_client_with_retries_of_its_own_sends_each_attempt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Exchange("bedrock", "us.amazon.nova-lite-v1:0", 503, {"content-type": "application/json"}, b"{}")
    recording = Recording([busy] * 20)
    with playing(recording) as address:
        for name, value in environment(address).items():
            monkeypatch.setenv(name, value)
        provider_model.cache_clear()
        run = await _run(recording)

    assert run.end.end_reason is EndReason.PROVIDER_FAILED
    assert len(recording.asked) == 5


async def test_a_recorded_answer_loses_nothing_in_its_node(played: list[Played]) -> None:
    for run in played:
        taken = [response for _, response in run.model.heard if response.finish_reason != "error"]
        for node, response in zip(run.answers, taken, strict=True):
            (restored,) = messages_of([node])
            assert dump(assistant_node(cast(ModelResponse, restored)).payload) == dump(node.payload)
            own = iter(calls_of(restored))  # an id of ours stands for one that the provider repeats
            parts = [
                replace(part, tool_call_id=next(own).tool_call_id) if isinstance(part, ToolCallPart) else part
                for part in response.parts
            ]
            assert full(restored) == full(replace(response, parts=parts))


async def test_a_recorded_answer_is_read_as_it_was_sent(played: list[Played]) -> None:
    for run in played:
        for expected, response in told(run):
            made = [(part.tool_name, _object(arguments_of(part))) for part in calls_of(response)]
            assert made == list(expected.calls)
            assert (response.provider_details or {}).get("finish_reason") == expected.finish
            kept = dump(assistant_node(response).payload)
            assert [one for one in expected.signatures if json.dumps(one) not in kept] == []


async def test_a_recording_costs_what_it_says(played: list[Played]) -> None:
    for run in played:
        expected = [each for each, _response in told(run)]
        assert run.end.usage.requests == len(expected)
        assert run.end.usage.input_tokens == sum(each.input_tokens for each in expected)
        assert run.end.usage.output_tokens == sum(each.output_tokens for each in expected)
        taken = [each for each, response in told(run) if response.finish_reason != "error"]
        assert run.end.usage.tool_calls == sum(len(each.calls) for each in taken)


async def test_a_recording_ends_as_it_says(played: list[Played]) -> None:
    for run in played:
        assert _has_right_end(run), (run.end.end_reason, run.end.error, run.last)


def _has_right_end(run: Played) -> bool:
    reason, message = run.end.end_reason, run.end.error.message if run.end.error else ""
    if run.last.status >= 400:
        return reason is EndReason.PROVIDER_FAILED
    expected = told_by(run.last)
    if expected.calls or expected.finish in _CUT or not expected.text.strip():
        return reason is EndReason.PROVIDER_FAILED and ENDED in message  # the agent wanted to go on
    return reason is EndReason.COMPLETED and _object(run.end.output) == _object(expected.text.strip())


_CUT: Final = frozenset({"length", "max_tokens", "max_output_tokens", "MAX_TOKENS"})


def _object(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
