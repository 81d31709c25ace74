"""A run's nodes as the messages a model reads, and back.

Owns the payloads of system, user, assistant and result nodes; results of calls are stored by the call log
(:mod:`shared.tools.stored`). What is rebuilt from nodes is what was sent: a resumed run goes on where it stopped.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from shared.errors import SchemaVersionError
from shared.jsontext import Json, JsonObject, dump
from shared.runs.events import NewNode, Node, NodeKind
from shared.tools import stored
from shared.tools.result import ArtifactRef, ContentBlock, JsonBlock, TextBlock, ToolResult

VERSION = 1


def opening_nodes(system: str, instructions: str, inputs: JsonObject, workplace: JsonObject) -> tuple[NewNode, NewNode]:
    """Return the nodes that every run begins with. The facts are one JSON text of their own, last in the prompt."""
    facts = dump({"inputs": inputs, "workplace": workplace})
    return (
        NewNode(NodeKind.SYSTEM, {"v": VERSION, "text": system}),
        NewNode(NodeKind.USER, {"v": VERSION, "texts": [instructions, facts]}),
    )


def user_node(text: str) -> NewNode:
    return NewNode(NodeKind.USER, {"v": VERSION, "texts": [text]})


def assistant_node(response: ModelResponse) -> NewNode:
    """Return the node of a model's answer, whole: provider details too, which some providers want back."""
    message = ModelMessagesTypeAdapter.dump_python([response], mode="json", exclude_none=True)[0]
    return NewNode(NodeKind.ASSISTANT, {"v": VERSION, "message": message})


def result_node(tool: str, result: ToolResult) -> NewNode:
    return NewNode(NodeKind.TOOL_RESULT, stored.to_json(tool, result))


def messages_of(nodes: Sequence[Node | NewNode]) -> list[ModelMessage]:
    """Return the messages that a run's nodes stand for. Consecutive nodes for the model become one request.

    Raises:
        SchemaVersionError: a node was written by a newer program.
    """
    messages: list[ModelMessage] = []
    waiting: list[ModelRequestPart] = []
    results: list[ToolResult] = []

    def close() -> None:
        if results:
            asked = messages[-1] if messages else None
            waiting[:0] = result_parts(asked, results)
            results.clear()
        if waiting:
            messages.append(ModelRequest(parts=list(waiting)))
            waiting.clear()

    for node in nodes:
        _check_version(node.payload)
        match node.kind:
            case NodeKind.SYSTEM:
                waiting.append(SystemPromptPart(str(node.payload["text"])))
            case NodeKind.USER:
                waiting.append(_prompt(cast("Sequence[str]", node.payload["texts"])))
            case NodeKind.TOOL_RESULT:
                results.append(stored.from_json(node.payload))
            case NodeKind.ASSISTANT:
                close()
                messages += ModelMessagesTypeAdapter.validate_python([node.payload["message"]])
            case NodeKind.RESULT | NodeKind.MEMORY_CONTEXT | NodeKind.SKILL:
                continue  # the end of the run, and context that later issues give a form
    close()
    return messages


def calls_of(response: ModelMessage | None) -> list[ToolCallPart]:
    """Return the calls of a model's answer, in its order."""
    parts = response.parts if isinstance(response, ModelResponse) else ()
    return [part for part in parts if isinstance(part, ToolCallPart)]


def result_parts(asked: ModelMessage | None, results: Iterable[ToolResult]) -> list[ModelRequestPart]:
    """Return results as the model gets them, in the order of its calls; a second result of a call is passed over."""
    by_id: dict[str, ToolResult] = {}
    for result in results:
        by_id.setdefault(result.tool_call_id, result)
    return [
        _result_part(part.tool_name, by_id[part.tool_call_id]) for part in calls_of(asked) if part.tool_call_id in by_id
    ]


def text_of(response: ModelResponse) -> str:
    return "".join(str(part.content) for part in response.parts if part.part_kind == "text")


def arguments_of(part: ToolCallPart) -> Json:
    """Return a call's arguments as they came: JSON text is parsed by whoever validates it."""
    return cast(Json, part.args) if part.args is not None else {}


def _prompt(texts: Sequence[str]) -> UserPromptPart:
    return UserPromptPart(texts[0] if len(texts) == 1 else list(texts))


def _result_part(tool_name: str, result: ToolResult) -> ToolReturnPart:
    failure, context = result.error, _hook_context(result)
    if failure is None:
        content = _content((*result.content, *map(TextBlock, context)))
        # What is for programs travels beside the content and is not sent: a scripted model reads it.
        return ToolReturnPart(tool_name, content, result.tool_call_id, metadata={"data": result.data})
    error: dict[str, Json] = {"type": str(failure.type), "message": failure.message, "retryable": failure.retryable}
    if failure.hint:
        error["hint"] = failure.hint
    told: dict[str, Any] = {"is_error": True, "error": error} | ({"context": context} if context else {})
    return ToolReturnPart(
        tool_name,
        told,
        result.tool_call_id,
        metadata={"data": result.data, "error": error},
        outcome="denied" if failure.type.is_denial else "failed",
    )


def _hook_context(result: ToolResult) -> list[str]:
    """Return what hooks have added for the model to read after the content (EXE-13)."""
    context = result.metadata.get("hook_context")
    return [str(text) for text in context] if isinstance(context, list | tuple) else []


def _content(blocks: Sequence[ContentBlock]) -> Any:
    rendered = [_block(block) for block in blocks]
    return rendered[0] if len(rendered) == 1 else rendered or "done"


def _block(block: ContentBlock) -> Any:
    match block:
        case TextBlock(text):
            return text
        case JsonBlock(value):
            return value
        case ArtifactRef():
            return f"[whole output: artifact {block.digest}, {block.size_bytes} bytes, {block.media_type}]"


def _check_version(payload: Mapping[str, Json]) -> None:
    version = payload.get("v")
    if not isinstance(version, int) or version > VERSION:
        raise SchemaVersionError(f"a node of version {version!r} cannot be read; this program reads up to {VERSION}")
