"""A tool result as it is stored in a node, and back: nothing that a resumed run needs is lost."""

from typing import Any

from msgspec import convert
from msgspec.structs import replace

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.tools.result import ContextNode, TextBlock, ToolResult

VERSION = 1


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
