"""The loop on every wire, through the providers' own clients; the server breaks the wire and judges the client."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator
from llmock.scenarios import Fail, Reply, StreamFault, ToolCall, ToolFault
from pydantic import TypeAdapter
from pydantic_ai.messages import ModelResponse, ModelResponseStreamEvent, TextPart
from pydantic_ai.usage import RequestUsage

from soong.shared.agents.definition import AgentLimits, ModelOptions
from soong.shared.agents.ports import AgentEnd, AgentTask, AnswerView
from soong.shared.agents.requests import add, usage_of
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.step import Outcome
from soong.shared.tools.ports import CallRecord
from soong.shared.tools.ports import ToolCall as Call
from soong.shared.tools.result import ToolResult
from tests.unit.agents.parts import Notebook, make_task
from tests.wires.wire import MODELS, Wires

EVERY_WIRE = pytest.mark.parametrize("wire", MODELS)
CHUNKS_OF_A_CALL = {"openai-chat": 3, "openai-responses": 6, "anthropic": 5, "ollama": 3}
"""After so many chunks of an answer of two calls the first call has begun. On Google's wire they are one chunk."""

BEFORE_THE_END = {"openai-chat": 6, "openai-responses": 9, "anthropic": 8, "ollama": 6}
"""After so many chunks of an answer of two calls the first call is complete, and the second has begun."""


async def no_pause(_seconds: float) -> None:
    return


def context_full(wire: str) -> Fail:
    """Return the refusal of a request that is too long, as the provider says it."""
    words = {
        "anthropic": "prompt is too long: 210000 tokens > 200000 maximum",
        "google": "The input token count (2000000) exceeds the maximum number of tokens allowed (1048576).",
    }.get(wire, "This model's maximum context length is 2048 tokens.")
    codes = {"anthropic": "invalid_request_error", "google": "INVALID_ARGUMENT"}
    return Fail(400, message=words, code=codes.get(wire, "context_length_exceeded"))


@dataclass
class Overfull(Notebook):
    """Says when the second result is there: from then on the history is too long."""

    is_full: Callable[[], None] = lambda: None

    async def finished(
        self, call: Call, result: ToolResult, *, duration_ms: int, record: CallRecord | None = None
    ) -> None:
        await super().finished(call, result, duration_ms=duration_ms, record=record)
        if sum(node.kind == "tool_result" for node in self.written) == 2:
            self.is_full()


def failures(end: AgentEnd, notebook: Notebook) -> int:
    """Return how many requests have failed: in what was written meanwhile, and what is written with the end."""
    return [*notebook.events, *(event.type for event in end.events)].count(EventType.MODEL_FAILED)


@pytest.mark.spec("REG-04")
@EVERY_WIRE
async def test_two_calls_at_once_and_an_answer(wires: Wires, wire: str) -> None:
    calls = (ToolCall("code__list_dir", {"path": "a"}), ToolCall("code__list_dir", {"path": "b"}))
    wires.will(Reply(tool_calls=calls), Reply(text="two folders, one file each"))
    notebook = Notebook()

    end = await wires.run(wire, notebook=notebook)

    assert (end.end_reason, end.outcome) == (EndReason.COMPLETED, Outcome.CLEAN)
    assert end.output == "two folders, one file each"
    results = [node.payload for node in notebook.written if node.kind == "tool_result"]
    assert [one["tool"] for one in results] == ["code.list_dir", "code.list_dir"]
    asked, told = wires.requests
    assert "code__list_dir" in str(asked.body)
    assert all(f"in {path}: one file" in str(told.body) for path in "ab")
    assert (end.usage.requests, end.usage.tool_calls) == (2, 2)
    assert end.usage.input_tokens > 0
    wires.verdict.assert_ok(strict=True)


@pytest.mark.spec("DIS-09.a", "DIS-12.d")
@EVERY_WIRE
async def test_a_provider_that_is_away_is_asked_five_times(wires: Wires, wire: str) -> None:
    wires.will(Fail(503, times=None))

    end = await wires.run(wire, notebook=(notebook := Notebook()), sleep=no_pause)

    assert end.end_reason is EndReason.PROVIDER_FAILED
    assert end.error is not None
    assert end.error.retryable
    assert len(wires.requests) == 5
    assert failures(end, notebook) == 5


