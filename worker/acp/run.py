"""A run whose agent is a program of others: the loop of :mod:`soong.shared.agents.loop` with another mind (ACP-01).

Reads top to bottom as the story of a run: the program is permitted and started, its session gets the step as a prompt,
its requests become calls of the run, and its last message is the output. Every end of the run ends the program
first, with all that it has started.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from acp import schema

from soong.shared.agents.acp_agents import READ_FILE, RUN_COMMAND, WRITE_FILE, AcpAgent, OwnKind
from soong.shared.agents.messages import opening_nodes, user_node
from soong.shared.agents.ports import AgentEnd, AnswerView
from soong.shared.agents.requests import Spending
from soong.shared.agents.runtime.prepared import PreparedCalls
from soong.shared.core import timing
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.events import EventType, Node, NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.runs.store import CallStatus
from soong.shared.engine.tasks.failure_report import unknown_after_crash
from soong.shared.engine.tasks.step import StepError
from soong.shared.sandbox.command import CommandRunner
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.sandbox.threads import unbroken
from soong.shared.tools.definition import HandlerOutput, ToolContext
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.tools.results.normalize import refusal
from soong.shared.tools.schedule import ABORTED_EVENT
from soong.worker.acp.calls import AgentCalls, AgentTerminals, LimitReachedError, UsageMeter
from soong.worker.acp.client import AcpClient
from soong.worker.acp.connection import AgentConnection, AgentFailedError, AgentProgram
from soong.worker.acp.narrative import PROMPT_AFTER_NO, AgentNarrative, prompt_of, prompt_to_go_on, read_output

T = TypeVar("T")
_STOPS: Final[Mapping[str, tuple[EndReason, str]]] = {
    "max_tokens": (EndReason.TOKEN_LIMIT, "the agent's model reached its limit of tokens"),
    "max_turn_requests": (EndReason.MAX_TURNS, "the agent reached its own limit of turns"),
    "refusal": (EndReason.FAILED, "the agent's model refused to continue"),
    "cancelled": (EndReason.FAILED, "the agent says that its turn was cancelled"),
}


@dataclass(slots=True)
class AcpRun:
    """One run on this worker."""

    agent: AcpAgent
    prepared: PreparedCalls
    runner: CommandRunner
    policy: PathPolicy
    clock: Clock
    view: AnswerView
    budgets: Spending | None
    meter: UsageMeter = field(init=False)
    narrative: AgentNarrative = field(init=False)
    calls: AgentCalls = field(init=False)
    client: AcpClient = field(init=False)
    connection: AgentConnection = field(init=False)
    _broken: "asyncio.Future[None]" = field(init=False)
    _heard_s: float = 0.0
    _started: AgentFailedError | None = None
    _is_told_of_no: bool = False

    def __post_init__(self) -> None:
        task, interruption = self.prepared.task, self.prepared.log.interruption
        self._broken = asyncio.get_running_loop().create_future()
        self.meter = UsageMeter(task.limits, self.budgets, task.is_limited)
        self.narrative = AgentNarrative(self.prepared.transcript, self.clock, self.agent, self.view, self._turn)
        self.calls = AgentCalls(self.prepared.executor, self.narrative, interruption.incidents, self._break)
        terminals = AgentTerminals(self.calls, interruption.calls.abort)
        self.client = AcpClient(
            self.agent, self.calls, self.narrative, terminals, self.policy, self._used, self._changed_mode
        )
        self.connection = AgentConnection(self.agent, self.client, self.runner, self._heard, self._break)
        self._heard()

    @property
    def may_park(self) -> bool:
        """Say whether another process could take the agent up: one that has not begun, or that keeps its sessions."""
        return self.connection.process is None or self.connection.can_resume

    async def run(self) -> AgentEnd:
        """Run the agent to its end.
        Raises: LeaseLostError, the run is no longer ours; asyncio.CancelledError, it was interrupted.
        """
        try:
            return await self._work()
        except LimitReachedError as limit:
            return self._failed(limit.reason, str(limit), limit.type)
        except AgentFailedError as error:
            words = f"the agent {self.agent.name} failed: {error}"
            return self._failed(EndReason.FAILED, words, error.type, is_retryable=error.is_retryable)
        finally:
            self.connection.kill()
            await unbroken(self._close())

    async def _work(self) -> AgentEnd:
        transcript, task = self.prepared.transcript, self.prepared.task
        nodes = await transcript.nodes() if task.is_resumed else ()
        if nodes:
            await self._restore(nodes)
        else:
            self.narrative.begin(opening_nodes(task.system, task.instructions, task.inputs, task.run_dirs))
        session_id = self._session_in(nodes)
        if session_id:
            await self._go_on(session_id)
            return await self._talk(prompt_to_go_on(self.calls.incidents.unknown_effects))
        refused = await self._begin()
        return refused or await self._talk(prompt_of(task))

    # -- beginning
    async def _begin(self) -> AgentEnd | None:
        """Ask for the program and start it; return the run's end where it may not run."""
        program = self._program()
        asked: dict[str, Json] = {
            "argv": list(program.argv),
            "cwd": str(self.prepared.run_dirs.cwd),
            "env": sorted(program.env),
            "mode": self.agent.mode,
        }
        if confined := await self.connection.confinement(program):
            asked["sandbox"] = confined
        result = await self._unless_broken(self.calls.begin(self.agent.tool(OwnKind.RUN), asked))
        if result.error is None:
            return None
        if self._started is not None:
            raise self._started
        words = f"the agent {self.agent.name} was not started: {result.error.message}"
        return self._failed(EndReason.FAILED, words, str(result.error.type))

    async def start(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        """Start the permitted program and open its session: the handler of its ``run`` tool."""
        del context, call_input
        try:
            await self.connection.start(self._program(), self._offered())
            session_id = await self.connection.open_session(self.prepared.run_dirs.cwd)
        except AgentFailedError as error:
            self._started = error
            raise ToolError(ErrorType.SERVER_UNAVAILABLE, str(error)) from error
        return {"session_id": session_id, "agent": self.connection.agent_info, "can_resume": self.connection.can_resume}

    def _program(self) -> AgentProgram:
        return AgentProgram.of(self.agent, self.prepared.run_dirs, {tool.name for tool in self.prepared.task.tools})

    def _offered(self) -> schema.ClientCapabilities:
        """Return what the agent may ask us for: what the run's surface has."""
        names = {tool.name for tool in self.prepared.task.tools}
        offers = self.agent.offers_files
        files = schema.FileSystemCapabilities(
            read_text_file=offers and READ_FILE in names, write_text_file=offers and WRITE_FILE in names
        )
        return schema.ClientCapabilities(fs=files, terminal=RUN_COMMAND in names)

    # -- another life
    async def _restore(self, nodes: Sequence[Node]) -> None:
        """Take up a run that another process held. A write that had started ends as unknown and is not repeated."""
        self.narrative.restore(nodes)
        self.calls.restore(nodes)
        self.meter.restore(nodes)
        done = {str(node.payload.get("tool_call_id")) for node in nodes if node.kind is NodeKind.TOOL_RESULT}
        for row in await self.prepared.transcript.calls():
            if row.tool_call_id in done or not row.is_write or row.status is not CallStatus.STARTED:
                continue
            call, result = ToolCall(row.tool_call_id, row.tool, {}), refusal(row.tool_call_id, unknown_after_crash(row))
            await self.prepared.log.finished(call, result, duration_ms=0)
            self.calls.incidents.take(row.tool, result)
            self.calls.count_ended(row.tool_call_id)

    def _session_in(self, nodes: Sequence[Node]) -> str:
        tool, found = self.agent.tool(OwnKind.RUN), ""
        for node in nodes:
            data = node.payload.get("data") if node.kind is NodeKind.TOOL_RESULT else None
            if isinstance(data, Mapping) and node.payload.get("tool") == tool:
                found = str(data.get("session_id") or found)
        return found

    async def _go_on(self, session_id: str) -> None:
        """Start the program again, which was permitted for this run, and load its session."""
        await self._unless_broken(self.connection.start(self._program(), self._offered()))
        if not self.connection.can_resume:
            words = "the process that ran it ended, and it cannot take its session up in another"
            raise AgentFailedError(words, "agent_session_lost")
        try:
            await self._unless_broken(self.connection.resume_session(session_id, self.prepared.run_dirs.cwd))
        except AgentFailedError as error:
            raise AgentFailedError(f"its session cannot be taken up: {error}", "agent_session_lost") from error
        self.narrative.note(EventType.AGENT_CALL, {"title": "session taken up", "kind": "run", "status": "completed"})

    # -- prompts
    async def _talk(self, text: str) -> AgentEnd:
        """Send the prompt, and ask once more where the result is not what was asked for."""
        task = self.prepared.task
        corrections = min(1, task.limits.max_reasks)
        output, problem = read_output(await self._prompt(text), task.output_schema)
        while problem and corrections:
            corrections -= 1
            text = f"{problem}. Give the result again, as it was asked for."
            self.narrative.add_node(user_node(text))
            output, problem = read_output(await self._prompt(text), task.output_schema)
        if not problem:
            return self._end(EndReason.COMPLETED, output)
        return self._failed(EndReason.FAILED, problem, "invalid_output", is_retryable=True)

    async def _prompt(self, text: str) -> str:
        """Send one prompt and return the message that ends its turn. Raises: LimitReachedError, AgentFailedError."""
        self.meter.check(self.narrative.turns)
        await self.meter.begin(self.narrative.turns)
        await self.narrative.flush()
        self._heard()
        denials = len(self.calls.incidents.denials)
        answer = await self._unless_broken(self.connection.prompt(text))
        self.client.end_turn()
        await self.client.terminals.close()
        await self.calls.settled()
        await self.meter.charge(self.narrative.turns, answer.usage.total_tokens if answer.usage is not None else 0)
        used, cost = self.meter.of_prompt(answer)
        said = self.narrative.end_turn(used, cost)
        is_ended_by_no = answer.stop_reason == "cancelled" and len(self.calls.incidents.denials) > denials
        if is_ended_by_no and not self._is_told_of_no:
            self._is_told_of_no = True
            self.narrative.add_node(user_node(PROMPT_AFTER_NO))
            return await self._prompt(PROMPT_AFTER_NO)
        if stop := _STOPS.get(answer.stop_reason):
            raise LimitReachedError(*stop, type="refusal" if answer.stop_reason == "refusal" else "")
        return said

    async def _unless_broken(self, work: Coroutine[object, object, T] | asyncio.Task[T]) -> T:
        """Wait for an answer of the agent, for what breaks the run, or for a silence that is too long."""
        task = asyncio.ensure_future(work)
        waiting: set[asyncio.Future[Any]] = {task, self._broken}
        try:
            while not task.done() and not self._broken.done():
                await asyncio.wait(waiting, timeout=timing.POLL_ROWS_S, return_when=asyncio.FIRST_COMPLETED)
                await self._tick()
            if self._broken.done():
                self._broken.result()
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # looked at: what broke the run may have ended it, too

    async def _tick(self) -> None:
        """Show what was said, charge what was used, and end a run whose agent is silent."""
        await self.narrative.flush()
        await self.meter.charge_and_ask(self.narrative.turns - 1)
        silent_s = self.clock.monotonic_s() - self._heard_s
        if self.calls.under_way:
            self._heard()
        elif silent_s > self.agent.silence_s:
            raise AgentFailedError(f"it has said nothing for {silent_s:.0f} s", "agent_silent")

    # -- what breaks a run
    def _heard(self) -> None:
        self._heard_s = self.clock.monotonic_s()

    def _turn(self, turn: int) -> None:
        try:
            self.meter.check(turn - 1)
        except LimitReachedError as limit:
            self._break(limit)

    def _used(self, said: schema.UsageUpdate) -> None:
        self.meter.tell(said)
        self._turn(self.narrative.turns)

    def _changed_mode(self, mode: str) -> None:
        if self.agent.mode and mode != self.agent.mode:
            self.narrative.note(EventType.SECURITY, {"what": "agent_changed_mode", "mode": mode[:200]})
            words = f"it put itself into the session mode {mode[:200]!r}, and {self.agent.mode!r} is asked for"
            self._break(AgentFailedError(words, "agent_changed_mode", is_retryable=False))

    def _break(self, error: BaseException) -> None:
        """End the run with this error; the first counts."""
        if not self._broken.done():
            self._broken.set_exception(error)
            self._broken.exception()  # looked at, should nobody wait any more
            self.connection.kill()

    # -- ends
    def _failed(self, reason: EndReason, message: str, type: str = "", *, is_retryable: bool = False) -> AgentEnd:
        return self._end(reason, error=StepError(type or str(reason), message[:2000], is_retryable))

    def _end(self, reason: EndReason, output: Json = None, error: StepError | None = None) -> AgentEnd:
        usage = self.meter.usage(self.narrative.turns, self.calls.made)
        return self.narrative.end(self.prepared.task, self.calls.incidents, usage, reason, output, error)

    async def _close(self) -> None:
        """Record the ends of the calls under way, and wait until nothing of the program lives."""
        if self.calls.under_way:
            await self.prepared.log.note(ABORTED_EVENT, {"calls": self.calls.open_ids(), "reason": "the run ended"})
        await self.calls.cancel()
        await self.connection.close()
