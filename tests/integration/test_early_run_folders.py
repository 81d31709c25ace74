"""Folders of runs that have ended while their task lasts."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from soong.orchestrator.owner.run_archive import RunArchive
from soong.shared.core.settings import Settings
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.step import Claim
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts
from tests.contract.scene import completed
from tests.integration.run_archiving import CALLED, AwayStore, advance, lines
from tests.model.builders import open_session, open_task, open_worker
from tests.model.clock import START_US, FakeClock
from tests.model.memory.logs import note_run
from tests.model.memory.store import MemoryStore
from tests.waiting import others_run

SWEEP_S = float(Settings.model_fields["sweep_s"].default)


@dataclass
class LastingTask:
    """A task of two runs, of which the first has ended, and the archive of its owner."""

    store: MemoryStore
    folders: RunArchive
    clock: FakeClock
    own: Ownership
    worker_id: str
    task_id: str
    ended: Claim
    running: Claim
    place: Path

    async def write_ended(self) -> bool:
        """Let the owner look once; say whether the run that has ended has its folder now."""
        await self.folders.write_ended(self.own.owner_id)
        if self.folders._early is not None:
            await self.folders._early
        return (self.place / self.ended.identity.run_id / "events.jsonl").exists()

    def later(self) -> None:
        """Let as much time pass as there is before the last sweep within five seconds of the end."""
        self.clock.advance(timedelta(seconds=5 - 1 - SWEEP_S))


async def lasting_task(store: MemoryStore, root: Path) -> LastingTask:
    own = await open_session(store)
    task_id = await open_task(store, own, "a", "b")
    worker_id, clock = await open_worker(store), FakeClock()
    first, second = (await advance(store, worker_id, [], claim=2)).claims
    await advance(store, worker_id, [replace(completed(first), usage=CALLED)], claim=0)
    artifacts, place = FolderArtifacts(RootedFolder(root, "artifacts")), RootedFolder(root, "runs")
    folders = RunArchive(store, artifacts, place, clock)
    return LastingTask(store, folders, clock, own, worker_id, task_id, first, second, root / "runs")


@pytest.mark.spec("EVT-03.d")
async def test_a_run_that_ended_a_while_ago_has_its_folder_while_its_task_continues(tmp_path: Path) -> None:
    task = await lasting_task(MemoryStore(), tmp_path)

    at_once = await task.write_ended()
    task.later()
    later = await task.write_ended()

    assert (at_once, later) == (False, True)
    assert [path.name for path in task.place.iterdir()] == [task.ended.identity.run_id]
    assert await task.store.tasks.unrecorded(task.own.owner_id) == []


@pytest.mark.spec("EVT-03.d")
async def test_a_folder_is_written_once_before_the_end_of_its_task_and_once_with_it(tmp_path: Path) -> None:
    task = await lasting_task(MemoryStore(), tmp_path)
    log = task.place / task.ended.identity.run_id / "events.jsonl"
    task.later()
    await task.write_ended()
    log.unlink()

    task.later()
    again = await task.write_ended()
    await advance(task.store, task.worker_id, [completed(task.running)], claim=0)
    await task.store.tasks.finish_task(task.own, task.task_id, now_us=START_US)
    await task.folders.write(task.task_id)
    await task.folders.close()

    assert (again, log.exists()) == (False, True)


class HeldStore(MemoryStore):
    """Gives the first logs that are asked for when it is let: until then they grow older."""

    def __init__(self) -> None:
        super().__init__()
        self.has_read, self.may_return = asyncio.Event(), asyncio.Event()

    async def events_of(self, run_ids: Sequence[str]) -> Sequence[Event]:
        found: Sequence[Event] = await super().events_of(run_ids)
        if not self.has_read.is_set():
            self.has_read.set()
            await self.may_return.wait()
        return found


@pytest.mark.spec("EVT-03.d")
async def test_a_log_that_was_read_before_the_end_of_its_task_replaces_no_newer_one(tmp_path: Path) -> None:
    store = HeldStore()
    task = await lasting_task(store, tmp_path)
    run_id = task.ended.identity.run_id
    task.later()

    await task.folders.write_ended(task.own.owner_id)
    await store.has_read.wait()
    note_run(store.rows, run_id, EventType.PERMISSION_FAILED, START_US)
    await task.folders.write(task.task_id)
    await others_run()
    store.may_return.set()
    await task.folders.close()

    assert len(lines(task.place / run_id / "events.jsonl")) == len(await store.runs.events(run_id))


@pytest.mark.spec("EVT-03.d")
async def test_runs_whose_rows_cannot_be_read_now_get_their_folders_later(tmp_path: Path) -> None:
    store = AwayStore()
    task = await lasting_task(store, tmp_path)
    task.later()
    store.away = 1

    away = await task.write_ended()

    assert (away, await task.write_ended()) == (False, True)
