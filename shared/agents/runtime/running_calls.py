"""The tool calls of a held run that are under way, so that one of them can be aborted while the run continues."""

from dataclasses import dataclass, field

from soong.shared.core.value import Value
from soong.shared.tools.call_abort import AbortableCall, abortable
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, ToolResult
from soong.shared.tools.schedule import Executor


@dataclass(slots=True)
class RunningCalls:
    """By tool call id. A call that waits for its turn, or has ended, is not here."""

    _calls: dict[str, AbortableCall] = field(default_factory=dict)

    def abort(self, tool_call_id: str, reason: str = "") -> bool:
        """Abort one call on behalf of a person; False when it is not under way here, or is ending already."""
        call = self._calls.get(tool_call_id)
        return call is not None and call.abort(reason)

    async def execute(self, executor: Executor, call: ToolCall) -> ToolResult:
        """Make a call that can be aborted until it has ended."""
        with abortable() as running:
            self._calls[call.id] = running
            try:
                return await executor.execute(call)
            finally:
                if self._calls.get(call.id) is running:
                    del self._calls[call.id]


class AbortableCalls(Value):
    """A turn's executor whose calls can be aborted one by one."""

    executor: Executor
    running: RunningCalls

    def resolve(self, name: str) -> ToolDefinition | None:
        return self.executor.resolve(name)

    async def execute(self, call: ToolCall) -> ToolResult:
        return await self.running.execute(self.executor, call)

    async def refuse(self, call: ToolCall, type: ErrorType, message: str) -> ToolResult:
        return await self.executor.refuse(call, type, message)
