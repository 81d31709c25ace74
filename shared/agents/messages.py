"""A run's nodes as the messages a model reads, and back.

Owns the payloads of system, user, assistant and result nodes; results of calls are stored by the call log, see
:mod:`soong.shared.tools.results.rendering`. Messages rebuilt from nodes equal those sent: a resumed run continues where
it stopped.
"""

import dataclasses
import itertools
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from msgspec.structs import replace
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from soong.shared.core.errors import SchemaVersionError
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.engine.runs.events import NewNode, Node, NodeKind
from soong.shared.tools.limits import UnfitError, plain, storable
from soong.shared.tools.result import ContextNode, ToolResult
from soong.shared.tools.results import rendering

VERSION = 1

_Part = TypeVar("_Part", bound=ModelResponse | ModelResponsePart)
_OWN_RESULT: Final = "builtin-tool-return"
_HALF_ESCAPED: Final = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE: Final = re.compile(r"\\(?:u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|(u[dD][89a-fA-F]\w\w)|.)")
"""In JSON text: a pair of halves, or one alone (group 1), or any other escape."""
_CALL_ID = re.compile(r"[\x21-\x7e]{1,128}", re.ASCII)
_CONTEXT_HEADS = {"skill": "Skill", "memory_context": "Remembered:", "system": "Instructions of this project,"}


def opening_nodes(system: str, instructions: str, inputs: JsonObject, run_dirs: JsonObject) -> tuple[NewNode, NewNode]:
    """Return the nodes that every run begins with. The facts are one JSON text of their own, last in the prompt."""
    facts = dump({"inputs": inputs, "run_dirs": run_dirs})
    return (
        NewNode(NodeKind.SYSTEM, {"v": VERSION, "text": system}),
        NewNode(NodeKind.USER, {"v": VERSION, "texts": [instructions, facts]}),
    )


def user_node(text: str) -> NewNode:
    return NewNode(NodeKind.USER, {"v": VERSION, "texts": [text]})


def assistant_node(response: ModelResponse) -> NewNode:
    """Return the complete node of a model's answer: provider details too, which some providers want back."""
    message = ModelMessagesTypeAdapter.dump_python([response], mode="json", exclude_none=True)[0]
    # Eleven counters, most of them zero: a missing one is read as zero again.
    message["usage"] = {name: value for name, value in message["usage"].items() if value}
    return NewNode(NodeKind.ASSISTANT, {"v": VERSION, "message": message})


def answer_of(stored: Json) -> ModelResponse:
    """Return the answer that a node of any age holds: empty results of a provider's own tools have no content there."""
    message = cast("Mapping[str, Any]", stored)
    parts = [{"content": None, **part} if part.get("part_kind") == _OWN_RESULT else part for part in message["parts"]]
    (answer,) = ModelMessagesTypeAdapter.validate_python([{**message, "parts": parts}])
    return taken_in(cast(ModelResponse, answer))


def taken_in(answer: ModelResponse) -> ModelResponse:
    """Return an answer as everything behind it can take it: halves of a character are joined, or become U+FFFD."""
    parts = [_with_characters(part) for part in answer.parts]
    is_changed = any(new is not old for new, old in zip(parts, answer.parts, strict=True))
    return _with_characters(dataclasses.replace(answer, parts=parts) if is_changed else answer)


def _with_characters(value: _Part) -> _Part:
    changed: dict[str, Any] = {}
    for name, old in vars(value).items():
        with suppress(UnfitError):  # a value that is not JSON, or too deep, is refused at its use
            if isinstance(old, str | dict) and (new := plain(old)) is not old:
                changed[name] = new
    arguments = changed.get("args", value.args) if isinstance(value, ToolCallPart) else None
    if isinstance(arguments, str) and _HALF_ESCAPED.search(arguments):
        changed["args"] = _ESCAPE.sub(lambda found: r"\ufffd" if found[1] else found[0], arguments)
    return dataclasses.replace(value, **changed) if changed else value


def result_node(tool: str, result: ToolResult) -> NewNode:
    return NewNode(NodeKind.TOOL_RESULT, rendering.to_json(tool, result))


