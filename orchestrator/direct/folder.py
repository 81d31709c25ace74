"""The record of calls made without a model: the run's folder, written as things happen (EVT-03, EXE-06).

The files are those of :mod:`orchestrator.record`, line for line; here no rows stand behind them, so each event is
appended when it comes. Results themselves are given back to the caller and kept nowhere else.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from orchestrator.record import StoredArtifacts, lines_of, make_folders, write_deliverable
from shared.clock import Clock
from shared.errors import UnavailableError
from shared.jsontext import JsonObject, dump
from shared.permissions.taint import reads_untrusted
from shared.runs.call_events import ended_event, started_event
from shared.runs.events import Event, NewEvent
from shared.sandbox.redact import Redactor
from shared.tools.ports import ArtifactStore, CallRecord, StartedCall, ToolCall
from shared.tools.result import ToolResult


class Artifacts(ArtifactStore, StoredArtifacts, Protocol):
    """Where large output and deliverables are put, and read back for the folder."""


_NEW = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class FolderLog:
    """Implements ``shared.tools.ports.CallLog`` over one run folder, made with the first event.

    A write whose start cannot be recorded does not happen.
    """

    folder: Path
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
        event = await ended_event(
            call,
            result,
            duration_ms=duration_ms,
            artifacts=self.artifacts,
            now_us=self.clock.now_us(),
            redactor=self.redactor,
        )
        (numbered,) = await self.append((event,))
        await write_deliverable(self.folder, numbered, self.artifacts)

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
            except OSError as error:
                problem = f"the record of the call cannot be written to {self.folder}: {error.strerror}"
                raise UnavailableError(problem) from error
            self._seq += len(numbered)
            return numbered


def _append(folder: Path, files: Mapping[str, Sequence[JsonObject]]) -> None:
    make_folders(folder)
    for name, lines in files.items():
        data = "".join(f"{dump(line)}\n" for line in lines).encode("utf-8", "replace")
        descriptor = os.open(folder / name, _NEW, 0o600)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)
