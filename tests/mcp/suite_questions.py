"""Tools of the conformance suite that ask the client: by requests of the handshake, and by results of 2026-07-28."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mcp.server.mcpserver.prompts.base import UserMessage
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel, Field, JsonValue

from soong.orchestrator.mcp.api import SoongContext


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)


# -- requests of the handshake
async def test_sampling(prompt: str, ctx: SoongContext) -> str:
    """Have the client's model answer."""
    result = await ctx.session.create_message(
        messages=[SamplingMessage(role="user", content=_text(prompt))],
        max_tokens=100,
        related_request_id=ctx.request_id,
    )
    return f"LLM response: {getattr(result.content, 'text', '')}"


class Account(BaseModel):
    """Two free texts."""

    username: str = Field(description="User name")
    email: str = Field(description="Address")


class Defaults(BaseModel):
    """A value of each type, with a default."""

    name: str = Field(default="John Doe", description="User name")
    age: int = Field(default=30, description="User age")
    score: float = Field(default=95.5, description="User score")
    status: str = Field(default="active", json_schema_extra={"enum": ["active", "inactive", "pending"]})
    verified: bool = Field(default=True, description="Verification status")


def _titled(**titles: str) -> Sequence[JsonValue]:
    return [{"const": name, "title": title} for name, title in titles.items()]


class Enums(BaseModel):
    """A choice in each form that the protocol knows."""

    untitledSingle: str = Field(json_schema_extra={"enum": ["active", "inactive", "pending"]})  # noqa: N815
    titledSingle: str = Field(  # noqa: N815
        json_schema_extra={"oneOf": [*_titled(low="Low Priority", medium="Medium Priority", high="High Priority")]}
    )
    untitledMulti: list[str] = Field(  # noqa: N815
        json_schema_extra={"items": {"type": "string", "enum": ["read", "write", "execute"]}}
    )
    titledMulti: list[str] = Field(  # noqa: N815
        json_schema_extra={"items": {"anyOf": [*_titled(feature="New Feature", bug="Bug Fix", docs="Documentation")]}}
    )
    legacyEnum: str = Field(  # noqa: N815
        json_schema_extra={
            "enum": ["small", "medium", "large"],
            "enumNames": ["Small Size", "Medium Size", "Large Size"],
        }
    )


async def _asked(ctx: SoongContext, message: str, schema: type[BaseModel]) -> str:
    result = await ctx.elicit(message=message, schema=schema)
    content = result.data.model_dump_json() if result.action == "accept" else "{}"
    return f"User response: action={result.action}, content={content}"


async def test_elicitation(message: str, ctx: SoongContext) -> str:
    """Ask the client's user."""
    return await _asked(ctx, message, Account)


async def test_elicitation_sep1034_defaults(ctx: SoongContext) -> str:
    """Ask with defaults."""
    return await _asked(ctx, "Please provide user information", Defaults)


async def test_elicitation_sep1330_enums(ctx: SoongContext) -> str:
    """Ask with choices."""
    return await _asked(ctx, "Please select values", Enums)


# -- results of 2026-07-28 that ask
def _form(message: str, name: str, kind: str = "string") -> ElicitRequest:
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(text: str) -> CreateMessageRequest:
    messages = [SamplingMessage(role="user", content=_text(text))]
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=messages, max_tokens=50))


def _given(ctx: SoongContext, name: str, part: str) -> Any:
    """Return a part of the form that the user has filled in; None when they have not."""
    answer = (ctx.input_responses or {}).get(name)
    return (answer.content or {}).get(part) if isinstance(answer, ElicitResult) else None


def _wanted(state: str | None = None, **requests: InputRequest) -> InputRequiredResult:
    return InputRequiredResult(input_requests=requests, request_state=state)


async def test_input_required_result_elicitation(ctx: SoongContext) -> str | InputRequiredResult:
    """Ask for a name."""
    name = _given(ctx, "user_name", "name")
    return f"Hello, {name}!" if name else _wanted(user_name=_form("What is your name?", "name"))


