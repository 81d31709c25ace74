"""A run's history: the messages a model reads, and what of them is not written yet.

Owns the pairing of nodes and messages. Nodes and events wait here until something must not be lost: they are flushed
before tools run, and what is left when the run ends goes into the step's end. So a run without tool calls writes
nothing of its own.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ModelResponsePart, ToolCallPart

from soong.shared.agents.compaction import IS_INHERITED, compacted, inherited
from soong.shared.agents.messages import (
    VERSION,
    answer_parts,
    arguments_of,
    assistant_node,
    calls_of,
    is_of_a_call,
    messages_of,
    own_id,
    result_node,
    results_of,
    user_node,
)
from soong.shared.agents.ports import AgentEnd, AgentTask, RunTranscript
from soong.shared.agents.turn import FINAL_TOOL
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.events import NewEvent, NewNode, Node, NodeKind
from soong.shared.engine.runs.record import EndReason, Usage
from soong.shared.engine.tasks.failure_report import StepIncidents
from soong.shared.engine.tasks.step import Outcome, StepError
from soong.shared.tools.execution import shown_arguments
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ToolResult

MAX_RAW_ID_CHARS: Final = 200


@dataclass(slots=True)
class UnwrittenLog:
    """The nodes and events of one run that are not written yet."""

    transcript: RunTranscript
    clock: Clock
    _nodes: list[NewNode] = field(init=False, default_factory=list)
    _events: list[NewEvent] = field(init=False, default_factory=list)

    def add_node(self, node: NewNode) -> None:
        self._nodes.append(node)

    def note(self, type: str, data: JsonObject) -> None:
        self._events.append(NewEvent(type, data, self.clock.now_us()))

    async def flush(self, calls: Sequence[ToolCall] = ()) -> None:
        """Write what waits, before ``calls`` are made. Raises: LeaseLostError."""
        nodes, events = self.take()
        if nodes or events:
            await self.transcript.append(nodes, events, calls)

    def take(self) -> tuple[tuple[NewNode, ...], tuple[NewEvent, ...]]:
        """Return what waits and forget it: the caller writes it."""
        taken = tuple(self._nodes), tuple(self._events)
        self._nodes, self._events = [], []
        return taken

    def end(
        self,
        task: AgentTask,
        incidents: StepIncidents,
        usage: Usage,
        reason: EndReason,
        output: Json = None,
        error: StepError | None = None,
    ) -> AgentEnd:
        """Return the run's end with its result and all that waits. Incidents make what it has completed partial."""
        outcome = Outcome.PARTIAL if incidents and error is None else Outcome.CLEAN
        payload: dict[str, Json] = {
            "v": VERSION,
            "end_reason": str(reason),
            "output": output,
            "outcome": str(outcome),
            **incidents.lists(),
            "tools": [tool.name for tool in task.tools],
        }
        self.add_node(NewNode(NodeKind.RESULT, payload))
        denials, unknown = tuple(incidents.denials), tuple(incidents.unknown_effects)
        return AgentEnd(reason, output, outcome, usage, denials, unknown, error, *self.take())


