"""Writes the folders of runs, a batch of them with one read and one hand-over to a thread.

A folder that cannot be written keeps no other of its batch from being written. What a worker must have left there is
reported to the audit log.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Protocol

from soong.orchestrator.owner.run_folder import (
    StoredArtifacts,
    deliverable_names,
    delivered_file,
    write_delivered,
    write_logs,
)
from soong.shared.core.clock import Clock
from soong.shared.core.errors import ForeignEntryError, ForgedError
from soong.shared.core.log import get_logger
from soong.shared.engine.runs.events import Event
from soong.shared.engine.runs.record import Run
from soong.shared.engine.runs.store import RunStore
from soong.shared.permissions.audit_log.notes import of_tampering
from soong.shared.permissions.audit_log.store import AuditStore
from soong.shared.sandbox.rooted import RootedFolder

log = get_logger(__name__)

BATCH_RUNS: Final = 100
BATCH_EVENTS: Final = 5000
PORTION_BYTES: Final = 4 * 1024 * 1024
"""Deliverables are held and written so many at a time."""


class LoggedStore(Protocol):
    """The rows that are written to folders, and the audit log."""

    @property
    def runs(self) -> RunStore: ...

    @property
    def audit(self) -> AuditStore: ...


@dataclass(slots=True)
class RunFolderWriter:
    """Writes folders of runs, one batch after the other."""

    store: LoggedStore
    artifacts: StoredArtifacts
    folder: RootedFolder
    clock: Clock
    tampered: set[str] = field(default_factory=set)
    """Tasks among whose files something foreign was found."""
    _batch: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Threads that make entries of the same folder wait for each other in the kernel, and use a core for that."""

    async def write_batch(self, batch: Mapping[str, Run]) -> bool:
        """Write the folders of these runs: one read and one hand-over to a thread for all of them."""
        events = await self.store.runs.events_of(list(batch))
        logs = {run_id: tuple(group) for run_id, group in groupby(events, key=lambda event: event.run_id)}
        wanted = {run_id: logs.get(run_id, ()) for run_id in batch}
        async with self._batch:
            problems = await asyncio.to_thread(write_logs, self.folder, wanted)
        for run_id, problem in problems.items():
            await self._tell_failed(batch[run_id], problem)
        delivered = {run_id: logs[run_id] for run_id in batch if run_id in logs and run_id not in problems}
        return await self._write_deliverables(batch, delivered) and not problems

    async def _write_deliverables(self, batch: Mapping[str, Run], logs: Mapping[str, Sequence[Event]]) -> bool:
        """Write what these runs deliver; return whether all of it could be written."""
        failed: set[str] = set()
        portion: dict[str, dict[str, bytes]] = {}
        size = 0
        for run_id, events in logs.items():
            names = deliverable_names(events)
            for event in events if names else ():
                data = await self._delivered(batch[run_id], event, names, failed)
                portion.setdefault(run_id, {}).update(data)
                size += sum(map(len, data.values()))
                if size > PORTION_BYTES:
                    failed |= await self._write_portion(batch, portion)
                    portion, size = {}, 0
        failed |= await self._write_portion(batch, portion)
        return not failed

    async def _delivered(
        self, run: Run, event: Event, names: Mapping[str, str], failed: set[str]
    ) -> Mapping[str, bytes]:
        """Return the file that an event delivers, by its name; a run whose file cannot be read has ``failed``."""
        try:
            return await delivered_file(event, self.artifacts, names) if run.id not in failed else {}
        except ForgedError as error:
            await self.tell(run, error.what, str(error))
        except (ForeignEntryError, OSError) as error:
            failed.add(run.id)
            await self._tell_failed(run, error)
        return {}

    async def _write_portion(
        self, batch: Mapping[str, Run], portion: Mapping[str, Mapping[str, bytes]]
    ) -> frozenset[str]:
        """Write files of runs in one thread; return the runs whose files could not be written."""
        wanted = {run_id: files for run_id, files in portion.items() if files}
        if not wanted:
            return frozenset()
        async with self._batch:
            problems = await asyncio.to_thread(write_delivered, self.folder, wanted)
        for run_id, problem in problems.items():
            await self._tell_failed(batch[run_id], problem)
        return frozenset(problems)

    async def _tell_failed(self, run: Run, problem: ForeignEntryError | OSError) -> None:
        """Tell of a folder that could not be written."""
        if isinstance(problem, ForeignEntryError):
            await self.tell(run, "foreign_entry", str(problem))
        else:
            log.error("run_folder_failed", task=run.identity.task_id, run=run.id, error=str(problem))

    async def tell(self, run: Run, what: str, problem: str) -> None:
        """Tell the audit log of something that a worker must have left."""
        log.error("tampering_found", what=what, run=run.id, problem=problem)
        self.tampered.add(run.identity.task_id)
        await self.store.audit.note([of_tampering(run.identity, what, problem)], now_us=self.clock.now_us())


def batches(runs: Sequence[Run]) -> Iterator[dict[str, Run]]:
    """Yield runs by id, so many at a time as leaves their events small."""
    batch: dict[str, Run] = {}
    size = 0
    for run in runs:
        if batch and (len(batch) == BATCH_RUNS or size + run.last_seq > BATCH_EVENTS):
            yield batch
            batch, size = {}, 0
        batch[run.id] = run
        size += run.last_seq
    if batch:
        yield batch
