"""The calls of a foreign agent's run, by the pipeline, ledger and gate of any run, and what the agent has used.

An agent that is resumed asks again for what it was about to do. So a call's id is made of what it is: the same call
gets the same id, and with it the question that was asked before, or its answer (PER-13). A call that has ended is over:
the same again is another one.

A limit ends the run (DIS-07, DIS-11). Turns are counted here. Tokens are reported at the end of a prompt and costs
while it runs, by agents that do so: a limit in what an agent does not report ends nothing.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from acp import RequestError, schema
from pydantic_ai.usage import RequestUsage

from soong.shared.agents.acp_agents import RUN_COMMAND
from soong.shared.agents.definition import AgentLimits
from soong.shared.agents.requests import Reserved, Spending
from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.identity import new_id
from soong.shared.core.jsontext import Json, JsonObject, canonical
from soong.shared.engine.runs.budgets import MICRO, BudgetSpentError, Charge
from soong.shared.engine.runs.events import Node, NodeKind
from soong.shared.engine.runs.record import EndReason, Usage
from soong.shared.engine.tasks.failure_report import StepIncidents
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, TextBlock, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import refusal
from soong.shared.tools.schedule import Executor
from soong.worker.acp.narrative import AgentNarrative, usage_of_node

_PREFIX: Final = "acp-"
MAX_OPEN: Final = 32
"""Calls of one run that are under way at once; more are refused."""
MAX_ID_CHARS: Final = 200

MAX_TERMINALS: Final = 16
REFUSED_CODE: Final = 126
"""The exit code of a command that was not run, as in a shell."""

MOST_USD: Final = Decimal(1_000_000)
"""The largest cost of one run; a larger amount is a mistake."""


@dataclass(slots=True)
class AgentCalls:
    """One run's. ``broken`` gets what ends the run: a lost lease, a database that is away."""

    executor: Executor
    narrative: AgentNarrative
    incidents: StepIncidents
    broken: Callable[[BaseException], object]
    made: int = 0
    _ended: Counter[str] = field(default_factory=Counter)
    _open: Counter[str] = field(default_factory=Counter)
    _tasks: set["asyncio.Task[ToolResult]"] = field(default_factory=set)
    _ids: set[str] = field(default_factory=set)

    def restore(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.kind is NodeKind.TOOL_RESULT:
                self.count_ended(str(node.payload.get("tool_call_id", "")))

    def count_ended(self, call_id: str) -> None:
        """Take a call as over: the same again is another one."""
        self._ended[call_id.rpartition("-")[0]] += 1

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    def open_ids(self) -> list[Json]:
        return [*sorted(self._ids)]

    async def settled(self) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def begin(
        self, tool: str, arguments: JsonObject, raw_id: str = "", on_id: Callable[[str], object] = lambda _id: None
    ) -> "asyncio.Task[ToolResult]":
        """Make a call; the task gives its result. ``on_id`` gets its id before anything happens."""
        key = _key(tool, arguments)
        call = ToolCall(f"{key}-{self._ended[key] + self._open[key]}", tool, arguments, {"id": raw_id[:MAX_ID_CHARS]})
        on_id(call.id)
        work = self._make(call, key) if len(self._tasks) < MAX_OPEN else self._refused(call)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    async def make(self, tool: str, arguments: JsonObject) -> ToolResult:
        return await self.begin(tool, arguments)

    async def cancel(self) -> None:
        """End all that is under way and wait until their ends are recorded."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _over(self, task: "asyncio.Task[ToolResult]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken(error)

    async def _make(self, call: ToolCall, key: str) -> ToolResult:
        self._open[key] += 1
        self._ids.add(call.id)
        try:
            await self.narrative.add_call(call)
            result = await self.executor.execute(call)
        finally:
            self._open[key] -= 1
            self._ids.discard(call.id)
        self._ended[key] += 1
        self.made += 1
        self.incidents.take(call.tool, result)
        return result

    async def _refused(self, call: ToolCall) -> ToolResult:
        failure = ToolFailure(ErrorType.LIMIT_EXCEEDED, f"more than {MAX_OPEN} calls at once", "wait for their ends")
        return refusal(call.id, failure)


def _key(tool: str, arguments: JsonObject) -> str:
    try:
        said = canonical({"tool": tool, "arguments": arguments})
    except (InvalidJsonError, ValueError, TypeError, RecursionError):
        return f"{_PREFIX}{new_id('call')}"  # the pipeline refuses it
    digest = hashlib.sha256(said).hexdigest()
    return f"{_PREFIX}{digest[:24]}"


@dataclass(slots=True)
class _Terminal:
    call_id: str
    task: "asyncio.Task[ToolResult]"
    most_bytes: int | None


@dataclass(slots=True)
class AgentTerminals:
    """One run's. ``abort`` ends one call by its id."""

    calls: AgentCalls
    abort: Callable[[str, str], object]
    _open: dict[str, _Terminal] = field(default_factory=dict)
    _made: int = 0

    def create(
        self, command: str, arguments: Sequence[str], cwd: str | None, env: Sequence[object], most_bytes: int | None
    ) -> str:
        """Begin a command and return the terminal's id. Raises: RequestError."""
        if env:
            details = "variables of a command come from the user's configuration; leave `env` out"
            raise RequestError.invalid_params({"details": details})
        if len(self._open) >= MAX_TERMINALS:
            raise RequestError(-32603, f"{MAX_TERMINALS} terminals are open; release one")
        asked: dict[str, Json] = {"argv": [command, *arguments], **({"cwd": cwd} if cwd else {})}
        ids: list[str] = []
        task = self.calls.begin(RUN_COMMAND, asked, on_id=ids.append)
        self._made += 1
        terminal_id = f"terminal-{self._made}"
        self._open[terminal_id] = _Terminal(ids[0], task, most_bytes)
        return terminal_id

    def output(self, terminal_id: str) -> schema.TerminalOutputResponse:
        """Return what a command has said: all of it once it has ended, and nothing before."""
        terminal = self._get(terminal_id)
        if not terminal.task.done():
            return schema.TerminalOutputResponse(output="", truncated=False)
        result = terminal.task.result()
        text = _text(result)
        whole = text.encode()
        most = len(whole) if terminal.most_bytes is None else terminal.most_bytes
        kept = whole[max(0, len(whole) - most) :].decode("utf-8", "ignore")
        return schema.TerminalOutputResponse(
            output=kept, truncated=len(kept) < len(text), exit_status=schema.TerminalExitStatus(exit_code=_code(result))
        )

    async def wait(self, terminal_id: str) -> schema.WaitForTerminalExitResponse:
        result = await asyncio.shield(self._get(terminal_id).task)
        return schema.WaitForTerminalExitResponse(exit_code=_code(result))

    async def kill(self, terminal_id: str) -> None:
        terminal = self._get(terminal_id)
        if not terminal.task.done():
            self.abort(terminal.call_id, "its agent ended it")
            await asyncio.wait({terminal.task})

    async def release(self, terminal_id: str) -> None:
        """End a command and forget it."""
        await self.kill(terminal_id)
        del self._open[terminal_id]

    async def close(self) -> None:
        for terminal_id in list(self._open):
            await self.release(terminal_id)

    def _get(self, terminal_id: str) -> _Terminal:
        try:
            return self._open[terminal_id]
        except KeyError:
            raise RequestError.invalid_params({"details": f"there is no terminal {terminal_id[:100]!r}"}) from None


def _text(result: ToolResult) -> str:
    """Return the output as an agent reads it; of a command that was not run, why."""
    if result.error is not None and not (isinstance(result.data, dict) and "exit_code" in result.data):
        return f"{result.error.message}\n"
    return "\n".join(block.text for block in result.content if isinstance(block, TextBlock))


def _code(result: ToolResult) -> int:
    code = result.data.get("exit_code") if isinstance(result.data, dict) else None
    if not isinstance(code, int):
        return 0 if result.error is None else REFUSED_CODE
    return code if code >= 0 else 128 - code


class LimitReachedError(Exception):
    """A limit ends the run."""

    def __init__(self, reason: EndReason, message: str, type: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.type = type


@dataclass(slots=True)
class UsageMeter:
    """One run's. ``budgets`` are those of its session, of its task and of the day."""

    limits: AgentLimits
    budgets: Spending | None
    counts_turns: bool = False
    """Its task has limits."""
    used: RequestUsage = field(default_factory=RequestUsage)
    _past_usd: Decimal | None = None
    """The cost of former prompts and former lives."""
    _told_usd: Decimal | None = None
    """The largest cost of this life's session that was reported."""
    _closed_usd: Decimal = field(default_factory=Decimal)
    """The part of it that belongs to former prompts."""
    _past_turns: int = 0
    """The run's turns before the prompt under way."""
    _reserved: Reserved | None = None
    _charged: Charge = field(default_factory=Charge)

    def restore(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._count(*usage_of_node(node))

    def usage(self, turns: int, calls: int) -> Usage:
        used = self.used
        return Usage(turns, used.input_tokens, used.output_tokens, calls, self.cost_usd, used.cache_read_tokens)

    @property
    def cost_usd(self) -> Decimal | None:
        """Return what the run has cost; None where nothing was reported."""
        if self._told_usd is None:
            return self._past_usd
        return (self._past_usd or Decimal()) + self._told_usd - self._closed_usd

    def tell(self, said: schema.UsageUpdate) -> None:
        """Take the costs that the agent reports: they only grow."""
        cost = said.cost
        if cost is None or cost.currency.upper() != "USD" or not 0 <= cost.amount <= MOST_USD:
            return
        self._told_usd = max(self._told_usd or Decimal(), Decimal(str(cost.amount)))

    def of_prompt(self, answer: schema.PromptResponse) -> tuple[RequestUsage, Decimal | None]:
        """Return what a prompt has used that has ended, and count it."""
        said, used, cost = answer.usage, RequestUsage(), None
        if said is not None:
            cached = said.cached_read_tokens or 0
            read = said.input_tokens + cached + (said.cached_write_tokens or 0)
            used = RequestUsage(input_tokens=read, output_tokens=said.output_tokens, cache_read_tokens=cached)
        if self._told_usd is not None:
            cost, self._closed_usd = self._told_usd - self._closed_usd, self._told_usd
        self._count(used, cost)
        return used, cost

    def _count(self, used: RequestUsage, cost: Decimal | None) -> None:
        self.used += used
        if cost is not None:
            self._past_usd = (self._past_usd or Decimal()) + cost

    def check(self, turns: int) -> None:
        """Raises: LimitReachedError, when no other turn may begin."""
        tokens, cost = self.used.total_tokens, self.cost_usd
        if turns >= self.limits.max_turns:
            raise LimitReachedError(EndReason.MAX_TURNS, f"the run had {turns} turns of its agent")
        if self.limits.tokens is not None and tokens >= self.limits.tokens:
            words = f"the run has used {tokens:,} of its {self.limits.tokens:,} tokens"
            raise LimitReachedError(EndReason.TOKEN_LIMIT, words)
        if self.limits.cost_usd is not None and cost is not None and cost >= Decimal(str(self.limits.cost_usd)):
            words = f"the run has cost {cost:f} of its {self.limits.cost_usd:g} USD"
            raise LimitReachedError(EndReason.COST_LIMIT, words)

    # -- budgets
    async def begin(self, turns: int) -> None:
        """Ask the budgets before a prompt; ``turns`` are those of the run so far.

        Raises: LimitReachedError, LeaseLostError.
        """
        self._past_turns = turns
        if self.budgets is None:
            return
        try:
            self._reserved, self._charged = await self.budgets.reserve(Charge()), Charge()
        except BudgetSpentError as error:
            raise LimitReachedError(error.end_reason, str(error), type=error.code) from error

    async def charge(self, turns: int, tokens: int = 0) -> None:
        """Charge what the prompt under way has used; ``turns`` of the run have ended. Raises: LeaseLostError."""
        if self._reserved is None or self.budgets is None:
            return
        cost = (self._told_usd or Decimal()) - self._closed_usd
        microusd = int((cost * MICRO).to_integral_value(rounding="ROUND_CEILING"))
        now = Charge(tokens, microusd, max(0, turns - self._past_turns) if self.counts_turns else 0)
        if now != self._charged:
            self._charged = now
            await self.budgets.settle(self._reserved, now)

    async def charge_and_ask(self, turns: int) -> None:
        """Charge what is used, and ask the budgets whether there is more; ``turns`` of the run have ended.

        Raises: LimitReachedError, LeaseLostError.
        """
        before = self._charged
        await self.charge(turns)
        if self._charged != before:
            kept, charged = self._reserved, self._charged
            await self.begin(self._past_turns)
            self._reserved, self._charged = kept, charged
