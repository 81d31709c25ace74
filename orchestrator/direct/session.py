"""One sitting of tool calls without a model: a role's surface, one pipeline, one record (EXE-12, ETS-01).

Leaves the building of its parts to :mod:`soong.orchestrator.direct.bootstrap`.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from soong.orchestrator.owner.run_folder import StoredArtifacts, lines_of, make_folders, write_deliverable
from soong.shared.core.errors import ForeignEntryError, ForgedError, UnavailableError
from soong.shared.core.identity import new_id
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.call_events import ended_event, started_event
from soong.shared.engine.runs.events import Event, EventType, NewEvent
from soong.shared.engine.runs.record import EndReason
from soong.shared.permissions.rules import brings_untrusted, reads_untrusted
from soong.shared.sandbox.redact import Redactor
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.tools.definition import RunDirs, ToolDefinition
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from soong.shared.tools.ports import ArtifactStore, CallRecord, StartedCall, ToolCall
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.result import ErrorType, ToolResult
from soong.shared.tools.surface import Surface

log = get_logger(__name__)


class Artifacts(ArtifactStore, StoredArtifacts, Protocol):
    """The store of large output and deliverables, from which the folder reads them back."""


@dataclass(slots=True)
class FolderLog:
    """Implements ``soong.shared.tools.ports.CallLog`` over one run folder, made with the first event.

    A write whose start cannot be recorded does not happen.
    """

    folder: RootedFolder
    run_id: str
    artifacts: Artifacts
    clock: Clock
    redactor: Redactor
    ended: dict[str, ToolResult] = field(default_factory=dict)
    """Every terminal result by its call: of an aborted call nobody gets it as a return value."""
    is_tainted: bool = False
    """A call has begun that may have read what strangers wrote (PER-21)."""
    _seq: int = 0
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def has_begun(self) -> bool:
        return self._seq > 0

    async def started(self, started: StartedCall) -> None:
        self.is_tainted = self.is_tainted or reads_untrusted(started.gate_call.definition)
        await self.append((started_event(started, now_us=self.clock.now_us()),))

    async def finished(
        self,
        call: ToolCall,
        result: ToolResult,
        *,
        duration_ms: int,
        record: CallRecord | None = None,  # noqa: ARG002  # rows keep it; the folder has it in its events
    ) -> None:
        self.ended[call.id] = result
        self.is_tainted = self.is_tainted or brings_untrusted(result)
        event = await ended_event(
            call,
            result,
            duration_ms=duration_ms,
            artifacts=self.artifacts,
            now_us=self.clock.now_us(),
            redactor=self.redactor,
        )
        (numbered,) = await self.append((event,))
        try:
            await write_deliverable(self.folder, numbered, self.artifacts)
        except (OSError, ForeignEntryError, ForgedError) as error:  # the call has happened; only its copy is missing
            log.error("deliverable_left", run=self.run_id, error=str(error))

    async def note(self, type: str, data: JsonObject) -> None:
        await self.append((NewEvent(type, data, self.clock.now_us()),))

    async def append(self, events: Sequence[NewEvent]) -> Sequence[Event]:
        """Append events in order, without secrets, and return them with their numbers.
        Raises: UnavailableError, the folder cannot be written; says why.
        """
        async with self._writing:
            numbered = [
                Event(self.run_id, self._seq + place, each.type, each.time_us, self.redactor.mapping(each.data))
                for place, each in enumerate(events, 1)
            ]
            try:
                await asyncio.to_thread(_append, self.folder, lines_of(numbered))
            except (OSError, ForeignEntryError) as error:
                problem = f"the record of the call cannot be written to {self.folder.path}: {error}"
                raise UnavailableError(problem) from error
            self._seq += len(numbered)
            return numbered


def _append(folder: RootedFolder, files: Mapping[str, Sequence[JsonObject]]) -> None:
    make_folders(folder)
    for name, lines in files.items():
        folder.append(name, "".join(f"{dump(line)}\n" for line in lines).encode("utf-8", "replace"))


@dataclass(slots=True)
class DirectSession:
    """Calls tools for a program or a person. Made by ``open_tools``; calls may be concurrent.

    Its calls make one run: they share the record below ``run_dir`` and what the callback allowed for the session.
    ``of_service`` are the tools that work on a service's rows: the first call of one attaches to the service of the
    settings, or starts one that ends with the session. The service's workers do what such a call starts.
    """

    registry: ToolRegistry
    surface: Surface
    scope: RunScope
    clock: Clock
    of_service: frozenset[str]
    artifact_path: Callable[[str], Path]
    """Returns the path of an artifact's bytes for its digest."""
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
            await self._log.append(
                (NewEvent(EventType.RUN_COMPLETED, {"end_reason": reason.value}, self.clock.now_us()),)
            )

    async def _begin(self) -> None:
        if self._log.has_begun:
            return
        data: dict[str, Json] = {
            **self.scope.identity.as_json(),
            "project": str(self.run_dirs.project),
            "tools": list(self._pipeline.tools),
        }
        await self._log.append((NewEvent(EventType.RUN_STARTED, data, self.clock.now_us()),))

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
