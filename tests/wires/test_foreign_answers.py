import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, NativeToolCallPart, NativeToolReturnPart, TextPart

from soong.shared.agents.messages import answer_of, arguments_of, assistant_node, calls_of, messages_of, text_of
from soong.shared.agents.ports import AgentEnd
from soong.shared.agents.turn import FINAL_TOOL
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.events import EventType, NewNode
from soong.shared.engine.runs.record import EndReason
from soong.shared.tools.ports import CallRecord, ToolCall
from soong.shared.tools.result import ToolResult
from tests.unit.agents.parts import Notebook, make_task
from tests.wires.recordings import Exchange
from tests.wires.replay import Recording, playing
from tests.wires.test_wires import no_pause
from tests.wires.wire import Wires

STREAM = {"content-type": "text/event-stream"}
LOOK = "code__list_dir"


def streamed(*deltas: JsonObject, finish: str | None = "stop", usage: JsonObject | None = None) -> Exchange:
    """Return an answer in pieces, as chat completions have it."""
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5"}
    choices = [*({"index": 0, "delta": delta} for delta in deltas), {"index": 0, "delta": {}, "finish_reason": finish}]
    events = [{**head, "choices": [choice]} for choice in choices]
    events += [{**head, "choices": [], "usage": usage}] if usage else []
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return Exchange("openai-chat", "gpt-5", 200, STREAM, body + b"data: [DONE]\n\n")


def says(text: str) -> Exchange:
    return streamed({"role": "assistant", "content": text})


def called(arguments: str, *more: str, name: str = LOOK) -> Exchange:
    """Return an answer with one call, whose arguments come in as many pieces."""
    first: JsonObject = {"index": 0, "id": "call_1", "type": "function"}
    pieces: list[JsonObject] = [{"tool_calls": [{**first, "function": {"name": name, "arguments": arguments}}]}]
    pieces += [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in more]
    return streamed(*pieces, finish="tool_calls")


@dataclass
class Records(Notebook):
    """Keeps the records of calls, too."""

    records: list[CallRecord] = field(default_factory=list)

    async def finished(
        self, call: ToolCall, result: ToolResult, *, duration_ms: int, record: CallRecord | None = None
    ) -> None:
        await super().finished(call, result, duration_ms=duration_ms, record=record)
        if record is not None:
            self.records.append(record)


@dataclass
class Foreign:
    """A server that gives these answers, and what it was asked."""

    wires: Wires
    monkeypatch: pytest.MonkeyPatch
    notebook: Records = field(default_factory=Records)
    asked: list[Any] = field(default_factory=list)

    async def run(self, *answers: Exchange, **overrides: object) -> AgentEnd:
        recording = Recording(answers)
        with playing(recording) as address:
            self.monkeypatch.setenv("OPENAI_BASE_URL", f"{address}/v1")
            task = make_task(**overrides)
            end = await self.wires.run("openai-chat", task, notebook=self.notebook, sleep=no_pause)
        self.asked += map(json.loads, recording.asked)
        return end

    @property
    def results(self) -> list[str]:
        """Return what the model was given of calls in its last request."""
        return [one["content"] for one in self.asked[-1]["messages"] if one["role"] == "tool"]


