"""The calls of a foreign agent's run: through the same pipeline, ledger and gate as those of any run.

An agent that is resumed asks again for what it was about to do. So a call's id is made of what it is: the same call
gets the same id, and with it the question that was asked before, or its answer (PER-13). A call that has ended is over:
the same again is another one.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Final

from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.ids import new_id
from soong.shared.core.jsontext import Json, JsonObject, canonical
from soong.shared.engine.runs.events import Node, NodeKind
from soong.shared.engine.tasks.failure_report import StepIncidents
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import refusal
from soong.shared.tools.schedule import Executor
from soong.worker.acp.narrative import AgentNarrative

_PREFIX: Final = "acp-"
MAX_OPEN: Final = 32
"""Calls of one run that are under way at once; more are refused."""
MAX_ID_CHARS: Final = 200


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
        """Take up the calls of former lives of the run."""
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
        """Return the ids of the calls under way."""
        return [*sorted(self._ids)]

    async def settled(self) -> None:
        """Wait for the ends of the calls under way."""
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
        return self._begin(work)

    async def make(self, tool: str, arguments: JsonObject) -> ToolResult:
        """Make a call and return its result."""
        return await self.begin(tool, arguments)

    async def cancel(self) -> None:
        """End all that is under way and wait until their ends are recorded."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: "Coroutine[object, object, ToolResult]") -> "asyncio.Task[ToolResult]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

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
        self.account(call.tool, result)
        return result

    async def _refused(self, call: ToolCall) -> ToolResult:
        failure = ToolFailure(ErrorType.LIMIT_EXCEEDED, f"more than {MAX_OPEN} calls at once", "wait for their ends")
        return refusal(call.id, failure)

    def account(self, tool: str, result: ToolResult) -> None:
        """Note what a call was refused, and what nobody knows the end of (DAG-10)."""
        if result.error is None:
            return
        entry: dict[str, Json] = {
            "tool_call_id": result.tool_call_id,
            "tool": tool,
            "type": str(result.error.type),
            "message": result.error.message,
        }
        if result.error.type.is_denial:
            self.incidents.denials.append(entry)
        elif result.error.type is ErrorType.UNKNOWN_AFTER_CRASH:
            self.incidents.unknown_effects.append({**entry, **result.error.details})


def _key(tool: str, arguments: JsonObject) -> str:
    try:
        said = canonical({"tool": tool, "arguments": arguments})
    except (InvalidJsonError, ValueError, TypeError, RecursionError):
        return f"{_PREFIX}{new_id('call')}"  # the pipeline refuses it
    digest = hashlib.sha256(said).hexdigest()
    return f"{_PREFIX}{digest[:24]}"
