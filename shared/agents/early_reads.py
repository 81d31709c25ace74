"""Reads that start while the rest of the model's answer arrives (EXE-10).

A call starts early when all of it is there and valid, its tool only reads, may run at the same time as others and can
be cut off, and every call before it in the answer is such a read. So the order of the turn stays what it would be
(EXE-03).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pydantic_ai.messages import (
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    ToolCallPart,
    ToolCallPartDelta,
)

from soong.shared.agents.ports import AnswerFollower
from soong.shared.core.value import Value
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.execution import parsed, validated
from soong.shared.tools.limits import EarlyCall
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, ToolError, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import refusal
from soong.shared.tools.schedule import Executor, GroupKind, plan_groups

MAX_CLOSED_CHARS: Final = 4_096
"""Longer arguments are looked at once, when the next part begins or the answer ends."""

CallOf = Callable[[ToolCallPart, Collection[str]], ToolCall]
"""Makes the call of a part; the ids are those of the answer's calls before it."""


class _EarlyRead(Value):
    call: ToolCall
    early: EarlyCall
    task: "asyncio.Task[ToolResult]"


@dataclass(slots=True)
class EarlyReads(AnswerFollower):
    """Follows the answers of one run, and executes their turns: a call that has started early is not made again.

    Once a hook has stopped the run no call begins; those that had begun by then run to their end (EXE-05).

    ``spend`` gets the ids of calls that were discarded: no later call of the run has one of them.
    """

    executor: Executor
    call_of: CallOf
    spend: Callable[[Collection[str]], None]
    limit: int
    view: AnswerFollower
    stop: str = ""
    """Why a hook stopped the run; empty while none has, also before this process took it up."""
    _reads: dict[str, _EarlyRead] = field(default_factory=dict)
    _is_open: bool = True
    """Whether the next call of the answer may start early."""
    _part: ToolCallPart | None = None
    """The call that arrives, as far as it has, until it has started."""

    # -- following an answer
    def take(self, event: ModelResponseStreamEvent) -> None:
        self.view.take(event)
        if not self._is_open:
            return
        match event:
            case PartStartEvent(part=ToolCallPart() as part):
                self._part = part
                self._start_when_closed(part)
            case PartDeltaEvent(delta=ToolCallPartDelta() as delta) if self._part is not None:
                grown = delta.apply(self._part)
                if isinstance(grown, ToolCallPart):
                    self._part = grown
                    self._start_when_closed(grown)
            case PartEndEvent(part=ToolCallPart() as part) if self._part is not None:
                self._is_open = self._start(part)

    async def discard(self) -> None:
        await self.close()
        await self.view.discard()

    async def close(self) -> None:
        """End what has started and no turn has taken over."""
        reads, self._reads, self._is_open, self._part = self._reads, {}, True, None
        if reads:
            await self._end(reads)
            self.spend(reads.keys())

    def _start_when_closed(self, part: ToolCallPart) -> None:
        """Start a call whose arguments are a closed object: nothing can follow it but the next call."""
        text = part.args if isinstance(part.args, str) else ""
        if (text.endswith("}") and len(text) <= MAX_CLOSED_CHARS) or (isinstance(part.args, dict) and part.args):
            self._start(part)

    def _start(self, part: ToolCallPart) -> bool:
        call = self.call_of(part, self._reads.keys())
        if len(self._reads) >= self.limit or not self._may_start(call):
            return False
        early = EarlyCall()
        self._reads[call.id] = _EarlyRead(call, early, early.start(self.executor.execute(call)))
        self._part = None
        return True

    def _may_start(self, call: ToolCall) -> bool:
        definition = self.executor.resolve(call.tool)
        if definition is None or definition.interrupt != "cancel":
            return False
        (group,) = plan_groups([call], self.executor.resolve)
        return group.kind is GroupKind.READS and _is_valid(definition, call)

    # -- the end of an answer
    async def keep(self, calls: Sequence[ToolCall]) -> None:
        """Let the early calls end: the answer that makes ``calls`` is written. One that is not as it began is ended."""
        final = {call.id: call for call in calls}
        reads, self._reads = self._reads, {}
        for name, read in reads.items():
            if name in final and _is_same(read.call, final[name]):
                self._reads[name] = read
                read.early.keep()
        if discarded := {name: read for name, read in reads.items() if name not in self._reads}:
            await self._end(discarded)
        self._is_open, self._part = True, None

    async def _end(self, reads: Mapping[str, _EarlyRead]) -> None:
        for read in reads.values():
            read.early.discard()
            read.task.cancel("the model's answer broke off")
        await asyncio.gather(*(read.task for read in reads.values()), return_exceptions=True)

    # -- executing a turn
    def resolve(self, name: str) -> ToolDefinition | None:
        return self.executor.resolve(name)

    async def execute(self, call: ToolCall) -> ToolResult:
        if self.stop:
            return await self.refuse(call, ErrorType.NOT_RUN, f"not run: a hook stopped the run: {self.stop}")
        read = self._reads.pop(call.id, None)
        result = await (self.executor.execute(call) if read is None else read.task)
        if stop := stop_of(result):
            self.stop = stop
        return result

    async def refuse(self, call: ToolCall, type: ErrorType, message: str) -> ToolResult:
        read = self._reads.pop(call.id, None)
        if read is None:
            return await self.executor.refuse(call, type, message)
        read.task.cancel(message)
        with suppress(asyncio.CancelledError):
            return await read.task
        return refusal(call.id, ToolFailure(type, message))


def stop_of(result: ToolResult) -> str:
    """Return the reason for which a hook stopped the run with this call; empty when none did."""
    error = result.error
    if error is None or error.type is not ErrorType.HOOK_DENIED or not error.details.get("stop_run"):
        return ""
    return error.message


def _is_valid(definition: ToolDefinition, call: ToolCall) -> bool:
    try:
        validated(definition, parsed(call.arguments))
    except ToolError:
        return False
    return True


def _is_same(begun: ToolCall, final: ToolCall) -> bool:
    """Say whether a call is what it was when it started; space after its arguments changes nothing."""
    if begun.tool != final.tool:
        return False
    try:
        return begun.arguments == final.arguments or parsed(begun.arguments) == parsed(final.arguments)
    except ToolError:
        return False
