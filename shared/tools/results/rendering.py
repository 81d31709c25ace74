"""One result, rendered for each reader (RES-06, S2).

The model gets content, a person an inert text, search and telemetry facts without content, the store a payload from
which a resumed run rebuilds it. The stored result is without secrets and of a size that a model can take (RES-03,
EVT-05); secrets go before anything is cut: half a secret is no longer recognised as one. The other functions redact
nothing: their input was redacted before it was stored, or is meant for the model alone.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, assert_never

import msgspec
from msgspec import convert
from msgspec.structs import replace

from soong.shared.core.errors import SoongError
from soong.shared.core.jsontext import Json, JsonObject, dump, inert
from soong.shared.core.value import Value
from soong.shared.sandbox.redact import Redactor, inert_text
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.ports import ArtifactStore
from soong.shared.tools.result import (
    ArtifactRef,
    ContentBlock,
    ContextNode,
    JsonBlock,
    TextBlock,
    ToolFailure,
    ToolResult,
)

_OWN_CHARS: Final = 500
"""Length of an error's message by which a block that repeats it is recognised."""

VERSION = 1

MAX_MESSAGE_CHARS: Final = 2_000
MAX_SUMMARY_CHARS: Final = 200
_SUFFIXES: Final = {"application/json": "json", "text/plain": "txt", "application/octet-stream": "bin"}


class ForModel(Value):
    """The model's form of a result. ``metadata`` travels with the content, is not sent, and is for scripted models."""

    content: Any
    outcome: Literal["success", "failed", "denied"]
    metadata: dict[str, Json] = msgspec.field(default_factory=dict)


def for_model(result: ToolResult) -> ForModel:
    """Return the result as a model reads it: the content, or the error in plain words; then what hooks added."""
    failure = result.error
    # After the content: the words of the person who allowed the call, then those of hooks.
    reason, added = result.metadata.get("permission_reason"), result.metadata.get("hook_context")
    context = [f"[the person who allowed this says: {reason}]"] if reason else []
    context += map(str, added) if isinstance(added, list | tuple) else ()
    if failure is None:
        blocks = (*result.content, *map(TextBlock, context))
        rendered = [block_value(block) for block in blocks]
        content = rendered[0] if len(rendered) == 1 else rendered or "done"
        return ForModel(content, "success", {"data": result.data})
    error: dict[str, Json] = {"type": str(failure.type), "message": failure.message, "retryable": failure.retryable}
    if failure.hint:
        error["hint"] = failure.hint
    said = _beside_error(result)
    words = [f"{failure.type}: {failure.message}"]
    words += ["this may pass: the same call may succeed later"] if failure.retryable else []
    words += [f"hint: {failure.hint}"] if failure.hint else []
    words += [_shown_block(block) if isinstance(block, JsonBlock) else str(block_value(block)) for block in said]
    told = "\n".join([*words, *context])
    return ForModel(told, "denied" if failure.type.is_denial else "failed", {"data": result.data, "error": error})


def for_person(result: ToolResult, *, max_chars: int = 4_000) -> str:
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
        "content_chars": sum(len(_text_of(block)) for block in result.content),
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


def _beside_error(result: ToolResult) -> Sequence[ContentBlock]:
    """Return the content beyond the error itself: partial output, the output of a failed command."""
    failure = result.error
    if failure is None:
        return result.content
    own = f"{failure.type.value}: {failure.message[:_OWN_CHARS]}"
    return [each for each in result.content if not (isinstance(each, TextBlock) and each.text.startswith(own))]


def block_value(block: ContentBlock) -> Json:
    """Return a block as a model reads it: text as text, a value as itself."""
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
    if isinstance(block, ArtifactRef):
        return f"[artifact {block.digest}: {block.name or 'unnamed'}, {block.size_bytes} bytes]"
    return _text_of(block)


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


def to_json(tool: str, result: ToolResult) -> dict[str, Any]:
    """Return the payload of a result node, with its version as ``v``.

    Its context nodes are nodes of their own (:func:`context_to_json`), written with it and found by the call's id.
    """
    content = tuple(TextBlock(block.text) if isinstance(block, TextBlock) else block for block in result.content)
    stored = {"v": VERSION, "tool": tool, "is_error": result.is_error, **replace(result, content=content).as_json()}
    del stored["context_nodes"]
    stored |= {name: list(stored[name]) for name in ("content", "artifacts", "evidence")}
    if result.error is not None:
        stored["error"] |= {"retryable": result.error.retryable}
    return stored


def context_to_json(tool_call_id: str, tool: str, node: ContextNode) -> dict[str, Json]:
    """Return the payload of a node that a call added to the context; its kind is the node's own."""
    return {"v": VERSION, "tool_call_id": tool_call_id, "tool": tool, "name": node.name, "text": node.text}


def context_from_json(kind: str, payload: JsonObject) -> ContextNode | None:
    """Return what a call has added to the context; None when the node comes from no call (the run's own prompt)."""
    if not payload.get("tool_call_id") or kind not in ("skill", "memory_context", "system"):
        return None
    return ContextNode(kind, str(payload.get("name") or ""), str(payload["text"]))  # type: ignore[arg-type]  # just checked


def from_json(payload: JsonObject) -> ToolResult:
    """Return the result that a node's payload holds. Raises: msgspec.ValidationError when it is none of ours."""
    return convert(payload, ToolResult)


