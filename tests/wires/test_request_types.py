"""Our requests hold to what the providers publish: the types of their own clients, which they make of their specs."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator
from llmock.scenarios import Fail, Reply, ToolCall
from pydantic import TypeAdapter

from soong.shared.agents.definition import ModelOptions
from soong.shared.agents.ports import AgentTask
from tests.unit.agents.parts import make_task
from tests.wires.wire import Wires

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

    async def no_pause(_seconds: float) -> None:
        return

    end = await wires.run(wire, TASKS[task](), sleep=no_pause)

    assert end.error is None
    bodies = [one.body for one in wires.requests]
    assert len(bodies) == 4
    assert [problems(body, wire) for body in bodies] == [[]] * 4


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        ("openai-chat", {"model": "m", "messages": [{"role": "nobody", "content": "a"}]}),
        ("openai-chat", {"model": "m", "messages": [{"role": "tool", "content": "a"}]}),
        ("openai-chat", {"model": "m", "messages": [], "temprature": 1}),
        ("openai-responses", {"model": "m", "input": "a", "reasoning": {"effort": 5}}),
        ("anthropic", {"model": "m", "max_tokens": 1, "messages": [{"role": "nobody", "content": "a"}]}),
        ("anthropic", {"model": "m", "messages": []}),
    ],
)
def test_what_a_provider_would_refuse_is_found(wire: str, body: dict[str, Any]) -> None:
    assert problems(body, wire)
