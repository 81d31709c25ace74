"""Our side of the protocol: the requests of an agent to its client, and its reports.

Implements the SDK's ``Client``. Every read, write, command and question becomes a call of the run
(:mod:`soong.worker.acp.calls`); nothing else is done for the agent.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from acp import RequestError, schema
from acp.schema import AllowedOutcome, DeniedOutcome, PermissionOption, RequestPermissionResponse

from soong.shared.agents.acp_agents import READ_FILE, WRITE_FILE, AcpAgent, OwnKind
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import EventType
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.tools.definition import HandlerOutput, ToolContext
from soong.shared.tools.result import ErrorType, TextBlock, ToolError, ToolResult
from soong.worker.acp.calls import AgentCalls, AgentTerminals
from soong.worker.acp.narrative import AgentCall, AgentNarrative, kind_of
from soong.worker.acp.own_tools import check_unchanged

MAX_OPEN: Final = 64
"""Requests of the agent that are under way at once; others wait unread."""
NOT_TOLD: Final = "the agent's turn ended before it reported how this call ended: it may or may not have happened"

MAX_PAGES: Final = 200
PAGE_LINES: Final = 1000
_FAILED: Final = -32603


@dataclass(slots=True)
class _OwnCall:
    """A call of the agent's own that waits at the gate, or that it makes since it was allowed."""

    kind: OwnKind
    said: AgentCall
    permitted: "asyncio.Future[None]"
    ended: "asyncio.Future[None]"
    task: "asyncio.Task[ToolResult] | None" = None


@dataclass(slots=True)
class AcpClient:
    """One run's. ``on_usage`` gets what it has cost so far; ``on_mode`` the session mode that it says it is in."""

    agent: AcpAgent
    calls: AgentCalls
    narrative: AgentNarrative
    terminals: AgentTerminals
    policy: PathPolicy
    on_usage: Callable[[schema.UsageUpdate], object]
    on_mode: Callable[[str], object]
    session_id: str = ""
    is_replaying: bool = False
    """It tells the history of a session that it has loaded: all of that is known."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Is set while it takes more requests of the agent."""
    _open_requests: int = 0
    _own: dict[str, _OwnCall] = field(default_factory=dict)
    """By the id of our call."""

    def __post_init__(self) -> None:
        self.narrative.on_ended = self._told_end
        self.room.set()

    # -- what it tells
    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        if session_id != self.session_id or self.is_replaying:
            return
        match update:
            case schema.AgentMessageChunk(content=schema.TextContentBlock(text=text)):
                self.narrative.say(text)
            case schema.AgentThoughtChunk(content=schema.TextContentBlock(text=text)):
                self.narrative.think(text)
            case schema.ToolCallStart() | schema.ToolCallProgress():
                self.narrative.progress(update)
            case schema.AgentPlanUpdate():
                self.narrative.plan(update.entries)
            case schema.UsageUpdate():
                self.on_usage(update)
            case schema.CurrentModeUpdate():
                self.on_mode(update.current_mode_id)
            case _:
                pass  # commands that it offers, its title: nothing of a run

    # -- what it asks
    async def request_permission(
        self, session_id: str, tool_call: schema.ToolCallUpdate, options: list[schema.PermissionOption], **_: Any
    ) -> schema.RequestPermissionResponse:
        with self._asked(session_id):
            said = self.narrative.progress(tool_call)
            once = _only(options, "allow_once")
            if said is None or said.is_over or once is None:
                words = "the call is over, or one too many"
                words = "the agent offers no option that allows this call alone" if once is None else words
                self.narrative.note(EventType.SECURITY, {"what": "unofferable_choice", "problem": words})
                return refused(options)
            if tool_call.kind == "switch_mode" or said.kind == "switch_mode":
                return refused(options)  # the mode of a run is the configuration's
            said.is_asked = True
            return allowed(once) if await self._is_permitted(said) else refused(options)

    async def _is_permitted(self, said: AgentCall) -> bool:
        """Ask; True as soon as the call may begin. It then lasts until the agent tells its end."""
        loop = asyncio.get_running_loop()
        own = _OwnCall(kind_of(said.kind), said, loop.create_future(), loop.create_future())
        ids: list[str] = []

        def keep(call_id: str) -> None:
            ids.append(call_id)
            self._own[call_id] = own

        task = self.calls.begin(self.agent.tool(own.kind), said.arguments(), said.id, on_id=keep)
        own.task = task
        task.add_done_callback(lambda _task: self._own.pop(ids[0], None))
        waited: set[asyncio.Future[Any]] = {task, own.permitted}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        return own.permitted.done() and not own.permitted.cancelled()

    async def run_own(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        """Let an allowed call of the agent's own begin, and wait for its end: the handler of its tools."""
        own = self._own[context.tool_call_id]
        await check_unchanged(own.kind, self.policy, context, call_input)
        own.permitted.set_result(None)
        await own.ended
        said = own.said
        data: dict[str, Json] = {"status": said.status, "reported_by": "agent"}
        if said.status == "failed":
            raise ToolError(ErrorType.EXECUTION_FAILED, said.text()[:500] or "the agent says that it failed", data=data)
        return ToolResult(context.tool_call_id, (TextBlock(said.text() or "done"),), said.title, data)

    def _told_end(self, said: AgentCall) -> None:
        for own in self._own.values():
            if own.said is said and own.permitted.done() and not own.ended.done():
                own.ended.set_result(None)

    def end_turn(self) -> None:
        """End the calls whose end the agent has not reported: its turn is over. Undecided calls are withdrawn."""
        for own in list(self._own.values()):
            if not own.permitted.done() and own.task is not None:
                own.task.cancel()
            elif not own.ended.done():
                own.ended.set_exception(ToolError(ErrorType.UNKNOWN_AFTER_CRASH, NOT_TOLD, hint="look"))

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **_: Any
    ) -> schema.ReadTextFileResponse:
        with self._asked(session_id):
            return schema.ReadTextFileResponse(content=await read_text(self.calls, path, line, limit))

    async def write_text_file(
        self, session_id: str, path: str, content: str, **_: Any
    ) -> schema.WriteTextFileResponse | None:
        with self._asked(session_id):
            _data(await self.calls.make(WRITE_FILE, {"path": path, "content": content, "overwrite": True}), path)
            return schema.WriteTextFileResponse()

    async def create_terminal(
        self,
        session_id: str,
        command: str,
        args: list[str] | None = None,
        env: Sequence[Any] | None = None,
        cwd: str | None = None,
        output_byte_limit: int | None = None,
        **_: Any,
    ) -> schema.CreateTerminalResponse:
        with self._asked(session_id):
            terminal_id = self.terminals.create(command, args or (), cwd, env or (), output_byte_limit)
            return schema.CreateTerminalResponse(terminal_id=terminal_id)

    async def terminal_output(self, session_id: str, terminal_id: str, **_: Any) -> schema.TerminalOutputResponse:
        with self._asked(session_id):
            return self.terminals.output(terminal_id)

    async def wait_for_terminal_exit(
        self, session_id: str, terminal_id: str, **_: Any
    ) -> schema.WaitForTerminalExitResponse:
        with self._asked(session_id):
            return await self.terminals.wait(terminal_id)

    async def kill_terminal(self, session_id: str, terminal_id: str, **_: Any) -> schema.KillTerminalResponse | None:
        with self._asked(session_id):
            await self.terminals.kill(terminal_id)
            return None

    async def release_terminal(
        self, session_id: str, terminal_id: str, **_: Any
    ) -> schema.ReleaseTerminalResponse | None:
        with self._asked(session_id):
            await self.terminals.release(terminal_id)
            return None

    async def create_elicitation(self, message: str, mode: Any, **_: Any) -> Any:
        del message, mode
        raise RequestError.method_not_found("elicitation/create")

    async def complete_elicitation(self, elicitation_id: str, **_: Any) -> None:
        del elicitation_id

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        del params
        raise RequestError.method_not_found(method)

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None: ...

    def on_connect(self, conn: Any) -> None: ...

    @contextmanager
    def _asked(self, session_id: str) -> Iterator[None]:
        """Count a request as open. Raises: RequestError, for another session than the run's."""
        if not self.session_id or session_id != self.session_id:
            raise RequestError.invalid_params({"details": f"there is no session {session_id[:100]!r}"})
        self._open_requests += 1
        if self._open_requests >= MAX_OPEN:
            self.room.clear()
        try:
            yield
        finally:
            self._open_requests -= 1
            self.room.set()


