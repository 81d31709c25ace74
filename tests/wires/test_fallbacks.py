from dataclasses import dataclass

import pytest
from llmock.scenarios import Fail, Match, Reply, ToolCall
from msgspec.structs import replace
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart

from soong.shared.agents.messages import assistant_node, opening_nodes, result_node
from soong.shared.agents.ports import AgentEnd, AgentTask
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import EndReason
from soong.shared.tools.ports import StartedCall
from soong.shared.tools.result import TextBlock, ToolResult
from tests.unit.agents.parts import Notebook, make_task
from tests.wires.test_wires import context_full, no_pause
from tests.wires.wire import MODELS, Wires

PAIRS = [
    ("openai-chat", "anthropic"),
    ("anthropic", "openai-responses"),
    ("openai-responses", "google"),
    ("google", "openai-chat"),
    ("ollama", "anthropic"),
]
EVERY_PAIR = pytest.mark.parametrize(("first", "second"), PAIRS)
LOOK = ToolCall("code__list_dir", {"path": "a"})


def match(wire: str) -> Match:
    return Match(model=MODELS[wire].partition(":")[2])


def task_on(wire: str, **overrides: object) -> AgentTask:
    task = make_task(**overrides)
    return replace(task, identity=replace(task.identity, model=MODELS[wire]))


def falls(end: AgentEnd, notebook: Notebook) -> int:
    written = [*notebook.events, *(event.type for event in end.events)]
    return written.count(EventType.MODEL_FALLBACK)


@dataclass
class Outage(Notebook):
    """From the first call of the run on, the provider of its model is down."""

    wires: Wires | None = None
    wire: str = ""

    async def started(self, started: StartedCall) -> None:
        await super().started(started)
        assert self.wires is not None
        if len(self.started_calls) == 1:
            self.wires.will(Fail(503, times=None, match=match(self.wire)))


@pytest.mark.spec("DIS-09")
@EVERY_PAIR
async def test_a_run_whose_provider_goes_down_continues_on_another_wire(wires: Wires, first: str, second: str) -> None:
    wires.will(Reply(tool_calls=(LOOK,), match=match(first)), Reply(tool_calls=(LOOK,), match=match(second)))
    wires.will(Reply(text="one file", match=match(second)))
    notebook = Outage(wires=wires, wire=first)

    end = await wires.run(first, task_on(first), notebook=notebook, sleep=no_pause, fallbacks=[MODELS[second]])

    assert (end.end_reason, end.output, falls(end, notebook)) == (EndReason.COMPLETED, "one file", 1)
    refused = [request for request in wires.requests if request.status == 503]
    answered = [request for request in wires.requests if request.status == 200]
    assert (len(refused), len(answered)) == (5, 3)
    assert "in a: one file" in str(answered[1].body)
    assert {name: used.requests for name, used in end.usage.by_model.items()} == {MODELS[first]: 1, MODELS[second]: 2}
    assert sum(used.input_tokens for used in end.usage.by_model.values()) == end.usage.input_tokens


@pytest.mark.spec("DIS-09")
@EVERY_PAIR
async def test_a_resumed_run_asks_the_model_that_it_had_fallen_back_to(wires: Wires, first: str, second: str) -> None:
    wires.will(Fail(401, times=None, match=match(first)))
    wires.will(Reply(tool_calls=(LOOK,), match=match(second)), Reply(text="one file", match=match(second), times=2))
    notebook, task = Notebook(), task_on(first)
    whole = await wires.run(first, task, notebook=notebook, fallbacks=[MODELS[second]])
    asked_before = len(wires.requests)

    resumed = replace(task, is_resumed=True)
    end = await wires.run(first, resumed, notebook=notebook, fallbacks=[MODELS[second]])

    assert (whole.output, end.output, asked_before) == ("one file", "one file", 3)
    (last,) = wires.requests[asked_before:]
    assert last.status == 200
    assert set(end.usage.by_model) == {MODELS[second]}
    assert end.usage.requests == 2


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_model_that_the_account_cannot_use_is_asked_once(wires: Wires, status: int) -> None:
    wires.will(Fail(status, times=None, match=match("openai-chat")), Reply(text="here", match=match("anthropic")))

    end = await wires.run("openai-chat", task_on("openai-chat"), fallbacks=[MODELS["anthropic"]])

    assert (end.output, [request.status for request in wires.requests]) == ("here", [status, 200])


@pytest.mark.spec("DIS-12.d")
@pytest.mark.parametrize("seconds", [601, 51720])
async def test_a_pause_beyond_the_bound_fails_the_model_at_once(wires: Wires, seconds: int) -> None:
    wires.will(Fail(429, retry_after=seconds, match=match("openai-chat")), Reply(text="here"))

    end = await wires.run("openai-chat", task_on("openai-chat"), fallbacks=[MODELS["anthropic"]])

    assert (end.output, [request.status for request in wires.requests]) == ("here", [429, 200])


@EVERY_PAIR
async def test_what_is_wrong_with_the_request_ends_the_run(wires: Wires, first: str, second: str) -> None:
    wires.will(Fail(400, message="this parameter is not known", times=None, match=match(first)))

    end = await wires.run(first, task_on(first), sleep=no_pause, fallbacks=[MODELS[second]])

    assert (end.end_reason, len(wires.requests)) == (EndReason.PROVIDER_FAILED, 1)


@pytest.mark.spec("DIS-12.c")
@EVERY_PAIR
async def test_a_full_context_asks_no_fallback(wires: Wires, first: str, second: str) -> None:
    wires.will(context_full(first))

    end = await wires.run(first, task_on(first), fallbacks=[MODELS[second]])

    assert (end.end_reason, len(wires.requests)) == (EndReason.TOKEN_LIMIT, 1)
    assert end.error is not None
    assert not end.error.retryable


async def test_a_run_ends_when_the_last_fallback_has_failed(wires: Wires) -> None:
    wires.will(Fail(503, times=None))
    fallbacks = [MODELS["anthropic"], MODELS["google"]]

    end = await wires.run("openai-chat", task_on("openai-chat"), sleep=no_pause, fallbacks=fallbacks)

    assert end.end_reason is EndReason.PROVIDER_FAILED
    assert end.error is not None
    assert end.error.retryable
    assert len(wires.requests) == 15


@pytest.mark.parametrize("wire", MODELS)
async def test_signatures_go_back_only_to_the_provider_that_signed(wires: Wires, wire: str) -> None:
    thought = ThinkingPart("let me look", signature="c2lnbmVk", provider_name="anthropic")
    call = ToolCallPart("code__list_dir", {"path": "a"}, tool_call_id="toolu_1")
    answer = ModelResponse([thought, TextPart("I look"), call], provider_name="anthropic", model_name="claude")
    result = result_node("code.list_dir", ToolResult("toolu_1", (TextBlock("in a: one file"),), "in a: one file"))
    opening = opening_nodes("you are a worker", "do it", {}, {})
    notebook = Notebook(written=[*opening, assistant_node(answer), result])
    wires.will(Reply(text="done"))

    end = await wires.run(wire, replace(task_on(wire), is_resumed=True), notebook=notebook)

    (asked,) = wires.requests
    assert end.output == "done"
    assert ("c2lnbmVk" in str(asked.body), "in a: one file" in str(asked.body)) == (wire == "anthropic", True)
