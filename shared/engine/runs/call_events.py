"""The events of a tool call in a run's log, of a worker's run or a direct one (EXE-06, EVT-03)."""

import os
from pathlib import Path
from typing import Final

from soong.shared.core.errors import SoongError, UsageError
from soong.shared.core.jsontext import Json, inert
from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, NodeKind
from soong.shared.sandbox.descriptors import opened_file
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.ports import ArtifactStore, StartedCall, ToolCall
from soong.shared.tools.result import ArtifactRef, ToolResult
from soong.shared.tools.results import rendering

MAX_SUMMARY_CHARS = 300
MAX_MESSAGE_CHARS = 1000

MAX_DELIVERABLE_BYTES: Final = 64 * 1024 * 1024


def started_event(started: StartedCall, *, now_us: int) -> NewEvent:
    """Return the start of a call: its input without secrets, and who allowed it by what (PER-19)."""
    data: dict[str, Json] = {
        "tool_call_id": started.call.id,
        "tool": started.call.tool,
        "input": dict(started.record.inputs.call or {}),
        "effect_id": started.record.effect_id,
        "author": started.verdict.author,
        "rule": started.verdict.rule,
        "decision_id": started.verdict.decision_id,
        "event_id": started.record.event_id,
    }
    return NewEvent(EventType.TOOL_STARTED, data, now_us)


async def ended_event(
    call: ToolCall, result: ToolResult, *, duration_ms: int, artifacts: ArtifactStore, now_us: int, redactor: Redactor
) -> NewEvent:
    """Return the end of a call: facts, and a line for people; a file that it delivers is kept as an artifact first."""
    data = rendering.for_telemetry(call.tool, result, duration_ms=duration_ms)
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
        NewNode(NodeKind(node.kind), rendering.context_to_json(result.tool_call_id, tool, node))
        for node in result.context_nodes
    ]
    return [NewNode(NodeKind.TOOL_RESULT, rendering.to_json(tool, result)), *added]


def end_type(result: ToolResult) -> EventType:
    """Return which end it is: denials are distinct from failures (EXE-04)."""
    if result.error is None:
        return EventType.TOOL_COMPLETED
    return EventType.TOOL_DENIED if result.error.type.is_denial else EventType.TOOL_FAILED


async def keep_deliverable(result: ToolResult, artifacts: ArtifactStore, redactor: Redactor) -> dict[str, Json] | None:
    """Store the file that a successful write names as its deliverable; return how the event refers to it.

    The stored copy has no secrets (EVT-05); the file itself stays as it was written.
    Raises: UsageError, it is not a regular file any more, or too large to be kept; OSError, it cannot be read.
    """
    named = result.metadata.get("deliverable")
    if result.error is not None or not isinstance(named, dict):
        return None
    path = Path(str(named["path"]))
    ref = await keep_file(path, artifacts, redactor)
    return {"name": path.name, "path": str(path), "digest": ref.digest, "size_bytes": ref.size_bytes}


async def keep_file(path: Path, artifacts: ArtifactStore, redactor: Redactor) -> ArtifactRef:
    """Store a copy of a file without secrets. Raises: as :func:`keep_deliverable`."""
    return await artifacts.put_made(
        lambda: _without_secrets(_read(path), redactor), "application/octet-stream", path.name
    )


def _read(path: Path) -> bytes:
    """Read the file without following a link that has taken its place meanwhile."""
    with opened_file(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > MAX_DELIVERABLE_BYTES:
            raise UsageError(
                f"{str(path)!r} has {size} bytes; at most {MAX_DELIVERABLE_BYTES} are kept as a deliverable"
            )
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(MAX_DELIVERABLE_BYTES)


def _without_secrets(data: bytes, redactor: Redactor) -> bytes:
    encoding = "utf-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        encoding = "latin-1"  # any bytes, one character each: ASCII secrets in them are still found
        text = data.decode(encoding)
    clean = redactor.text(text)
    return data if clean is text else clean.encode(encoding, "replace")
