"""What a recording says by itself of each answer, read from its bytes without the providers' clients."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.wires.recordings import Exchange


@dataclass(frozen=True, slots=True)
class Told:
    """One answer. ``calls`` are those for us to make, without those that ran at the provider."""

    finish: str | None
    input_tokens: int
    output_tokens: int
    calls: tuple[tuple[str, Any], ...] = ()
    signatures: tuple[str, ...] = ()
    text: str = ""


def told_by(exchange: Exchange) -> Told:
    """Return what an answer says. Only of one that succeeded."""
    return _READERS[exchange.wire](exchange.documents(), exchange.is_stream)


def _chat(documents: list[Any], is_stream: bool) -> Told:
    kind = "delta" if is_stream else "message"
    finish, text = None, ""
    usage: dict[str, Any] = {}
    calls: dict[int, list[str]] = {}
    for document in documents:
        usage = document.get("usage") or usage
        for choice in document.get("choices") or ():
            finish = choice.get("finish_reason") or finish
            said = choice.get(kind) or {}
            text += _text_of(said.get("content"))
            for place, call in enumerate(said.get("tool_calls") or ()):
                entry = calls.setdefault(call.get("index", place) if is_stream else place, ["", ""])
                entry[0] += call["function"].get("name") or ""
                entry[1] += call["function"].get("arguments") or ""
    made = tuple((name, _parsed(arguments)) for name, arguments in calls.values())
    return Told(finish, usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0), made, text=text)


def _text_of(content: Any) -> str:
    if isinstance(content, list):  # Mistral's
        return "".join(part.get("text", "") for part in content if part["type"] == "text")
    return content or ""


def _responses(documents: list[Any], is_stream: bool) -> Told:
    ends = ("response.completed", "response.incomplete", "response.failed")
    answer = next((one["response"] for one in documents if one.get("type") in ends), {}) if is_stream else documents[0]
    usage = answer.get("usage") or {}
    output = answer.get("output") or ()
    if is_stream:  # what is encrypted differs from event to event: the end of each part counts
        output = [one["item"] for one in documents if one["type"] == "response.output_item.done"]
    calls = tuple(_call_of_responses(one) for one in output if _is_ours(one))
    signatures = tuple(one["encrypted_content"] for one in output if one.get("encrypted_content"))
    said = [part for one in output if one["type"] == "message" for part in one["content"]]
    text = "".join(part.get("text", "") for part in said)
    finish = (answer.get("incomplete_details") or {}).get("reason") or answer.get("status")
    return Told(finish, usage.get("input_tokens", 0), usage.get("output_tokens", 0), calls, signatures, text)


def _is_ours(item: dict[str, Any]) -> bool:
    kind = item["type"]
    return kind == "function_call" or (kind == "tool_search_call" and item.get("execution") == "client")


def _call_of_responses(item: dict[str, Any]) -> tuple[str, Any]:
    if item["type"] == "tool_search_call":
        return "search_tools", item["arguments"]  # the library's name for it
    return item["name"], _parsed(item["arguments"])


def _anthropic(documents: list[Any], is_stream: bool) -> Told:
    message = _anthropic_message(documents) if is_stream else documents[0]
    usage, blocks = message["usage"], message["content"]
    read = sum(usage.get(f"{kind}input_tokens") or 0 for kind in ("", "cache_creation_", "cache_read_"))
    calls = tuple((one["name"], one["input"]) for one in blocks if one["type"] == "tool_use")
    signatures = tuple(one.get("signature") or one.get("data") or "" for one in blocks if "thinking" in one["type"])
    text = "".join(one["text"] for one in blocks if one["type"] == "text")
    return Told(message["stop_reason"], read, usage["output_tokens"], calls, signatures, text)


def _anthropic_message(documents: list[Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"content": [], "stop_reason": None, "usage": {}}
    pieces: dict[int, str] = {}
    for event in documents:
        if event["type"] == "message_start":
            message["usage"] = dict(event["message"]["usage"])
        elif event["type"] == "content_block_start":
            message["content"].append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], message["content"][event["index"]]
            for name in ("text", "thinking", "signature"):
                block[name] = block.get(name, "") + delta[name] if name in delta else block.get(name, "")
            pieces[event["index"]] = pieces.get(event["index"], "") + delta.get("partial_json", "")
        elif event["type"] == "message_delta":
            message["stop_reason"] = event["delta"]["stop_reason"]
            message["usage"] |= event["usage"]
    for index, text in pieces.items():
        if text:
            message["content"][index]["input"] = _parsed(text)
    return message


def _google(documents: list[Any], _is_stream: bool) -> Told:
    finish = None
    usage: dict[str, Any] = {}
    parts: list[dict[str, Any]] = []
    for document in documents:
        usage = {**usage, **(document.get("usageMetadata") or {})}
        for candidate in document.get("candidates") or ():
            finish = candidate.get("finishReason") or finish
            parts += (candidate.get("content") or {}).get("parts") or ()
    calls = tuple((one["functionCall"]["name"], one["functionCall"].get("args", {})) for one in _calls(parts))
    signatures = tuple(one["thoughtSignature"] for one in parts if "thoughtSignature" in one)
    text = "".join(one.get("text", "") for one in parts if not one.get("thought"))
    read = usage.get("promptTokenCount", 0) + usage.get("toolUsePromptTokenCount", 0)
    written = usage.get("candidatesTokenCount", 0) + usage.get("thoughtsTokenCount", 0)
    return Told(finish, read, written, calls, signatures, text)


def _bedrock(documents: list[Any], is_stream: bool) -> Told:
    if is_stream:
        documents = [_bedrock_answer(documents)]
    (answer,) = documents
    blocks, usage = answer["output"]["message"]["content"], answer.get("usage") or {}
    used = [one["toolUse"] for one in blocks if "toolUse" in one and one["toolUse"].get("type") != "server_tool_use"]
    calls = tuple((one["name"], one["input"]) for one in used)
    thoughts = [one["reasoningContent"].get("reasoningText", {}) for one in blocks if "reasoningContent" in one]
    signatures = tuple(one["signature"] for one in thoughts if one.get("signature"))
    text = "".join(one.get("text", "") for one in blocks)
    read = sum(usage.get(f"{kind}nputTokens") or 0 for kind in ("i", "cacheReadI", "cacheWriteI"))
    return Told(answer["stopReason"], read, usage.get("outputTokens", 0), calls, signatures, text)


def _bedrock_answer(events: list[Any]) -> dict[str, Any]:
    """Return what a stream adds up to, in the form of an answer that came at once."""
    blocks: dict[int, dict[str, Any]] = {}
    answer: dict[str, Any] = {"output": {"message": {}}}
    for event in events:
        ((kind, said),) = event.items()
        block = blocks.setdefault(said["contentBlockIndex"], {}) if "contentBlockIndex" in said else {}
        if kind == "contentBlockStart":
            block |= {name: {**start, "input": ""} for name, start in said["start"].items() if name == "toolUse"}
        elif kind == "contentBlockDelta":
            delta = said["delta"]
            if "toolUse" in block:
                block["toolUse"]["input"] += delta.get("toolUse", {}).get("input", "")
            elif "reasoningContent" in delta:
                text = block.setdefault("reasoningContent", {"reasoningText": {}})["reasoningText"]
                text |= {name: text.get(name, "") + words for name, words in delta["reasoningContent"].items()}
            else:
                block["text"] = block.get("text", "") + delta.get("text", "")
        elif kind in ("messageStop", "metadata"):
            answer |= said
    for block in blocks.values():
        if "toolUse" in block:
            block["toolUse"]["input"] = _parsed(block["toolUse"]["input"])
    answer["output"]["message"]["content"] = list(blocks.values())
    return answer


def _calls(parts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (part for part in parts if "functionCall" in part)


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


_READERS: Final[Mapping[str, Callable[[list[Any], bool], Told]]] = {
    "openai-chat": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "google": _google,
    "bedrock": _bedrock,
}