@pytest.mark.spec("DIS-12.d")
@EVERY_WIRE
async def test_a_long_retry_after_is_honoured_too(wires: Wires, wire: str) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    wires.will(Fail(429, retry_after=400), Reply(text="back"))

    end = await wires.run(wire, sleep=sleep)

    assert (end.output, pauses) == ("back", [400.0])


@pytest.mark.spec("DIS-09.a")
@EVERY_WIRE
async def test_a_refusal_is_final(wires: Wires, wire: str) -> None:
    wires.will(Fail(401, times=None))

    end = await wires.run(wire)

    assert end.end_reason is EndReason.PROVIDER_FAILED
    assert end.error is not None
    assert not end.error.retryable
    wires.verdict.assert_ok()
    assert len(wires.requests) == 1


@pytest.mark.spec("DIS-12.b")
@EVERY_WIRE
async def test_an_answer_cut_at_the_limit_of_tokens_is_continued(wires: Wires, wire: str) -> None:
    wires.will(Reply(text="one ", finish_reason="length"), Reply(text="two"))

    end = await wires.run(wire)

    assert (end.end_reason, end.output) == (EndReason.COMPLETED, "one two")


@pytest.mark.spec("DIS-12.b")
@EVERY_WIRE
async def test_an_answer_that_is_cut_every_time_ends_as_token_limit(wires: Wires, wire: str) -> None:
    wires.will(Reply(text="one ", finish_reason="length", times=None))

    end = await wires.run(wire, make_task(limits=AgentLimits(max_continuations=1)))

    assert (end.end_reason, end.output) == (EndReason.TOKEN_LIMIT, None)
    assert len(wires.requests) == 2


@pytest.mark.spec("DIS-12.c")
@EVERY_WIRE
async def test_a_history_that_is_refused_is_summed_up(wires: Wires, wire: str) -> None:
    look = ToolCall("code__list_dir", {"path": "a"})
    wires.will(Reply(tool_calls=(look,)), Reply(tool_calls=(look,)))
    wires.will(Reply(text="there is one file in a"), Reply(text="done"))
    notebook = Overfull(is_full=lambda: wires.will(context_full(wire)))

    end = await wires.run(wire, notebook=notebook)

    assert (end.end_reason, end.output) == (EndReason.COMPLETED, "done")
    assert end.usage.requests == 4
    summing, last = wires.requests[-2:]
    assert "code__list_dir" in str(summing.body)
    assert not summing.body.get("tools")
    assert "there is one file in a" in str(last.body)
    wires.verdict.assert_ok()


@pytest.mark.parametrize("kind", ["malformed_arguments", "unknown_tool"])
@EVERY_WIRE
async def test_a_call_that_cannot_be_made_is_answered_and_the_run_goes_on(wires: Wires, wire: str, kind: str) -> None:
    if (wire, kind) == ("google", "malformed_arguments"):
        pytest.skip("this wire sends arguments as an object")
    wires.will(ToolFault(kind), Reply(tool_calls=(ToolCall("code__list_dir", {"path": "a"}),)), Reply(text="done"))  # type: ignore[arg-type]  # a literal
    notebook = Notebook()

    end = await wires.run(wire, notebook=notebook)

    assert end.output == "done"
    (result,) = [node.payload for node in notebook.written if node.kind == "tool_result"]
    assert result["is_error"] is True


@pytest.mark.spec("DIS-12.a")
@pytest.mark.parametrize("kind", ["truncate", "disconnect", "malformed", "stall"])
@EVERY_WIRE
async def test_a_stream_that_breaks_is_asked_for_again(wires: Wires, wire: str, kind: str) -> None:
    after = 2 if wire == "google" else 4
    fault = StreamFault(kind, after_chunks=after, stall_seconds=20.0)  # type: ignore[arg-type]  # a literal
    wires.will(fault, Reply(text="one two three four", times=2))
    task = make_task(options=ModelOptions(timeout_s=1.0))

    end = await wires.run(wire, task, notebook=(notebook := Notebook()), sleep=no_pause)

    assert (end.end_reason, end.output) == (EndReason.COMPLETED, "one two three four")
    assert failures(end, notebook) == 1
    wires.verdict.assert_ok()


