"""One result, said differently to each reader (RES-06, S2).

The model gets content, a person an inert text, search and telemetry facts without content, the store a payload
(:mod:`soong.shared.tools.results.codec`). Pure functions over a finished :class:`ToolResult`; none of them redacts:
what is given here has been redacted before it was kept, or is meant for the model alone.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, assert_never

import msgspec

from soong.shared.core.inert import inert
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.core.value import Value
from soong.shared.tools.result import ArtifactRef, ContentBlock, JsonBlock, TextBlock, ToolResult

MAX_PERSON_CHARS: Final = 4_000

PASSING: Final = "this may pass: the same call may succeed later"

_OWN_CHARS: Final = 500
"""As much of an error's message tells the block that only repeats it."""


class ForModel(Value):
    """What goes back to the model. ``metadata`` travels with the content, is not sent, and is for scripted models."""

    content: Any
    outcome: Literal["success", "failed", "denied"]
    metadata: dict[str, Json] = msgspec.field(default_factory=dict)


def for_model(result: ToolResult) -> ForModel:
    """Return the result as a model reads it: the content, or the error in plain words; then what hooks added."""
    failure, context = result.error, _added_words(result)
    if failure is None:
        blocks = (*result.content, *map(TextBlock, context))
        return ForModel(_content(blocks), "success", {"data": result.data})
    error: dict[str, Json] = {"type": str(failure.type), "message": failure.message, "retryable": failure.retryable}
    if failure.hint:
        error["hint"] = failure.hint
    said = _beside_error(result)
    words = [f"{failure.type}: {failure.message}"]
    words += [PASSING] if failure.retryable else []
    words += [f"hint: {failure.hint}"] if failure.hint else []
    words += [_shown_block(block) if isinstance(block, JsonBlock) else str(_block(block)) for block in said]
    told = "\n".join([*words, *context])
    return ForModel(told, "denied" if failure.type.is_denial else "failed", {"data": result.data, "error": error})


def for_person(result: ToolResult, *, max_chars: int = MAX_PERSON_CHARS) -> str:
    """Return the result as text that a terminal or page can show as it is: nothing in it moves, hides or paints."""
    failure = result.error
    head = [] if failure is None else [f"{failure.type.value}: {failure.message}"]
    if failure is not None and failure.hint:
        head.append(f"hint: {failure.hint}")
    body = [_shown_block(block) for block in _beside_error(result)]
    text = inert("\n".join([*head, *body]) or result.summary or "done", keeps_blanks=True)
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n… {len(text) - max_chars} more characters"


def for_telemetry(tool: str, result: ToolResult, *, duration_ms: int) -> dict[str, Json]:
    """Return what search, logs and metrics keep: facts about the result, never its content, data, message or input."""
    told: dict[str, Json] = {
        "tool_call_id": result.tool_call_id,
        "tool": tool,
        "status": status_of(result),
        "duration_ms": duration_ms,
        "content_chars": sum(_size(block) for block in result.content),
        "artifacts": [artifact.digest for artifact in result.artifacts],
    }
    if result.error is not None:
        told |= {"error": str(result.error.type), "retryable": result.error.retryable}
    told |= {name: True for name in _FLAGS if result.metadata.get(name) is True}
    if result.context_nodes:
        told["context_nodes"] = len(result.context_nodes)
    return told


_FLAGS: Final = ("truncated", "partial", "aborted", "is_withheld")


def status_of(result: ToolResult) -> Literal["completed", "failed", "denied", "aborted"]:
    """Return how a call ended, in one word."""
    if result.error is None:
        return "completed"
    if result.metadata.get("aborted"):
        return "aborted"
    return "denied" if result.error.type.is_denial else "failed"


def _added_words(result: ToolResult) -> list[str]:
    """Return what the model reads after the content: the words of who allowed the call, then those of hooks."""
    reason, context = result.metadata.get("permission_reason"), result.metadata.get("hook_context")
    said = [f"[the person who allowed this says: {reason}]"] if reason else []
    return [*said, *(str(text) for text in context)] if isinstance(context, list | tuple) else said


def _beside_error(result: ToolResult) -> Sequence[ContentBlock]:
    """Return the content that says more than the error itself: partial output, what a failed command printed."""
    failure = result.error
    if failure is None:
        return result.content
    own = f"{failure.type.value}: {failure.message[:_OWN_CHARS]}"
    return [each for each in result.content if not (isinstance(each, TextBlock) and each.text.startswith(own))]


def _content(blocks: Sequence[ContentBlock]) -> Json:
    rendered = [_block(block) for block in blocks]
    return rendered[0] if len(rendered) == 1 else rendered or "done"


def _block(block: ContentBlock) -> Json:
    match block:
        case TextBlock(text):
            return text
        case JsonBlock(value):
            return value
        case ArtifactRef():
            return f"[full output: artifact {block.digest}, {block.size_bytes} bytes, {block.media_type}]"
        case other:
            assert_never(other)


def _shown_block(block: ContentBlock) -> str:
    match block:
        case TextBlock(text):
            return text
        case JsonBlock(value):
            return dump(value)
        case ArtifactRef():
            return f"[artifact {block.digest}: {block.name or 'unnamed'}, {block.size_bytes} bytes]"
        case other:
            assert_never(other)


def _size(block: ContentBlock) -> int:
    match block:
        case TextBlock(text):
            return len(text)
        case JsonBlock(value):
            return len(dump(value))
        case ArtifactRef():
            return 0
        case other:
            assert_never(other)


def log_line(data: JsonObject, *, seq: int, time_us: int, type: str) -> dict[str, Json]:
    """Return the line that ``logs/tools.jsonl`` keeps of a call's event: facts, no input, no content (EVT-03)."""
    kept: dict[str, Json] = {name: value for name, value in data.items() if name in LOGGED}
    return {"seq": seq, "time_us": time_us, "type": type, **kept}


LOGGED: Final = frozenset(
    {
        "tool_call_id",
        "tool",
        "status",
        "duration_ms",
        "content_chars",
        "artifacts",
        "error",
        "retryable",
        "context_nodes",
        "effect_id",
        "event_id",
        "author",
        "rule",
        "decision_id",
        "deliverable",
        *_FLAGS,
    }
)