@pytest.fixture
def foreign(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> Foreign:
    return Foreign(wires, monkeypatch)


# -- halves of characters
@pytest.mark.parametrize(
    ("pieces", "text"),
    [(("done \ud83d", "\ude00 ok"), "done 😀 ok"), (("done \ud83d", " ok"), "done � ok")],
    ids=["split", "alone"],
)
async def test_half_a_character_of_an_answer_is_joined_or_replaced(
    foreign: Foreign, pieces: Sequence[str], text: str
) -> None:
    call: JsonObject = {
        "index": 0,
        "id": "c",
        "type": "function",
        "function": {"name": LOOK, "arguments": '{"path": "a"}'},
    }

    end = await foreign.run(
        streamed(*({"content": piece} for piece in pieces), {"tool_calls": [call]}), streamed({"content": pieces[0]})
    )

    assert foreign.asked[1]["messages"][-2]["content"] == text
    assert (end.end_reason, end.output) == (EndReason.COMPLETED, "done �")


@pytest.mark.parametrize(
    ("pieces", "path"),
    [
        (('{"path": "a\ud83d', '\ude00"}'), "a😀"),
        (('{"path": "a\ud83d"}',), "a�"),
        ((r'{"path": "a\ud83d"}',), "a�"),
        ((r'{"path": "\ud83d\ude00 \\ud83d \uDE00"}',), r"😀 \ud83d �"),
    ],
    ids=["split", "raw", "escaped", "escapes of all sorts"],
)
async def test_half_a_character_in_arguments_costs_nothing_but_itself(
    foreign: Foreign, pieces: Sequence[str], path: str
) -> None:
    end = await foreign.run(called(*pieces), says("seen"))

    assert (end.output, foreign.results) == ("seen", [f"in {path}: one file"])


async def test_half_a_character_in_the_name_of_a_call_fails_the_call(foreign: Foreign) -> None:
    end = await foreign.run(called("{}", name="code__list\ud83d"), says("seen"))

    assert end.output == "seen"
    assert "tool_not_available" in foreign.results[0]


def test_a_history_with_halves_that_was_stored_before_is_read_without_them() -> None:
    part = {"part_kind": "text", "content": "a\ud83d"}
    call: JsonObject = {
        "part_kind": "tool-call",
        "tool_name": "x",
        "tool_call_id": "c",
        "args": {"k\udc00": ["\ud83d\ude00"]},
    }

    answer = answer_of({"kind": "response", "parts": [part, call]})

    assert (text_of(answer), arguments_of(calls_of(answer)[0])) == ("a�", {"k�": ["😀"]})


# -- arguments
@pytest.mark.spec("SCH-03.d")
@pytest.mark.parametrize("content", [None, "", {"found": None}])
def test_an_empty_result_of_a_providers_own_tool_is_read_back(content: Any) -> None:
    call = NativeToolCallPart("web_search", {"query": "x"}, tool_call_id="c1", provider_name="google")
    result = NativeToolReturnPart("web_search", content, tool_call_id="c1", provider_name="google")
    answer = ModelResponse([call, result, TextPart("nothing found")])
    node = assistant_node(answer)

    (stored,) = messages_of([NewNode(node.kind, json.loads(json.dumps(node.payload)))])

    assert [(one.part_kind, getattr(one, "content", "")) for one in stored.parts] == [
        (one.part_kind, getattr(one, "content", "")) for one in answer.parts
    ]


async def test_what_a_call_clearly_means_is_done_and_recorded_as_repaired(foreign: Foreign) -> None:
    end = await foreign.run(called('{"path": "a", "depth": "2", "names": "[\\"b\\"]", "pattern": null}'), says("seen"))

    assert (end.output, foreign.results) == ("seen", ["in a: one file"])
    (record,) = foreign.notebook.records
    assert record.facts["is_repaired"] is True
    assert record.inputs.model == {"path": "a", "depth": "2", "names": '["b"]', "pattern": None}
    assert record.inputs.permission == record.inputs.hook == {"path": "a", "depth": 2, "names": ["b"]}


async def test_a_refused_call_reaches_the_model_in_plain_words(foreign: Foreign) -> None:
    await foreign.run(called('{"path": ["a"]}'), says("seen"))

    (told,) = foreign.results
    assert json.loads(told)["error"].startswith("invalid_input: $.path: must be string, is array")
    assert "\\" not in told


async def test_a_result_that_is_json_text_within_json_is_taken(foreign: Foreign) -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"files": {"type": "array", "items": {"type": "string"}}, "note": {"type": "string"}},
        "required": ["files"],
    }
    answer = called(json.dumps({"files": '["a"]', "note": None}), name=FINAL_TOOL)

    end = await foreign.run(answer, output_schema=schema)

    assert end.output == {"files": ["a"]}


# -- bodies that are no stream
@pytest.mark.parametrize(
    ("kind", "body", "words", "attempts"),
    [
        ("application/json", b'{"error": {"code": 402, "message": "Insufficient credits"}}', "Insufficient credits", 1),
        ("application/json", b'{"error": "the model is loading"}', "the model is loading", 5),
        ("text/html", b"<html><title>Sign in</title></html>", "<title>Sign in</title>", 5),
    ],
    ids=["final", "passing", "page"],
)
async def test_a_body_that_is_no_stream_is_shown_by_its_words(
    foreign: Foreign, kind: str, body: bytes, words: str, attempts: int
) -> None:
    answer = Exchange("openai-chat", "gpt-5", 200, {"content-type": kind}, body)

    end = await foreign.run(*[answer] * 5)

    assert end.error is not None
    assert words in end.error.message
    assert len(foreign.asked) == attempts


