"""Run folders: the record of a task's runs, as files for people and other programs (EVT-03).

``runs/<run>/`` in the home gets ``events.jsonl`` (CloudEvents), ``logs/tools.jsonl``, ``logs/errors.jsonl`` and
``deliverables/``, from rows and artifacts, when the task has ended; where the task lasts, at the next sweep after the
run's end. The rows stay the truth: a folder can be deleted and written again. Runs in which no agent worked (of
functions, and of plans themselves) get one if they did not end well or made their folder: it costs more than the step.

This module decides when a folder is written and when again; :mod:`soong.orchestrator.owner.run_archive` writes
it, and :mod:`soong.orchestrator.owner.run_folder` defines its content.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Final

from soong.orchestrator.owner.commands import SessionMemory
from soong.orchestrator.owner.run_folder import (
    StoredArtifacts,
    deliverable_names,
    delivered_file,
    write_delivered,
    write_logs,
)
from soong.shared.core import timing
from soong.shared.core.errors import ForeignEntryError, ForgedError, UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock, SystemClock
from soong.shared.engine.runs.events import Event
from soong.shared.engine.runs.record import Run, RunStatus, Usage
from soong.shared.permissions.audit_log import of_tampering
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.store import Store

log = get_logger(__name__)

MOST_ENDED: Final = 1_000
"""So many such runs are read at a time."""
TRIED_AGAIN: Final = 20
"""So many at one look: those of other tasks, which can be written, come first."""
MOST_ENDS: Final = 3
"""Ends of a task, one after the other while its folders are being written."""

BATCH_RUNS: Final = 100
BATCH_EVENTS: Final = 5000
PORTION_BYTES: Final = 4 * 1024 * 1024
"""Deliverables are held and written so many at a time."""


@dataclass(slots=True)
class RunFolderWriter:
    """Writes folders of runs, one batch after the other."""

    store: Store
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
        """Report a folder that could not be written."""
        if isinstance(problem, ForeignEntryError):
            await self.tell(run, "foreign_entry", str(problem))
        else:
            log.error("run_folder_failed", task=run.identity.task_id, run=run.id, error=str(problem))

    async def tell(self, run: Run, what: str, problem: str) -> None:
        """Write to the audit log that a worker must have left something."""
        log.error("tampering_found", what=what, run=run.id, problem=problem)
        self.tampered.add(run.identity.task_id)
        await self.store.audit.note([of_tampering(run.identity, what, problem)], now_us=self.clock.now_us())


@dataclass(slots=True)
class RunArchive:
    """Writes in the background, one batch after the other; :meth:`close` waits for what is under way.

    A task is marked when all its folders are written. An owner that ends before that leaves the task to the next one,
    which writes the same files again. A folder that cannot be written keeps no other from being written, and is tried
    again some time later.
    """

    store: Store
    artifacts: StoredArtifacts
    folder: RootedFolder
    clock: Clock = field(default_factory=SystemClock)
    memory: SessionMemory | None = None
    _writing: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _given_up: dict[str, float] = field(default_factory=dict)
    """Tasks whose folders could not be written, and when that was, the oldest first. Another process may write them."""
    _closing: asyncio.Event = field(default_factory=asyncio.Event)
    _writer: RunFolderWriter = field(init=False)
    _early: asyncio.Task[None] | None = None
    _early_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from the reading of logs before their task's end until they are written: they replace no newer ones."""
    _reached: tuple[int, str] = (0, "")
    """The end and the id of the last run that was written before its task's end."""

    def __post_init__(self) -> None:
        self._writer = RunFolderWriter(self.store, self.artifacts, self.folder, self.clock)

    async def write(self, task_id: str) -> None:
        """Begin to write the folders of the task's runs, unless they are being written or could not be of late."""
        if task_id in self._writing or task_id in self._given_up:
            return
        task = asyncio.get_running_loop().create_task(self._write_task(task_id))
        self._writing[task_id] = task
        task.add_done_callback(lambda _: self._writing.pop(task_id, None))

    def set_aside(self) -> Collection[str]:
        """Return the tasks that need not be named to :meth:`write` now.

        This drops some that were given up long ago: found unrecorded, they are tried again. A task whose folders have
        foreign entries is not dropped: another try would report them again.
        """
        long_ago_s = self.clock.monotonic_s() - timing.GIVEN_UP_S
        due = (one for one, at_s in self._given_up.items() if at_s <= long_ago_s and one not in self._writer.tampered)
        for task_id in list(islice(due, TRIED_AGAIN)):
            del self._given_up[task_id]
        return self._given_up.keys() | self._writing.keys()

    async def write_ended(self, owner_id: str) -> None:
        """Begin to write the folders of runs that have ended in open tasks of the owner, each once.

        They are written again with their task's end: until then a worker can change them, and their logs can grow.
        """
        if self._early is None or self._early.done():
            self._early = asyncio.get_running_loop().create_task(self._write_ended(owner_id))

    async def close(self) -> None:
        """Wait for what is being written; what waits for the database is tried once more."""
        self._closing.set()
        early = () if self._early is None else (self._early,)
        await asyncio.gather(*self._writing.values(), *early, return_exceptions=True)

    async def _write_ended(self, owner_id: str) -> None:
        # By then the transaction that wrote the end is committed.
        before_us = self.clock.now_us() - round(timing.SHORT_LIMIT_S * 1_000_000)
        found: Sequence[Run] = ()
        is_more = True
        try:
            while is_more and not self._closing.is_set():
                found = await self.store.runs.ended_in_open_tasks(
                    owner_id, after=self._reached, before_us=before_us, limit=MOST_ENDED
                )
                is_more = len(found) == MOST_ENDED
                for batch in batches(found):
                    async with self._early_turn:
                        await self._writer.write_batch(batch)
                    self._reached = max(map(_place, batch.values()))
        except UnavailableError as error:  # the next call tries again
            log.warning("run_folders_wait", error=str(error))
        except Exception:  # the next call would meet the same fault; the end of their tasks tries once more
            log.exception("run_folders_failed")
            self._reached = max(map(_place, found), default=self._reached)

    async def _write_task(self, task_id: str) -> None:
        """Write all folders of a task, again and again while the database is away: nobody else will."""
        for wait_s in (*timing.RETRY_S, None):
            try:
                if not await self._record(task_id):
                    self._give_up(task_id)
            except UnavailableError as error:
                if wait_s is None or self._closing.is_set():
                    log.error("run_folder_left", task=task_id, error=str(error))
                    return
                log.warning("run_folder_waits", task=task_id, error=str(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._closing.wait()
            except Exception:  # nobody awaits this work, and each sweep would meet the same fault again
                log.exception("run_folder_failed", task=task_id)
                self._give_up(task_id)
                return
            else:
                return

    def _give_up(self, task_id: str) -> None:
        self._given_up[task_id] = self.clock.monotonic_s()

    async def _record(self, task_id: str) -> bool:
        """Write a task's folders and mark it; return whether that could be done.

        Again where it was tried again and has ended meanwhile; what still runs is named again at its next end.
        """
        async with self._early_turn:
            pass  # what was read of these runs before is written now
        for _ in range(MOST_ENDS):
            found = await self.store.runs.list_runs(task_id=task_id, limit=100_000)
            is_whole = True
            for batch in batches([run for run in found if _has_folder(run)]):
                is_whole = await self._writer.write_batch(batch) and is_whole
            if not (await self._write_candidates(task_id, found) and is_whole):
                return False
            # A task ends with its root run, the last of them.
            ended_us = next((run.ended_us for run in reversed(found) if not run.identity.step_key), None)
            if ended_us is None or await self.store.tasks.mark_recorded(task_id, ended_us):
                return True
        log.warning("run_folder_unmarked", task=task_id)
        return False

    async def _write_candidates(self, task_id: str, runs: Sequence[Run]) -> bool:
        """Write what the memory jobs among these runs propose; return whether that could be written."""
        is_whole = True
        memory = self.memory
        if memory is None:
            return True
        for run in filter(memory.is_job, runs):
            try:
                await memory.keep(run.id)
            except ForeignEntryError as error:
                await self._writer.tell(run, "foreign_entry", str(error))
                is_whole = False
            except OSError as error:
                log.error("memory_archive_failed", task=task_id, run=run.id, error=str(error))
                is_whole = False
        return is_whole


def _has_folder(run: Run) -> bool:
    """Say whether a run has a folder. An agent that ended well has used something: it has asked a model."""
    return run.usage != Usage() or (run.started_us is not None and run.status is not RunStatus.COMPLETED)


def _place(run: Run) -> tuple[int, str]:
    """Return where a run that has ended is in the order of ends."""
    return run.ended_us or 0, run.id


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
