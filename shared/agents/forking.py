"""Runs that start from the context of another: a fork from its parent's (DIS-06), a follow-up from what it follows.

It gets the parent's nodes up to the answer that called for it, as they are, so that a provider's cache of that prefix
serves both. What is copied counts for nothing in the fork: neither its turns and cost nor its denials.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from soong.shared.agents.messages import calls_of, messages_of, user_node
from soong.shared.core.errors import ConflictError
from soong.shared.engine.runs.call_events import result_nodes
from soong.shared.engine.runs.events import NewNode, Node, NodeKind
from soong.shared.tools.naming import unmangle
from soong.shared.tools.result import TextBlock, ToolResult

IS_INHERITED: Final = "is_inherited"
"""Marks, in its payload, a node that was copied from the parent."""
FORKED: Final = "You are the fork that this call started. Your parent continues without you."
ASIDE: Final = "Your parent continues with this call; you do not."


def inherited(node: Node | NewNode) -> bool:
    return node.payload.get(IS_INHERITED) is True


def fork_nodes(nodes: Sequence[Node], call_id: str, instructions: str) -> tuple[NewNode, ...]:
    """Return the nodes that a fork starts with: the parent's, an end for each call of that answer, the instructions.

    Raises:
        ConflictError: no answer of the parent has such a call.
    """
    found = next((place for place, node in enumerate(nodes) if call_id in _calls(node)), None)
    if found is None:
        raise ConflictError(f"the run has made no call {call_id!r} that a fork could start from")
    copied = [NewNode(node.kind, node.payload) for node in nodes[: found + 1]]
    for called, tool in _calls(nodes[found]).items():
        said = FORKED if called == call_id else ASIDE
        copied += result_nodes(tool, ToolResult(called, (TextBlock(said),), said))
    marked = [replace(node, payload={**node.payload, IS_INHERITED: True}) for node in copied]
    return (*marked, user_node(instructions))


def follow_up_nodes(nodes: Sequence[Node], goal: str) -> tuple[NewNode, ...]:
    """Return the nodes that a follow-up question starts with: the conversation that had ended, and the question."""
    kept = [NewNode(node.kind, node.payload) for node in nodes if node.kind is not NodeKind.RESULT]
    marked = [replace(node, payload={**node.payload, IS_INHERITED: True}) for node in kept]
    return (*marked, user_node(goal))


def _calls(node: Node) -> Mapping[str, str]:
    """Return the tools that an answer calls, by call id; of any other node none."""
    if node.kind is not NodeKind.ASSISTANT:
        return {}
    (answer,) = messages_of([node])
    return {part.tool_call_id: unmangle(part.tool_name) for part in calls_of(answer)}
