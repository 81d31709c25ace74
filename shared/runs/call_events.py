"""What a run's log says of a tool call, whoever makes it: a worker's run or a direct one (EXE-06, EVT-03)."""

from shared.errors import NotFoundError
from shared.jsontext import Json
from shared.runs.deliverables import keep_deliverable
from shared.runs.events import EventType, NewEvent
from shared.tools.ports import ArtifactStore, StartedCall, ToolCall
from shared.tools.result import ToolResult

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
    }
    return NewEvent(EventType.TOOL_STARTED, data, now_us)


async def ended_event(
    call: ToolCall, result: ToolResult, *, duration_ms: int, artifacts: ArtifactStore, now_us: int
) -> NewEvent:
    """Return the end of a call; a file that it names as its deliverable is kept as an artifact first."""
    data: dict[str, Json] = {
        "tool_call_id": call.id,
        "tool": call.tool,
        "duration_ms": duration_ms,
        "summary": result.summary[:MAX_SUMMARY_CHARS],
    }
    if result.error is not None:
        data |= {"error": str(result.error.type), "message": result.error.message[:MAX_MESSAGE_CHARS]}
    try:
        deliverable = await keep_deliverable(result, artifacts)
    except (OSError, NotFoundError) as error:
        data["deliverable_error"] = str(error)
    else:
        if deliverable is not None:
            data["deliverable"] = deliverable
    return NewEvent(end_type(result), data, now_us)


def end_type(result: ToolResult) -> EventType:
    """Return which end it is: denials are told apart from failures (EXE-04)."""
    if result.error is None:
        return EventType.TOOL_COMPLETED
    return EventType.TOOL_DENIED if result.error.type.is_denial else EventType.TOOL_FAILED