@pytest.mark.spec("DIS-12.a")
@pytest.mark.parametrize("wire", CHUNKS_OF_A_CALL)
async def test_calls_of_a_stream_that_was_cut_are_not_made(wires: Wires, wire: str) -> None:
    calls = (ToolCall("code__list_dir", {"path": "a"}), ToolCall("code__list_dir", {"path": "b"}))
    wires.will(StreamFault("truncate", after_chunks=CHUNKS_OF_A_CALL[wire]), Reply(tool_calls=calls, times=2))
    wires.will(Reply(text="done"))
    notebook = Notebook()

    end = await wires.run(wire, notebook=notebook, sleep=no_pause)

    assert end.output == "done"
    assert len([node for node in notebook.written if node.kind == "tool_result"]) == 2
    assert notebook.events.count(EventType.MODEL_FAILED) == 1
    wires.verdict.assert_ok()


@EVERY_WIRE
async def test_whole_answers_are_asked_for_where_streaming_is_off(wires: Wires, wire: str) -> None:
    wires.will(Reply(text="one"))

    end = await wires.run(wire, make_task(is_streamed=False))

    (asked,) = wires.requests
    assert (end.output, asked.stream) == ("one", wire == "anthropic")  # whose client streams by itself


@pytest.mark.spec("EXE-10.b")
@pytest.mark.parametrize("wire", CHUNKS_OF_A_CALL)
async def test_a_read_that_began_in_a_stream_which_stands_still_is_discarded(wires: Wires, wire: str) -> None:
    calls = (ToolCall("code__list_dir", {"path": "a"}), ToolCall("code__list_dir", {"path": "b"}))
    wires.will(StreamFault("stall", after_chunks=BEFORE_THE_END[wire], stall_seconds=20.0))
    wires.will(Reply(tool_calls=calls, times=2), Reply(text="done"))
    notebook = Notebook()

    end = await wires.run(wire, make_task(options=ModelOptions(timeout_s=1.0)), notebook=notebook, sleep=no_pause)

    assert end.output == "done"
    assert notebook.discarded
    results = [node.payload["tool_call_id"] for node in notebook.written if node.kind == "tool_result"]
    assert len(results) == 2
    assert not set(results) & set(notebook.discarded)
    wires.verdict.assert_ok()


@EVERY_WIRE
async def test_cancelling_a_run_ends_its_open_request_and_its_reads(wires: Wires, wire: str) -> None:
    calls = (ToolCall("code__list_dir", {"path": "a"}), ToolCall("code__list_dir", {"path": "b"}))
    reply = Reply(text="one two three four") if wire == "google" else Reply(tool_calls=calls)
    wires.will(StreamFault("stall", after_chunks=BEFORE_THE_END.get(wire, 2), stall_seconds=20.0), reply)
    arrived, notebook = asyncio.Event(), Notebook()
    running = asyncio.create_task(wires.run(wire, notebook=notebook, view=Watcher(arrived)))
    async with asyncio.timeout(10):
        await arrived.wait()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    (request,) = await asyncio.to_thread(lambda: wires.requests)  # waits until none is open
    assert not request.completed
    assert request.ended_at - request.started_at < 5
    assert [node for node in notebook.written if node.kind == "tool_result"] == []


class Watcher(AnswerView):
    """Says when a piece of an answer has arrived."""

    def __init__(self, arrived: asyncio.Event) -> None:
        self.arrived = arrived

    def take(self, event: ModelResponseStreamEvent) -> None:
        self.arrived.set()


@pytest.mark.spec("DIS-12")
@pytest.mark.parametrize("is_cached", [True, False])
async def test_the_provider_is_asked_to_keep_the_history(wires: Wires, is_cached: bool) -> None:
    wires.will(Reply(tool_calls=(ToolCall("code__list_dir", {"path": "a"}),)), Reply(text="done"))
    options = ModelOptions() if is_cached else ModelOptions(cache=False)

    await wires.run("anthropic", make_task(system="be brief", options=options))

    first, second = (str(one.body) for one in wires.requests)
    assert ("cache_control" in first, "cache_control" in second) == (is_cached, is_cached)