async def read_text(calls: AgentCalls, path: str, line: int | None, limit: int | None) -> str:
    """Return lines of a file, read page by page.
    Raises: RequestError, it cannot be read, or not as it is: an agent writes back what it was given.
    """
    start, left, texts = max(1, line or 1), limit, list[str]()
    for _ in range(MAX_PAGES):
        count = PAGE_LINES if left is None else min(PAGE_LINES, left)
        if count <= 0:
            return "".join(texts)
        result = await calls.make(READ_FILE, {"path": path, "start_line": start, "max_lines": count})
        page = _data(result, path)
        if page.get("truncated_lines"):
            raise RequestError(_FAILED, f"{path!r} has a line that is too long to be given unchanged")
        texts.append(str(page.get("text", "")))
        following, end = page.get("next_start_line"), page.get("end_line")
        if not isinstance(following, int) or not isinstance(end, int):
            return "".join(texts)
        left = None if left is None else left - (end - start + 1)
        start = following
    raise RequestError(_FAILED, f"{path!r} is too long to be read at once; ask with line and limit")


def _data(result: ToolResult, path: str) -> Mapping[str, object]:
    if (error := result.error) is not None:
        if error.type is ErrorType.FILE_NOT_FOUND:
            raise RequestError.resource_not_found(str(error.details.get("path") or error.message))
        hint = f" ({error.hint})" if error.hint else ""
        raise RequestError(_FAILED, f"{error.message}{hint}", {"type": str(error.type)})
    if not isinstance(result.data, Mapping):
        raise RequestError(_FAILED, f"{path!r} is too large to be given at once; ask with line and limit")
    return result.data


def allowed(option_id: str) -> RequestPermissionResponse:
    return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=option_id))


def refused(options: Sequence[PermissionOption]) -> RequestPermissionResponse:
    """Return the answer that refuses: this call rather than all such calls, for the next may be another question."""
    chosen = _only(options, "reject_once") or _only(options, "reject_always")
    if chosen is None:
        return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
    return allowed(chosen)


def _only(options: Sequence[PermissionOption], kind: str) -> str | None:
    """Return the id of the first option of a kind whose id no other has; None when there is none."""
    count = Counter(option.option_id for option in options)
    return next((one.option_id for one in options if one.kind == kind and count[one.option_id] == 1), None)
