"""Questions of a session as permission requests of the Agent Client Protocol, with the three answers.

The front end is a responder like a terminal: its user answers, and the owner of the session decides, signs and grants.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import acp
from acp import schema

from soong.orchestrator.approvals.full_input import FullInput, facts_of, read_full_input
from soong.orchestrator.schemas.approval import ApprovalSchema
from soong.shared.core.jsontext import inert
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.store import RunStore
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest, Question, RequestState
from soong.shared.sandbox.descriptors import PathRefusedError, opened_file

MAX_OLD_BYTES: Final = 1024 * 1024
MAX_TITLE_CHARS: Final = 300
ENDED: Final[Mapping[str, Literal["completed", "failed"]]] = {
    EventType.TOOL_COMPLETED: "completed",
    EventType.TOOL_FAILED: "failed",
    EventType.TOOL_DENIED: "failed",
}
"""How a call has ended, by the event that says so."""


@dataclass(slots=True)
class FrontEndQuestions:
    """The permission callback of one session over one connection."""

    connection: Any
    session_id: str
    runs: RunStore
    open: dict[str, str] = field(default_factory=dict)
    """Calls that were asked and have not ended: their run by their id in the front end."""

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        """Ask the front end and return what its user chose; a front end that cancels has denied."""
        whole = await read_full_input(self.runs, request)
        call = tool_call_of(request, whole)
        answer = await self.connection.request_permission(self.session_id, call, options_of(request))
        chosen = getattr(answer.outcome, "option_id", None)
        choice = next((one for one in Choice if one == chosen), Choice.DENY)
        if choice is Choice.ALLOW_FOR_SESSION and not request.offers_session:
            choice = Choice.DENY  # an option that was not offered
        status: schema.ToolCallStatus = "failed" if choice is Choice.DENY else "in_progress"
        await self.connection.session_update(self.session_id, acp.update_tool_call(call.tool_call_id, status=status))
        if choice is not Choice.DENY:
            self.open[call.tool_call_id] = request.identity.run_id
        return PermissionDecision(choice, "" if chosen else "the front end cancelled the question")

    async def settle(self, *, is_over: bool = False) -> None:
        """Send the front end the ends of calls that were allowed."""
        if not self.open:
            return
        ends = {
            f"{event.run_id}/{event.data.get('tool_call_id')}": event.type
            for event in await self.runs.events_of(list(dict.fromkeys(self.open.values())))
            if event.type in ENDED
        }
        for call_id in list(self.open):
            if call_id not in ends and not is_over:
                continue
            status = ENDED.get(ends.get(call_id, ""), "failed")
            del self.open[call_id]
            await self.connection.session_update(self.session_id, acp.update_tool_call(call_id, status=status))


def options_of(request: PermissionRequest) -> list[schema.PermissionOption]:
    """Return the answers that a question offers. The name of a session grant shows its scope."""
    options = [schema.PermissionOption(option_id="allow_once", name="Allow once", kind="allow_once")]
    if request.offers_session:
        name = f"Allow for this session: {request.tool} on {request.scope}"
        options.append(schema.PermissionOption(option_id="allow_for_session", name=inert(name), kind="allow_always"))
    return [*options, schema.PermissionOption(option_id="deny", name="Deny", kind="reject_once")]


def tool_call_of(request: PermissionRequest, whole: FullInput) -> schema.ToolCallUpdate:
    """Return the call that a question is about, with all that a person needs to decide."""
    who = request.identity
    title = inert(f"{request.tool} {request.shown}")[:MAX_TITLE_CHARS]
    document = ApprovalSchema.of_question(Question(request, RequestState.PENDING)).model_dump()
    facts = "\n".join(f"{name}: {inert(value)}" for name, value in facts_of(document) if value)
    blocks: list[Any] = [acp.tool_content(acp.text_block(facts))]
    diff = _diff(request, whole)
    if diff is not None:
        blocks.insert(0, diff)
    elif request.preview:
        blocks.append(acp.tool_content(acp.text_block(inert(request.preview))))
    locations = [schema.ToolCallLocation(path=request.shown)] if request.target_kind == "path" else None
    return schema.ToolCallUpdate(
        tool_call_id=f"{who.run_id}/{request.tool_call_id}",
        title=title,
        kind=_kind(request),
        status="pending",
        content=blocks,
        locations=locations,
        raw_input=dict(whole.input),
    )


def _kind(request: PermissionRequest) -> schema.ToolKind:
    if request.target_kind == "command":
        return "execute"
    if request.target_kind == "host" or request.host:
        return "fetch"
    if request.target_kind == "path":
        return "edit" if request.permission == "write" else "read"
    return "other"


def _diff(request: PermissionRequest, whole: FullInput) -> Any:
    """Return a write of a complete file as a diff; None where it is none, or is not known in full."""
    content = whole.input.get("content")
    if request.target_kind != "path" or not isinstance(content, str) or not whole.is_complete:
        return None
    return acp.tool_diff_content(request.shown, content, _old_text(Path(request.shown)))


def _old_text(path: Path) -> str | None:
    """Return what is in a file on this machine now; None for no file, or one that is too long or not text."""
    try:
        with opened_file(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_OLD_BYTES).decode()
    except (OSError, UnicodeDecodeError, PathRefusedError):
        return None