def messages_of(nodes: Sequence[Node | NewNode]) -> list[ModelMessage]:
    """Return the messages that a run's nodes stand for. Consecutive nodes for the model become one request.
    Raises: SchemaVersionError, a node was written by a newer program.
    """
    messages: list[ModelMessage] = []
    prompts: list[ModelRequestPart] = []
    called: list[Node | NewNode] = []

    def close() -> None:
        asked = messages[-1] if messages else None
        parts = [*answer_parts(asked, results_of(called)), *prompts]
        if parts:
            messages.append(ModelRequest(parts=parts))
        called.clear()
        prompts.clear()

    for node in nodes:
        version = node.payload.get("v")
        if not isinstance(version, int) or version > VERSION:
            raise SchemaVersionError(
                f"a node of version {version!r} cannot be read; this program reads up to {VERSION}"
            )
        if is_of_a_call(node):
            called.append(node)
        elif node.kind is NodeKind.ASSISTANT:
            close()
            messages.append(answer_of(node.payload["message"]))
        elif node.kind is NodeKind.SYSTEM:
            prompts.append(SystemPromptPart(storable(str(node.payload["text"]))))
        elif node.kind is NodeKind.USER:
            told = [storable(text) for text in cast("Sequence[str]", node.payload["texts"])]
            prompts.append(UserPromptPart(told[0] if len(told) == 1 else told))
    close()
    return messages


def is_of_a_call(node: Node | NewNode) -> bool:
    """Say whether a node is a call's result or what the call has added to the context."""
    return node.kind is NodeKind.TOOL_RESULT or rendering.context_from_json(node.kind, node.payload) is not None


def results_of(nodes: Iterable[Node | NewNode]) -> list[ToolResult]:
    """Return the results that nodes hold, each with what its call has added to the context, in their order."""
    results: dict[str, ToolResult] = {}
    for node in nodes:
        if node.kind is NodeKind.TOOL_RESULT:
            result = rendering.from_json(node.payload)
            results.setdefault(result.tool_call_id, result)
            continue
        added = rendering.context_from_json(node.kind, node.payload)
        owner = results.get(str(node.payload.get("tool_call_id")))
        if added is not None and owner is not None:
            results[owner.tool_call_id] = replace(owner, context_nodes=(*owner.context_nodes, added))
    return list(results.values())


def results_by_turn(nodes: Iterable[Node | NewNode]) -> list[list[tuple[str, ToolResult]]]:
    """Return the results of each answer's calls, each with its tool, in the order of the answers."""
    turns: list[list[tuple[str, ToolResult]]] = []
    for node in nodes:
        if node.kind is NodeKind.ASSISTANT:
            turns.append([])
        elif node.kind is NodeKind.TOOL_RESULT and turns:
            turns[-1].append((str(node.payload.get("tool")), rendering.from_json(node.payload)))
    return turns


def answer_parts(asked: ModelMessage | None, results: Iterable[ToolResult]) -> list[ModelRequestPart]:
    """Return what a model is given after its calls: their results in its order, then what they added (RES-01)."""
    by_id: dict[str, ToolResult] = {}
    for result in results:
        by_id.setdefault(result.tool_call_id, result)
    parts = [part for part in calls_of(asked) if part.tool_call_id in by_id]
    ordered = [by_id[part.tool_call_id] for part in parts]
    told: list[ModelRequestPart] = []
    for part, result in zip(parts, ordered, strict=True):
        said = rendering.for_model(result)
        told.append(
            ToolReturnPart(
                part.tool_name, said.content, result.tool_call_id, metadata=said.metadata, outcome=said.outcome
            )
        )
    return [*told, *(_context_part(node) for result in ordered for node in result.context_nodes)]


def calls_of(response: ModelMessage | None) -> list[ToolCallPart]:
    parts = response.parts if isinstance(response, ModelResponse) else ()
    return [part for part in parts if isinstance(part, ToolCallPart)]


def text_of(response: ModelResponse) -> str:
    return "".join(str(part.content) for part in response.parts if part.part_kind == "text")


def arguments_of(part: ToolCallPart) -> Json:
    """Return a call's arguments as they came: JSON text is parsed where it is validated."""
    return cast(Json, part.args) if part.args is not None else {}


def own_id(raw: str, taken: Container[str]) -> str:
    """Return a call's id in its run: the provider's where it is usable and new, else one of ours (RES-02)."""
    base = raw if _CALL_ID.fullmatch(raw) else "call"
    if base == raw and raw not in taken:
        return raw
    return next(each for number in itertools.count(1) if (each := f"{base}_{number}") not in taken)


def _context_part(node: ContextNode) -> ModelRequestPart:
    """Return added context as a model reads it: instructions of the project as system text, the rest as a prompt."""
    text = f"{_CONTEXT_HEADS[node.kind]} {node.name}:\n{node.text}"
    return SystemPromptPart(text) if node.kind == "system" else UserPromptPart(text)
