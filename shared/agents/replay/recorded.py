"""The record as the ports of an agent's loop: calls get the results that they had, and nothing is written anywhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from soong.shared.agents.messages import results_of
from soong.shared.agents.replay.lives import Life, RunRecord, call_of
from soong.shared.agents.replay.script import ModelScript
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.call_events import end_type, result_nodes
from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, Node
from soong.shared.engine.runs.store import CallRow, CallStatus
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.ports import CallRecord, StartedCall, ToolCall
from soong.shared.tools.result import ErrorType, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import refusal


@dataclass(slots=True)
class ReplayedLog:
    """What the loop writes of one life: its nodes, its events and the ends of its calls, in order.

    Serves as the transcript and as the log of calls. ``is_closed``: the record of the life stops here, and what the
    loop writes while it is cancelled belongs to no record.
    """

    record: RunRecord
    life: Life
    nodes_: list[NewNode] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)
    ends: dict[str, EventType] = field(default_factory=dict)
    is_closed: bool = False

    async def nodes(self) -> Sequence[Node]:
        own = [
            Node(self.record.run.id, number, number - 1, node.kind, node.payload, 0)
            for number, node in enumerate(self.nodes_, len(self.life.before) + 1)
        ]
        return [*self.life.before, *own]

    async def calls(self) -> Sequence[CallRow]:
        """Return the calls as they stood when the life began."""
        begun, ended = set[str](), set[str]()
        for event in self.record.events:
            if event is self.life.events[0]:
                break
            if event.type == EventType.TOOL_STARTED:
                begun.add(call_of(event))
            elif event.type in set(EventType) and event.type in _ENDS:
                ended.add(call_of(event))
        return [
            replace(row, status=CallStatus.ENDED if row.tool_call_id in ended else CallStatus.STARTED)
            for row in self.record.calls
            if row.tool_call_id in begun
        ]

    async def append(
        self,
        nodes: Sequence[NewNode],
        events: Sequence[NewEvent],
        calls: Sequence[ToolCall] = (),
        *,
        may_wait: bool = False,
    ) -> None:
        del calls, may_wait
        if not self.is_closed:
            self.nodes_ += nodes
            self.events += events

    async def started(self, started: StartedCall) -> None:
        """No call is made, so none starts."""

    async def finished(
        self, call: ToolCall, result: ToolResult, *, duration_ms: int, record: CallRecord | None = None
    ) -> None:
        del duration_ms, record
        if not self.is_closed:
            self.nodes_ += result_nodes(call.tool, result)
            self.ends[call.id] = end_type(result)

    async def note(self, type: str, data: JsonObject) -> None:
        if not self.is_closed:
            self.events.append(NewEvent(type, data))


_ENDS = frozenset({EventType.TOOL_COMPLETED, EventType.TOOL_FAILED, EventType.TOOL_DENIED})


@dataclass(slots=True)
class RecordedCalls:
    """An executor that calls nothing. A call without an end in this life waits, as it did, for the life to stop."""

    tools: Mapping[str, ToolDefinition]
    aliases: Mapping[str, str]
    results: Mapping[str, ToolResult]
    log: ReplayedLog
    script: ModelScript

    @classmethod
    def of(cls, tools: Sequence[ToolDefinition], log: ReplayedLog, script: ModelScript) -> "RecordedCalls":
        aliases = {alias: tool.name for tool in tools for alias in tool.aliases}
        ended = log.life.ended_calls
        results = {one.tool_call_id: one for one in results_of(log.life.nodes) if one.tool_call_id in ended}
        return cls({tool.name: tool for tool in tools}, aliases, results, log, script)

    def resolve(self, name: str) -> ToolDefinition | None:
        return self.tools.get(self.aliases.get(name, name))

    async def execute(self, call: ToolCall) -> ToolResult:
        result = self.results.get(call.id)
        if result is None:
            await self.script.stop()
            raise AssertionError("the wait for the end of a life does not end")
        await self.log.finished(call, result, duration_ms=0)
        return result

    async def refuse(self, call: ToolCall, type: ErrorType, message: str) -> ToolResult:
        result = refusal(call.id, ToolFailure(type, message))
        await self.log.finished(call, result, duration_ms=0)
        return result
