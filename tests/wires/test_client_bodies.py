"""A body whose long parts are left as they are is the body that the client would have sent."""

import importlib
from typing import Any

import pytest
from llmock.scenarios import Reply, ToolCall
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

from soong.shared.agents.model import MODULE, WALK, ShortWalk, resolve_model
from tests.wires.wire import MODELS, Wires

LOOKED = (ToolCall("code__list_dir", {"path": "a"}), ToolCall("code__list_dir", {"path": "b"}))


@pytest.mark.spec("DIS-09")
async def test_what_is_sent_is_what_the_client_makes_of_it(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_model(MODELS["openai-chat"])
    module: Any = importlib.import_module(MODULE)
    short = getattr(module, WALK)
    assert isinstance(short, ShortWalk)
    given: list[tuple[Any, Any]] = []

    async def watched(data: Any, expected_type: Any) -> Any:
        made = await short(data, expected_type)
        given.append((made, await short.walk(data, expected_type)))
        return made

    monkeypatch.setattr(module, WALK, watched)
    wires.will(Reply(tool_calls=LOOKED), Reply(text="one ", finish_reason="length"), Reply(text="two"))

    end = await wires.run("openai-chat")

    assert (end.output, len(given)) == ("one two", 3)
    assert all(ours == theirs for ours, theirs in given)
    wires.verdict.assert_ok(strict=True)


@pytest.mark.usefixtures("wires")
async def test_what_is_not_of_plain_objects_is_the_clients_to_read() -> None:
    resolve_model(MODELS["openai-chat"])
    walk = getattr(importlib.import_module(MODULE), WALK)
    given = {"model": "m", "messages": ({"role": "user", "content": "a"},)}

    made = await walk(given, CompletionCreateParamsNonStreaming)

    assert made["messages"] == [{"role": "user", "content": "a"}]
    assert await walk(None, CompletionCreateParamsNonStreaming) is None
