"""The record of calls made without a model: the run's folder, written as things happen (EVT-03, EXE-06).

The files are those of :mod:`soong.orchestrator.owner.run_folder`, line for line; there are no rows behind them, so
each event is appended when it comes. Results themselves are given back to the caller and kept nowhere else.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from soong.orchestrator.owner.run_folder import StoredArtifacts, lines_of, make_folders, write_deliverable
from soong.shared.core.clock import Clock
from soong.shared.core.errors import ForeignEntryError, ForgedError, UnavailableError
from soong.shared.core.jsontext import JsonObject, dump
from soong.shared.core.log import get_logger
from soong.shared.engine.runs.call_events import ended_event, started_event
from soong.shared.engine.runs.events import Event, NewEvent
from soong.shared.permissions.taint import brings_untrusted, reads_untrusted
from soong.shared.sandbox.redact import Redactor
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.tools.ports import ArtifactStore, CallRecord, StartedCall, ToolCall
from soong.shared.tools.result import ToolResult

log = get_logger(__name__)


class Artifacts(ArtifactStore, StoredArtifacts, Protocol):
    """Where large output and deliverables are put, and read back for the folder."""


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

        Raises:
            UnavailableError: the folder cannot be written; says why.
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