class Fitter(Value):
    """Brings content to a size a model can take. ``data`` has its own limit: it is for programs, not for a prompt."""

    max_chars: int
    max_data_chars: int
    redactor: Redactor
    artifacts: ArtifactStore | None = None

    def redact(self, result: ToolResult) -> ToolResult:
        """Return the result without secrets (EVT-05), its one-liners cut."""
        clean = redacted(result, self.redactor)
        error = clean.error
        if error is not None:
            error = replace(error, message=_cut(error.message), hint=_cut(error.hint))
        return replace(clean, summary=_cut(clean.summary, MAX_SUMMARY_CHARS), error=error)

    async def store(self, data: bytes, media_type: str, name: str) -> ArtifactRef | None:
        """Store the bytes of a result, without secrets; None where nothing is stored.
        Raises: OSError, SoongError, they could not be stored.
        """
        if self.artifacts is None:
            return None
        return await self.artifacts.put(_redacted_bytes(data, self.redactor), media_type, name)

    async def fit(self, definition: ToolDefinition, result: ToolResult) -> ToolResult:
        """Replace content over the limit by a preview and a reference to the full content (RES-03)."""
        texts = [_text_of(block) for block in result.content]
        size = sum(
            max(len(text), len(block.original) if isinstance(block, TextBlock) else 0)
            for text, block in zip(texts, result.content, strict=True)
        )
        limit = self.max_chars if definition.max_result_chars is None else definition.max_result_chars
        result = self._fit_data(result, size)
        if size <= limit or definition.keeps_full_output:
            return _without_originals(result)
        shown = "\n".join(text for text in texts if text)
        whole = b"\n".join(part for part in map(_bytes_of, result.content) if part)
        media_type = _media_type(result.content, whole)
        kept = tuple(block for block in result.content if isinstance(block, ArtifactRef))
        metadata: dict[str, Json] = {**result.metadata, "truncated": True, "actual_chars": size, "max_chars": limit}
        if self.artifacts is not None:
            name = f"{definition.name}-{result.tool_call_id}.{_SUFFIXES[media_type]}"
            try:
                kept += (await self.artifacts.put(whole, media_type, name),)
            except (OSError, SoongError) as error:
                # The call has happened, and its result must say so although the whole of it could not be kept.
                metadata["artifact_error"] = _cut(str(error), MAX_SUMMARY_CHARS)
        note = f"\n[truncated: {size} characters, at most {limit} are shown]"
        preview = TextBlock(shown[: max(0, limit - len(note))] + note)
        artifacts = {ref.digest: ref for ref in (*result.artifacts, *kept)}
        return replace(result, content=(preview, *kept), artifacts=tuple(artifacts.values()), metadata=metadata)

    def _fit_data(self, result: ToolResult, content_chars: int) -> ToolResult:
        data = result.data
        if data is None or any(isinstance(block, JsonBlock) and block.value is data for block in result.content):
            is_large = content_chars > self.max_data_chars
        else:
            is_large = len(data if isinstance(data, str) else dump(data)) > self.max_data_chars
        if not is_large or data is None:
            return result
        return replace(result, data=None, metadata={**result.metadata, "data_left_out": True})


def redacted(result: ToolResult, redactor: Redactor) -> ToolResult:
    """Return the result without secrets, nothing of it cut."""

    def block(one: ContentBlock) -> ContentBlock:
        if isinstance(one, TextBlock):
            return replace(one, text=redactor.text(one.text), original=_redacted_bytes(one.original, redactor))
        return JsonBlock(redactor.value(one.value)) if isinstance(one, JsonBlock) else reference(one)

    def reference(one: ArtifactRef) -> ArtifactRef:
        return replace(one, name=redactor.text(one.name))

    error = result.error
    if error is not None:
        message, hint = redactor.text(error.message), redactor.text(error.hint)
        error = ToolFailure(error.type, message, hint, redactor.mapping(error.details))
    return replace(
        result,
        content=tuple(map(block, result.content)),
        summary=redactor.text(result.summary),
        data=redactor.value(result.data),
        artifacts=tuple(map(reference, result.artifacts)),
        error=error,
        metadata=redactor.mapping(result.metadata),
        context_nodes=tuple(
            replace(node, name=redactor.text(node.name), text=redactor.text(node.text)) for node in result.context_nodes
        ),
    )


def _redacted_bytes(original: bytes, redactor: Redactor) -> bytes:
    if not original:
        return original
    text = original.decode("utf-8", "surrogateescape")
    clean = redactor.text(text)
    read = inert_text(clean)
    if redactor.text(read) is not read:
        # An escape sequence was inside a secret, where a terminal shows none: then only the text is kept.
        return redactor.text(read).encode("utf-8", "replace")
    return original if clean is text else clean.encode("utf-8", "surrogateescape")


def _text_of(block: ContentBlock) -> str:
    if isinstance(block, TextBlock):
        return block.text
    return dump(block.value) if isinstance(block, JsonBlock) else ""


def _bytes_of(block: ContentBlock) -> bytes:
    return (isinstance(block, TextBlock) and block.original) or _text_of(block).encode("utf-8", "replace")


def _without_originals(result: ToolResult) -> ToolResult:
    if not any(isinstance(block, TextBlock) and block.original for block in result.content):
        return result
    blocks = (replace(block, original=b"") if isinstance(block, TextBlock) else block for block in result.content)
    return replace(result, content=tuple(blocks))


def _media_type(content: Sequence[ContentBlock], whole: bytes) -> str:
    if all(isinstance(block, JsonBlock) for block in content):
        return "application/json"
    return "application/octet-stream" if b"\0" in whole else "text/plain"


def _cut(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