def test_tokens_from_the_cache_are_counted_and_shown_apart() -> None:
    used = RequestUsage(input_tokens=100, cache_read_tokens=90, output_tokens=5)
    answer = ModelResponse([TextPart("x")], usage=used, model_name="gpt-5", provider_name="openai")

    total = add(usage_of(answer), usage_of(answer))

    assert (total.input_tokens, total.cached_tokens) == (200, 180)
    assert total.as_json()["cached_tokens"] == 180


TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "openai-chat": ("openai.types.chat.completion_create_params", "CompletionCreateParams"),
    "openai-responses": ("openai.types.responses.response_create_params", "ResponseCreateParams"),
    "anthropic": ("anthropic.types.message_create_params", "MessageCreateParams"),
}
"""By wire, where the type of a request is; they are imported by the tests, since that takes seconds."""
SCHEMA: Final = {"type": "object", "properties": {"folders": {"type": "integer"}}, "required": ["folders"]}
LOOKED: Final = (ToolCall("code__list_dir", {"path": "a"}), ToolCall("code__list_dir", {"path": "b"}))
TASKS: Final[Mapping[str, Callable[[], AgentTask]]] = {
    "text": lambda: make_task(is_streamed=False),
    "streamed": make_task,
    "schema": lambda: make_task(output_schema=SCHEMA),
    "settings": lambda: make_task(
        options=ModelOptions(max_tokens=5000, thinking="low", timeout_s=30, parallel_calls=False, cache=True)
    ),
}


def type_of(wire: str, *, is_streamed: bool) -> Any:
    module, name = TYPES[wire]
    return getattr(import_module(module), f"{name}{'' if is_streamed else 'Non'}Streaming")


@cache  # and not when the tests are collected: it takes seconds, in each process of a run
def validator(wire: str, *, is_streamed: bool) -> Draft202012Validator:
    """Return what checks a request as a schema: Pydantic itself looks at lists only while they are read."""
    return Draft202012Validator(TypeAdapter(type_of(wire, is_streamed=is_streamed)).json_schema())


def problems(body: Mapping[str, Any], wire: str) -> list[str]:
    """Return what is wrong with a request."""
    is_streamed = bool(body.get("stream"))
    shape = type_of(wire, is_streamed=is_streamed)
    unknown = body.keys() - {*shape.__required_keys__, *shape.__optional_keys__}
    checks = validator(wire, is_streamed=is_streamed)
    return [*sorted(unknown), *(error.message[:300] for error in checks.iter_errors(dict(body)))]


@pytest.mark.spec("DIS-09", "REG-04")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("wire", TYPES)
async def test_every_request_of_a_run_holds_to_its_providers_types(wires: Wires, wire: str, task: str) -> None:
    final = ToolCall("final_result", {"folders": 2})
    wires.will(Reply(tool_calls=LOOKED), Fail(503), Reply(text="one ", finish_reason="length"))
    wires.will(Reply(tool_calls=(final,)) if task == "schema" else Reply(text="two folders"))

    end = await wires.run(wire, TASKS[task](), sleep=no_pause)

    assert end.error is None
    bodies = [one.body for one in wires.requests]
    assert len(bodies) == 4
    assert [problems(body, wire) for body in bodies] == [[]] * 4


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        ("openai-chat", {"model": "m", "messages": [{"role": "nobody", "content": "a"}]}),
        ("openai-chat", {"model": "m", "messages": [], "temprature": 1}),
        ("openai-responses", {"model": "m", "input": "a", "reasoning": {"effort": 5}}),
        ("anthropic", {"model": "m", "max_tokens": 1, "messages": [{"role": "nobody", "content": "a"}]}),
    ],
)
def test_what_a_provider_would_refuse_is_found(wire: str, body: dict[str, Any]) -> None:
    assert problems(body, wire)