async def test_input_required_result_sampling(ctx: SoongContext) -> str | InputRequiredResult:
    """Ask the client's model."""
    answer = (ctx.input_responses or {}).get("capital_question")
    if isinstance(answer, CreateMessageResult):
        return f"Model said: {getattr(answer.content, 'text', '')}"
    return _wanted(capital_question=_sample("What is the capital of France?"))


async def test_input_required_result_list_roots(ctx: SoongContext) -> str | InputRequiredResult:
    """Ask for the roots."""
    answer = (ctx.input_responses or {}).get("client_roots")
    if isinstance(answer, ListRootsResult):
        return f"Client exposed {len(answer.roots)} root(s)."
    return _wanted(client_roots=ListRootsRequest())


async def test_input_required_result_request_state(ctx: SoongContext) -> str | InputRequiredResult:
    """Ask, and have a state come back."""
    if _given(ctx, "confirm", "ok") is not None and ctx.request_state == "nonce":
        return "state-ok: confirmation received"
    return _wanted("nonce", confirm=_form("Please confirm", "ok", "boolean"))


async def test_input_required_result_multiple_inputs(ctx: SoongContext) -> str | InputRequiredResult:
    """Ask three things at once."""
    if {"user_name", "greeting", "client_roots"} <= (ctx.input_responses or {}).keys():
        return "All inputs received."
    return _wanted(
        "multiple-inputs",
        user_name=_form("What is your name?", "name"),
        greeting=_sample("Generate a greeting"),
        client_roots=ListRootsRequest(),
    )


async def test_input_required_result_multi_round(ctx: SoongContext) -> str | InputRequiredResult:
    """Ask twice, and remember the first answer."""
    state: Mapping[str, Any] = json.loads(ctx.request_state) if ctx.request_state else {}
    if state.get("round") == 1 and (name := _given(ctx, "step1", "name")):
        question = _form("Step 2: What is your favorite color?", "color")
        return _wanted(json.dumps({"round": 2, "name": name}), step2=question)
    if state.get("round") == 2 and (color := _given(ctx, "step2", "color")):
        return f"{state['name']} likes {color}."
    return _wanted(json.dumps({"round": 1}), step1=_form("Step 1: What is your name?", "name"))


async def test_input_required_result_tampered_state(ctx: SoongContext) -> str | InputRequiredResult:
    """Ask with a state that must not be changed; the server refuses one that was."""
    if ctx.request_state is not None:
        return f"state-ok: {ctx.request_state}"
    return _wanted("round-1", confirm=_form("Please confirm", "ok", "boolean"))


async def test_input_required_result_capabilities(ctx: SoongContext) -> InputRequiredResult:
    """Ask only what the client can answer."""
    known = ctx.client_capabilities
    requests: dict[str, InputRequest] = {}
    if known is None or known.sampling is not None:
        requests["sample"] = _sample("Say hello")
    if known is None or known.elicitation is not None:
        requests["ask"] = _form("What is your name?", "name")
    return _wanted("capability-gated", **requests)


async def question_in_a_prompt(ctx: SoongContext) -> list[UserMessage] | InputRequiredResult:
    """Ask before a prompt is given."""
    if context := _given(ctx, "user_context", "context"):
        return [UserMessage(role="user", content=_text(f"Use the following context: {context}"))]
    return _wanted(user_context=_form("What context should the prompt use?", "context"))


QUESTIONS: Final = (
    test_sampling,
    test_elicitation,
    test_elicitation_sep1034_defaults,
    test_elicitation_sep1330_enums,
    test_input_required_result_elicitation,
    test_input_required_result_sampling,
    test_input_required_result_list_roots,
    test_input_required_result_request_state,
    test_input_required_result_multiple_inputs,
    test_input_required_result_multi_round,
    test_input_required_result_tampered_state,
    test_input_required_result_capabilities,
)