@dataclass(slots=True)
class Conversation(UnwrittenLog):
    """One run's. ``answered`` are the results of the last answer's calls, for an answer that is not settled.

    ``whole`` holds arguments that the history lacks: those of a call too large or deep to be kept, and after a crash
    those of a call whose node is without its secrets. ``raw_ids`` are the providers' own call ids where ours differ.
    """

    messages: list[ModelMessage] = field(default_factory=list)
    answered: list[ToolResult] = field(default_factory=list)
    whole: dict[str, Json] = field(default_factory=dict)
    raw_ids: dict[str, str] = field(default_factory=dict)
    turns: int = 0
    """How many answers the run has had, without those of the parent of a fork."""
    _call_ids: set[str] = field(default_factory=set)
    _compacted_at: int = -1
    """How many answers the run had when its history was last made shorter."""

    def begin(self, nodes: Sequence[NewNode]) -> None:
        self._nodes += nodes
        self.messages = messages_of(nodes)

    def restore(self, nodes: Sequence[Node]) -> list[ToolResult]:
        """Take a history up where it stopped; return all results of its step. Raises: SchemaVersionError."""
        own = [node for node in nodes if not inherited(node)]
        self.turns = sum(node.kind is NodeKind.ASSISTANT for node in own)
        self._call_ids = {part.tool_call_id for message in messages_of(nodes) for part in calls_of(message)}
        if any(node.kind is NodeKind.COMPACTION for node in own):
            last = max(place for place, node in enumerate(own) if node.kind is NodeKind.COMPACTION)
            self._compacted_at = sum(node.kind is NodeKind.ASSISTANT for node in own[:last])
        self._show(compacted(nodes))
        return results_of(node for node in nodes if node.payload.get(IS_INHERITED) is not True)

    def _show(self, nodes: Sequence[Node | NewNode]) -> None:
        last = max((index for index, node in enumerate(nodes) if node.kind is NodeKind.ASSISTANT), default=-1)
        self.messages = messages_of(nodes[: last + 1] or nodes)
        if last >= 0:
            tail = nodes[last + 1 :]
            self.answered = results_of(tail)
            is_settled = {part.tool_call_id for part in self.open_calls} <= {one.tool_call_id for one in self.answered}
            if is_settled and tail:
                parts = answer_parts(self.messages[-1], self.answered)
                later = messages_of([node for node in tail if not is_of_a_call(node)])
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
    def is_compacted(self) -> bool:
        return self._compacted_at == self.turns

    async def compact(self, node: NewNode) -> None:
        """Show a shorter history from here on, as a compaction defines it. Raises: LeaseLostError."""
        self._nodes.append(node)
        await self.flush()
        self._compacted_at = self.turns
        self._show(compacted(await self.transcript.nodes()))

    def cut_answers(self) -> list[ModelResponse]:
        """Return the answers right before the last one that were cut at the limit of output tokens, oldest first.

        They are found in the history, so that a run which another process takes up counts them, too.
        """
        found: list[ModelResponse] = []
        for message in reversed(self.messages[:-1]):
            if isinstance(message, ModelResponse):
                if message.finish_reason != "length" or any(part.tool_name != FINAL_TOOL for part in calls_of(message)):
                    break
                found.append(message)
        return found[::-1]

    def add_answer(self, response: ModelResponse) -> None:
        """Take a model's answer.

        Call ids that a provider repeats, leaves out or makes unusable become ours: calls pair by id (RES-02). Arguments
        that are too large or deep to be kept are named in the history and refused by the pipeline.
        """
        parts = [self._with_own_id(part) for part in response.parts]
        if any(new is not old for new, old in zip(parts, response.parts, strict=True)):
            response = replace(response, parts=parts)
        self.messages.append(response)
        self.turns += 1
        self._nodes.append(assistant_node(response))

    def _with_own_id(self, part: ModelResponsePart) -> ModelResponsePart:
        if not isinstance(part, ToolCallPart):
            return part
        raw, own = part.tool_call_id, own_id(part.tool_call_id, self._call_ids)
        if own != raw:
            self.raw_ids[own] = raw[:MAX_RAW_ID_CHARS]
            part = replace(part, tool_call_id=own)
        self._call_ids.add(own)
        arguments = arguments_of(part)
        kept = shown_arguments(arguments)
        if kept is not arguments:
            self.whole[own] = arguments
            part = replace(part, args=cast(Any, kept))  # the marker of what was left out, an object
        return part

    def early_call(self, part: ToolCallPart, tool: str, before: Collection[str]) -> ToolCall:
        """Return the call of a part of an answer that still arrives; ``before`` are the ids of the calls before it."""
        own = own_id(part.tool_call_id, self._call_ids | set(before))
        raw = {"name": part.tool_name, "id": part.tool_call_id[:MAX_RAW_ID_CHARS]}
        return ToolCall(own, tool, arguments_of(part), raw)

    def spend(self, ids: Collection[str]) -> None:
        """Give no later call one of these ids."""
        self._call_ids.update(ids)

    def call_of(self, part: ToolCallPart, tool: str) -> ToolCall:
        """Return a call as the pipeline takes it; the provider's own words are kept with it (REG-03)."""
        raw_id = self.raw_ids.get(part.tool_call_id, part.tool_call_id)
        arguments = self.whole.get(part.tool_call_id, arguments_of(part))
        return ToolCall(part.tool_call_id, tool, arguments, {"name": part.tool_name, "id": raw_id})

    def add_results(self, results: Sequence[ToolResult]) -> None:
        """Give the model its calls' results, and what they added. Their nodes are the call log's."""
        self.messages.append(ModelRequest(parts=answer_parts(self.answer, [*self.answered, *results])))
        self.answered = []
        self.whole.clear()

    def refuse(self, tool: str, result: ToolResult) -> ToolResult:
        """Record the result of a call that never reaches the pipeline: a final answer that cannot be taken."""
        self._nodes.append(result_node(tool, result))
        return result

    def ask_again(self, text: str) -> None:
        node = user_node(text)
        self._nodes.append(node)
        self.messages += messages_of([node])
