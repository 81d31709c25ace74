"""A plain answer is stored in the form in which the model library writes it; any other is left to the library."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.usage import RequestUsage

from soong.shared.agents.messages import NotPlainError, assistant_node, stored_form

WHEN = datetime(2026, 11, 27, 1, 2, 3, 450000, tzinfo=UTC)
NESTED: dict[str, Any] = {"path": "ä.txt", "n": 1.5, "none": None, "list": [1, True, {"deep": ["x"]}], "empty": {}}


def _answer(*parts: ModelResponsePart, **more: Any) -> ModelResponse:
    return ModelResponse(parts=list(parts), **{"model_name": "script", "timestamp": WHEN, **more})


def _by_library(answer: ModelResponse) -> dict[str, Any]:
    message: dict[str, Any] = ModelMessagesTypeAdapter.dump_python([answer], mode="json", exclude_none=True)[0]
    message["usage"] = {name: value for name, value in message["usage"].items() if value}
    return message


PLAIN = {
    "a call": _answer(ToolCallPart("code__read_file", {"path": "a"}, "t1c1")),
    "nested arguments": _answer(ToolCallPart("code__read_file", NESTED, "t1c1")),
    "arguments as text": _answer(ToolCallPart("code__read_file", '{"path": "a"}', "t1c1")),
    "text and calls": _answer(TextPart("I look."), ToolCallPart("a__b", {}, "1"), ToolCallPart("a__c", {}, "2")),
    "nothing": _answer(),
    "a full second": _answer(TextPart("x"), timestamp=WHEN.replace(microsecond=0)),
}
OTHER = {
    "usage": _answer(TextPart("x"), usage=RequestUsage(input_tokens=3)),
    "a provider's details": _answer(TextPart("x"), provider_name="openai", provider_details={"finish_reason": "stop"}),
    "a finish reason": _answer(TextPart("x"), finish_reason="length"),
    "metadata": _answer(TextPart("x"), metadata={"soong_model": "a"}),
    "no model": _answer(TextPart("x"), model_name=None),
    "another zone": _answer(TextPart("x"), timestamp=WHEN.astimezone(timezone(timedelta(hours=2)))),
    "thinking": _answer(ThinkingPart("hm")),
    "a call without arguments": _answer(ToolCallPart("a__b", None, "1")),
    "a call with an id of its own": _answer(ToolCallPart("a__b", {}, "1", id="x", provider_name="openai")),
    "arguments that are not JSON": _answer(ToolCallPart("a__b", {"at": WHEN, "pair": (1, 2)}, "1")),
    "keys that are not texts": _answer(ToolCallPart("a__b", {"map": {1: "x"}}, "1")),
}


@pytest.mark.parametrize("answer", PLAIN.values(), ids=PLAIN.keys())
def test_plain_answer_has_the_form_of_the_library(answer: ModelResponse) -> None:
    assert json.dumps(stored_form(answer)) == json.dumps(_by_library(answer))


@pytest.mark.parametrize("answer", OTHER.values(), ids=OTHER.keys())
def test_any_other_answer_is_left_to_the_library(answer: ModelResponse) -> None:
    with pytest.raises(NotPlainError):
        stored_form(answer)

    assert assistant_node(answer).payload["message"] == _by_library(answer)


def test_later_changes_of_the_arguments_do_not_reach_the_node() -> None:
    arguments: dict[str, Any] = {"list": [1], "map": {"a": 1}}
    node = assistant_node(_answer(ToolCallPart("a__b", arguments, "1")))

    arguments["list"].append(2)
    arguments["map"]["b"] = 2

    message: Any = node.payload["message"]
    assert message["parts"][0]["args"] == {"list": [1], "map": {"a": 1}}