# -- refusals for length
REFUSALS = {
    "LM Studio": (400, "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded"),
    "SGLang": (400, "The input (9000 tokens) is longer than the model's context length (4096 tokens)."),
    "TGI": (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 9000"),
    "LiteLLM": (400, "litellm.ContextWindowExceededError: BadRequestError: AnthropicException - prompt is too long"),
    "xAI": (400, "This model's maximum prompt length is 131072 but the request contains 200000 tokens."),
    "Gemini": (400, "The input token count (2000000) exceeds the maximum number of tokens allowed (1048576)."),
    "Bedrock proxy": (400, "Input is too long for requested model."),
    "Groq": (413, "Request too large for model, please reduce your message size and try again."),
    "Ollama": (500, "input length exceeds maximum context length"),
    "any 413": (413, "Request Entity Too Large"),
    "words that nobody knows": (400, "no"),
}


@pytest.mark.spec("DIS-12.c")
@pytest.mark.parametrize("server", REFUSALS)
async def test_a_refusal_for_length_is_understood_from_every_server(foreign: Foreign, server: str) -> None:
    status, words = REFUSALS[server]
    body = json.dumps({"error": {"message": words, "code": status}}).encode()
    long = called(json.dumps({"path": "long " * 1500}))
    refusal = Exchange("openai-chat", "gpt-5", status, {"content-type": "application/json"}, body)

    end = await foreign.run(long, long, refusal, says("the goal is x"), says("done"))

    assert (end.end_reason, end.output) == (EndReason.COMPLETED, "done")
    assert [event.type for event in end.events].count(EventType.MODEL_FAILED) <= 1


async def test_a_request_that_is_refused_for_what_it_says_is_compacted_once(foreign: Foreign) -> None:
    body = json.dumps({"error": {"message": "no", "code": 400}}).encode()
    refusal = Exchange("openai-chat", "gpt-5", 400, {"content-type": "application/json"}, body)

    end = await foreign.run(called(json.dumps({"path": "long " * 1500})), refusal, says("the goal is x"), refusal)

    assert end.end_reason is EndReason.PROVIDER_FAILED
    assert len(foreign.asked) == 4


# -- calls that share an index
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "in pieces"])
async def test_calls_of_one_index_are_as_many_as_their_ids(foreign: Foreign, is_whole: bool) -> None:
    deltas: list[JsonObject] = []
    for name in "ab":
        head: JsonObject = {"index": 0, "id": f"c{name}", "type": "function"}
        pieces = [f'{{"path": "{name}"}}'] if is_whole else ['{"path": ', f'"{name}', '"}']
        first, *more = [{"arguments": piece} for piece in pieces]
        deltas.append({"tool_calls": [{**head, "function": {"name": LOOK, **first}}]})
        deltas += [{"tool_calls": [{"index": 0, "function": piece}]} for piece in more]

    end = await foreign.run(streamed(*deltas, finish="tool_calls"), says("seen"))

    assert (end.output, foreign.results) == ("seen", ["in a: one file", "in b: one file"])


async def test_a_call_whose_id_changes_while_it_arrives_is_one_call(foreign: Foreign) -> None:
    pieces: list[JsonObject] = [{"name": LOOK, "arguments": '{"path": '}, {"arguments": '"a"'}, {"arguments": "}"}]
    deltas: list[JsonObject] = [
        {"tool_calls": [{"index": 0, "id": f"c{at}", "function": one}]} for at, one in enumerate(pieces)
    ]

    end = await foreign.run(streamed(*deltas, finish="tool_calls"), says("seen"))

    assert (end.output, foreign.results) == ("seen", ["in a: one file"])


# -- final marks, and what refused answers cost
USED: JsonObject = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
CALL: JsonObject = {"index": 0, "id": "c", "type": "function", "function": {"name": LOOK, "arguments": '{"path": "a"}'}}


@pytest.mark.spec("DIS-11")
async def test_the_tokens_of_an_answer_that_is_refused_are_counted(foreign: Foreign) -> None:
    unmarked = streamed({"content": "a", "tool_calls": [CALL]}, finish=None, usage=USED)

    end = await foreign.run(unmarked, streamed({"content": "b"}, usage=USED))

    assert end.output == "b"
    assert (end.usage.requests, end.usage.input_tokens, end.usage.output_tokens) == (2, 200, 20)
    assert end.usage.tool_calls == 0


@pytest.mark.spec("DIS-12.a")
async def test_a_marked_stream_between_two_unmarked_ones_keeps_the_model_streamed(foreign: Foreign) -> None:
    unmarked = streamed({"content": "a"}, finish=None)

    end = await foreign.run(unmarked, streamed({"tool_calls": [CALL]}, finish="tool_calls"), unmarked, says("done"))

    assert end.output == "done"
    assert [one.get("stream") for one in foreign.asked] == [True] * 4
