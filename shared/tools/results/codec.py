"""A tool result as it is stored in a node, and back: nothing that a resumed run needs is lost."""

from collections.abc import Mapping
from typing import assert_never, cast

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.tools.result import (
    ArtifactRef,
    ContentBlock,
    ContextNode,
    ErrorType,
    JsonBlock,
    TextBlock,
    ToolFailure,
    ToolResult,
)

VERSION = 1


def to_json(tool: str, result: ToolResult) -> dict[str, Json]:
    """Return the payload of a result node, with its version as ``v``.

    Its context nodes are nodes of their own (:func:`context_to_json`), written with it and found by the call's id.
    """
    failure = result.error
    return {
        "v": VERSION,
        "tool_call_id": result.tool_call_id,
        "tool": tool,
        "is_error": result.is_error,
        "content": [_block_to_json(block) for block in result.content],
        "summary": result.summary,
        "data": result.data,
        "artifacts": [_block_to_json(artifact) for artifact in result.artifacts],
        "error": None
        if failure is None
        else {
            "type": str(failure.type),
            "message": failure.message,
            "hint": failure.hint,
            "details": dict(failure.details),
            "retryable": failure.retryable,
        },
        "metadata": dict(result.metadata),
        "evidence": list(result.evidence),
    }


def context_to_json(tool_call_id: str, tool: str, node: ContextNode) -> dict[str, Json]:
    """Return the payload of a node that a call added to the context; its kind is the node's own."""
    return {"v": VERSION, "tool_call_id": tool_call_id, "tool": tool, "name": node.name, "text": node.text}


def context_from_json(kind: str, payload: JsonObject) -> ContextNode | None:
    """Return what a call has added to the context; None when the node comes from no call (the run's own prompt)."""
    if not payload.get("tool_call_id") or kind not in ("skill", "memory_context", "system"):
        return None
    return ContextNode(kind, str(payload.get("name") or ""), str(payload["text"]))  # type: ignore[arg-type]  # just checked


def from_json(payload: JsonObject) -> ToolResult:
    """Return the result that a node's payload holds."""
    error = cast("Mapping[str, Json] | None", payload.get("error"))
    return ToolResult(
        tool_call_id=str(payload["tool_call_id"]),
        content=tuple(_block_from_json(block) for block in _objects(payload.get("content"))),
        summary=str(payload.get("summary") or ""),
        data=payload.get("data"),
        artifacts=tuple(_artifact(block) for block in _objects(payload.get("artifacts"))),
        error=None
        if error is None
        else ToolFailure(
            ErrorType(str(error["type"])),
            str(error["message"]),
            str(error.get("hint") or ""),
            cast(JsonObject, error.get("details") or {}),
        ),
        metadata=cast(JsonObject, payload.get("metadata") or {}),
        evidence=tuple(str(each) for each in cast("list[Json]", payload.get("evidence") or [])),
    )


def _block_to_json(block: ContentBlock) -> dict[str, Json]:
    match block:
        case TextBlock(text):
            return {"kind": "text", "text": text}
        case JsonBlock(value):
            return {"kind": "json", "value": value}
        case ArtifactRef():
            return {
                "kind": "artifact_ref",
                "digest": block.digest,
                "size_bytes": block.size_bytes,
                "media_type": block.media_type,
                "name": block.name,
            }
        case other:
            assert_never(other)


def _block_from_json(block: JsonObject) -> ContentBlock:
    match block.get("kind"):
        case "text":
            return TextBlock(str(block["text"]))
        case "json":
            return JsonBlock(block["value"])
        case _:
            return _artifact(block)


def _artifact(block: JsonObject) -> ArtifactRef:
    return ArtifactRef(
        str(block["digest"]), int(str(block["size_bytes"])), str(block["media_type"]), str(block.get("name") or "")
    )


def _objects(value: Json) -> list[JsonObject]:
    return [cast(JsonObject, item) for item in value] if isinstance(value, list) else []
