"""One sitting of tool calls without a model: a role's surface, one pipeline, one record (EXE-12, ETS-01).

Leaves the building of its parts to :mod:`soong.orchestrator.direct.bootstrap`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from soong.orchestrator.direct.folder import FolderLog
from soong.shared.core.clock import Clock
from soong.shared.core.ids import new_id
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.status import EndReason
from soong.shared.tools.definition import RunDirs, ToolDefinition
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.result import ErrorType, ToolResult
from soong.shared.tools.surface import Surface


@dataclass(slots=True)
class DirectSession:
    """Calls tools for a program or a person. Made by ``open_tools``; calls may be concurrent.

    Its calls make one run: they share the record below ``run_dir`` and what the callback allowed for the session.
    ``of_service`` are the tools that work on a service's rows: the first call of one attaches to the service of the
    settings, or starts one that ends with the session. What such a call starts is done by the service's workers.
    """

    registry: ToolRegistry
    surface: Surface
    scope: RunScope
    clock: Clock
    of_service: frozenset[str]
    artifact_path: Callable[[str], Path]
    """Where the bytes of an artifact are kept, by its digest."""
    _pipeline: ToolPipeline = field(repr=False)
    _log: FolderLog = field(repr=False)
    _has_ended: bool = False

    @property
    def run_id(self) -> str:
        return self.scope.identity.run_id

    @property
    def run_dir(self) -> Path:
        return self.scope.run_dirs.run_dir

    @property
    def run_dirs(self) -> RunDirs:
        return self.scope.run_dirs

    def tools(self) -> tuple[ToolDefinition, ...]:
        """Return the tools that this process calls itself, in registry order: all but those of the service."""
        return tuple(tool for tool in self._pipeline.tools.values() if tool.name not in self.of_service)

    def result_of(self, tool_call_id: str) -> ToolResult | None:
        """Return how a call ended; of an aborted one this is the only way to learn it."""
        return self._log.ended.get(tool_call_id)

    async def call(
        self, tool: str, arguments: Mapping[str, Json] | str | None = None, *, tool_call_id: str = ""
    ) -> ToolResult:
        """Run one call through the full pipeline; what goes wrong with it is its result, also that there is no tool.

        ``arguments`` may be JSON text. ``tool_call_id`` is made when it is left out.

        Raises:
            UnavailableError: the record cannot be written; a write has not happened.
            asyncio.CancelledError: the caller was cancelled; the aborted result is recorded (:meth:`result_of`).
        """
        await self._begin()
        definition = self.registry.get(tool)
        name = tool if definition is None else definition.name
        given: Json = arguments if isinstance(arguments, str) else dict(arguments or {})
        call = ToolCall(tool_call_id or new_id("call"), tool, given)
        unusable = self._why_not(name)
        if unusable:
            return await self._pipeline.refuse(call, ErrorType.TOOL_NOT_AVAILABLE, unusable)
        return await self._pipeline.execute(call)

    async def end(self, reason: EndReason = EndReason.COMPLETED) -> None:
        """Close the record, if there is one; the first reason counts."""
        if self._log.has_begun and not self._has_ended:
            self._has_ended = True
            await self._log.append((NewEvent(EventType.RUN_COMPLETED, {"end_reason": reason.value}, self._now_us()),))

    async def _begin(self) -> None:
        if self._log.has_begun:
            return
        data: dict[str, Json] = {
            **self.scope.identity.as_json(),
            "project": str(self.run_dirs.project),
            "tools": list(self._pipeline.tools),
        }
        await self._log.append((NewEvent(EventType.RUN_STARTED, data, self._now_us()),))

    def _why_not(self, name: str) -> str:
        """Return why a registered tool cannot be called; nothing when it can, or when there is none of that name."""
        decision = self.surface.explain(name)
        if decision is None:
            return ""
        role = self.scope.identity.role
        if not decision.is_in:
            return f"{name!r} is not in the tool set of role {role.value}: {decision.rule}"
        if name in self.of_service and role.is_child:
            return f"{name!r} with role {role.value} needs a step, and a call by hand has none; use the role main"
        return ""

    def _now_us(self) -> int:
        return self.clock.now_us()
