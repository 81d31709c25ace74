"""A hook that stops the run: what was not begun is not run any more (EXE-13)."""

from dataclasses import dataclass

from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, ToolResult
from soong.shared.tools.schedule import Executor


def stop_of(result: ToolResult) -> str:
    """Return the reason for which a hook stopped the run with this call; empty when none did."""
    error = result.error
    if error is None or error.type is not ErrorType.HOOK_DENIED or not error.details.get("stop_run"):
        return ""
    return error.message


@dataclass(slots=True)
class StopAfterHook:
    """A turn's executor until a hook stops the run; calls that had begun by then run to their end (EXE-05)."""

    executor: Executor
    stop: str = ""

    def resolve(self, name: str) -> ToolDefinition | None:
        return self.executor.resolve(name)

    async def execute(self, call: ToolCall) -> ToolResult:
        if self.stop:
            return await self.executor.refuse(call, ErrorType.NOT_RUN, f"not run: a hook stopped the run: {self.stop}")
        result = await self.executor.execute(call)
        stop = stop_of(result)
        if stop:
            self.stop = stop
        return result

    async def refuse(self, call: ToolCall, type: ErrorType, message: str) -> ToolResult:
        return await self.executor.refuse(call, type, message)
