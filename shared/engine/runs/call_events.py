"""The events of a tool call in a run's log, of a worker's run or a direct one (EXE-06, EVT-03)."""

from soong.shared.core.errors import SoongError
from soong.shared.core.inert import inert
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.deliverables import keep_deliverable
from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, NodeKind
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.ports import ArtifactStore, StartedCall, ToolCall
from soong.shared.tools.result import ToolResult
from soong.shared.tools.results import codec
from soong.shared.tools.results.rendering import for_telemetry

MAX_SUMMARY_CHARS = 300
MAX_MESSAGE_CHARS = 1000


def started_event(started: StartedCall, *, now_us: int) -> NewEvent:
    """Return the start of a call: its input without secrets, and who allowed it by what (PER-19)."""
    data: dict[str, Json] = {
        "tool_call_id": started.call.id,
        "tool": started.call.tool,
        "input": dict(started.shown_input),
        "effect_id": started.effect_id,
        "author": started.verdict.author,
        "rule": started.verdict.rule,
        "decision_id": started.verdict.decision_id,
        "event_id": started.record.event_id,
    }
    return NewEvent(EventType.TOOL_STARTED, data, now_us)


async def ended_event(
    call: ToolCall,
    result: ToolResult,
    *,
    duration_ms: int,
    artifacts: ArtifactStore,
    now_us: int,
    redactor: Redactor,
) -> NewEvent:
    """Return the end of a call: facts, and a line for people; a file that it delivers is kept as an artifact first."""
    data = for_telemetry(call.tool, result, duration_ms=duration_ms)
    data["summary"] = inert(result.summary[:MAX_SUMMARY_CHARS])
    if result.error is not None:
        data["message"] = inert(result.error.message[:MAX_MESSAGE_CHARS])
    if result.evidence:
        data["event_id"] = result.evidence[-1]
    try:
        deliverable = await keep_deliverable(result, artifacts, redactor)
    except (OSError, SoongError) as error:
        data["deliverable_error"] = str(error)
    else:
        if deliverable is not None:
            data["deliverable"] = deliverable
    return NewEvent(end_type(result), data, now_us)


def result_nodes(tool: str, result: ToolResult) -> list[NewNode]:
    """Return the nodes of a result: itself, and below it what it adds to the context (RES-01)."""
    added = [
        NewNode(NodeKind(node.kind), codec.context_to_json(result.tool_call_id, tool, node))
        for node in result.context_nodes
    ]
    return [NewNode(NodeKind.TOOL_RESULT, codec.to_json(tool, result)), *added]


def end_type(result: ToolResult) -> EventType:
    """Return which end it is: denials are distinct from failures (EXE-04)."""
    if result.error is None:
        return EventType.TOOL_COMPLETED
    return EventType.TOOL_DENIED if result.error.type.is_denial else EventType.TOOL_FAILED
