"""A run's history: the messages a model reads, and what of them is not written yet.

Owns the pairing of nodes and messages. Nodes and events wait here until something must not be lost: they are flushed
before tools run, and what is left when the run ends goes into the step's end. So a run without tool calls writes
nothing of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ModelResponsePart, ToolCallPart

from shared.agents.messages import assistant_node, calls_of, messages_of, result_node, result_parts, user_node
from shared.agents.ports import Transcript
from shared.clock import Clock
from shared.jsontext import JsonObject
from shared.runs.events import NewEvent, NewNode, Node, NodeKind
from shared.tools import stored
from shared.tools.result import ToolResult


@dataclass(slots=True)
class Conversation:
    """One run's. ``answered`` are the results of the last answer's calls, for an answer that is not settled."""

    transcript: Transcript
    clock: Clock
    messages: list[ModelMessage] = field(default_factory=list)
    answered: list[ToolResult] = field(default_factory=list)
    _nodes: list[NewNode] = field(default_factory=list)
    _events: list[NewEvent] = field(default_factory=list)
    _call_ids: set[str] = field(default_factory=set)

    def begin(self, nodes: Sequence[NewNode]) -> None:
        """Open a new history."""
        self._nodes += nodes
        self.messages = messages_of(nodes)

    def restore(self, nodes: Sequence[Node]) -> list[ToolResult]:
        """Take a history up where it stopped; return all results in it. Raises: SchemaVersionError."""
        last = max((index for index, node in enumerate(nodes) if node.kind is NodeKind.ASSISTANT), default=-1)
        self.messages = messages_of(nodes[: last + 1] or nodes)
        self._call_ids = {part.tool_call_id for message in self.messages for part in calls_of(message)}
        results = [stored.from_json(node.payload) for node in nodes if node.kind is NodeKind.TOOL_RESULT]
        if last >= 0:
            self._restore_tail(nodes[last + 1 :])
        return results

    def _restore_tail(self, tail: Sequence[Node]) -> None:
        self.answered = [stored.from_json(node.payload) for node in tail if node.kind is NodeKind.TOOL_RESULT]
        is_settled = {part.tool_call_id for part in self.open_calls} <= {one.tool_call_id for one in self.answered}
        if is_settled and tail:
            parts = result_parts(self.messages[-1], self.answered)
            later = messages_of([node for node in tail if node.kind is not NodeKind.TOOL_RESULT])
            prompts = [part for message in later for part in message.parts]
            self.messages.append(ModelRequest(parts=[*parts, *prompts]))  # type: ignore[list-item]  # only prompts follow
            self.answered = []

    @property
    def answer(self) -> ModelResponse | None:
        """Return the model's answer that the run has not dealt with yet."""
        last = self.messages[-1] if self.messages else None
        return last if isinstance(last, ModelResponse) else None

    @property
    def open_calls(self) -> list[ToolCallPart]:
        return calls_of(self.answer)

    @property
    def turns(self) -> int:
        return sum(isinstance(message, ModelResponse) for message in self.messages)

    def add_answer(self, response: ModelResponse) -> None:
        """Take a model's answer. Call ids that a provider repeats are made unique: calls pair by id (RES-02)."""
        parts = [self._with_own_id(part) for part in response.parts]
        if any(new is not old for new, old in zip(parts, response.parts, strict=True)):
            response = replace(response, parts=parts)
        self.messages.append(response)
        self._nodes.append(assistant_node(response))

    def _with_own_id(self, part: ModelResponsePart) -> ModelResponsePart:
        if not isinstance(part, ToolCallPart):
            return part
        if part.tool_call_id in self._call_ids:
            part = replace(part, tool_call_id=f"{part.tool_call_id}_{len(self._call_ids)}")
        self._call_ids.add(part.tool_call_id)
        return part

    def add_results(self, results: Sequence[ToolResult]) -> None:
        """Give the model the results of its last answer's calls. Their nodes are the call log's."""
        self.messages.append(ModelRequest(parts=result_parts(self.answer, [*self.answered, *results])))
        self.answered = []

    def refuse(self, tool: str, result: ToolResult) -> ToolResult:
        """Record the result of a call that never reaches the pipeline: a final answer that cannot be taken."""
        self._nodes.append(result_node(tool, result))
        return result

    def ask_again(self, text: str) -> None:
        """Put a request of ours before the model."""
        node = user_node(text)
        self._nodes.append(node)
        self.messages += messages_of([node])

    def add_node(self, node: NewNode) -> None:
        self._nodes.append(node)

    def note(self, type: str, data: JsonObject) -> None:
        """Keep an event of the run, with the time of now."""
        self._events.append(NewEvent(type, data, self.clock.now_us()))

    async def flush(self) -> None:
        """Write what waits. Raises: LeaseLostError."""
        nodes, events = self.take()
        if nodes or events:
            await self.transcript.append(nodes, events)

    def take(self) -> tuple[tuple[NewNode, ...], tuple[NewEvent, ...]]:
        """Return what waits and forget it: the caller writes it."""
        taken = tuple(self._nodes), tuple(self._events)
        self._nodes, self._events = [], []
        return taken
