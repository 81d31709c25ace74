import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from soong.orchestrator.owner.run_archive import RunArchive
from soong.shared.core import timing
from soong.shared.core.settings import Settings
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.spec import FailurePolicy
from soong.shared.engine.tasks.step import Claim
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts
from tests.contract.scene import ContractHarness, completed, open_scene
from tests.integration.away_store import AwayStore
from tests.integration.run_archiving import CALLED, advance, ended_run, lines, run_folders
from tests.model.builders import open_session, open_task, open_worker
from tests.model.clock import START_US, FakeClock
from tests.model.memory.rows import note_run
from tests.model.memory.store import MemoryStore
from tests.waiting import others_run


@pytest.mark.parametrize(("away", "is_written"), [(2, True), (9, False)], ids=["a while", "for ever"])
async def test_a_folder_waits_for_a_database_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: int, is_written: bool
) -> None:
    monkeypatch.setattr(timing, "RETRY_S", (0.01, 0.01, 0.01))
    store = AwayStore("list_runs", "ended_in_open_tasks")
    ended, run_id = await ended_run(store)
    folders = run_folders(store, tmp_path)
    store.away = away

    await folders.write(ended.task_id)
    await asyncio.gather(*folders._writing.values())

    assert (tmp_path / "runs" / run_id / "events.jsonl").exists() is is_written


async def test_closing_waits_for_no_database_that_is_away(tmp_path: Path) -> None:
    store = AwayStore("list_runs", "ended_in_open_tasks")
    ended, _ = await ended_run(store)
    folders = run_folders(store, tmp_path)
    store.away = 100

    await folders.write(ended.task_id)
    await others_run()
    async with asyncio.timeout(1):
        await folders.close()


@pytest.mark.spec("EVT-03")
async def test_folders_that_could_not_be_written_are_tried_again_some_time_later(tmp_path: Path) -> None:
    store, clock = MemoryStore(), FakeClock()
    ended, run_id = await ended_run(store)
    ownership = store.rows.sessions[next(iter(store.rows.sessions))].ownership
    await store.tasks.finish_task(ownership, ended.task_id, now_us=START_US)
    folders = run_folders(store, tmp_path, clock)
    folders._writer.folder, place = RootedFolder(tmp_path, "r" * 300), folders.folder  # which no file system takes
    await folders.write(ended.task_id)
    await asyncio.gather(*folders._writing.values())
    folders._writer.folder = place

    at_once = set(folders.set_aside())
    clock.advance(timedelta(seconds=timing.GIVEN_UP_S))
    later = set(folders.set_aside())
    await folders.write(ended.task_id)
    await folders.close()

    assert (at_once, later) == ({ended.task_id}, set())
    assert (tmp_path / "runs" / run_id / "events.jsonl").exists()
    assert await store.tasks.unrecorded(ownership.owner_id) == []


class TriedAgainStore(MemoryStore):
    """Has something happen between the writing of folders and the mark that they are written."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def mark_recorded(self, task_id: str, ended_us: int) -> bool:
        happening, self.meanwhile = self.meanwhile, None
        if happening is not None:
            await happening()
        is_last: bool = await super().mark_recorded(task_id, ended_us)
        return is_last


async def fail_the_next(scene: ContractHarness, task_id: str) -> str:
    """Let the step of a task fail, and end the task with it; return the run that failed."""
    scene.clock.advance(timedelta(seconds=1))
    claim = await scene.claim_one()
    await scene.fail(claim)
    await scene.store.tasks.settle_failure(scene.own, claim.step_key, FailurePolicy.FAIL_TASK, now_us=scene.now_us)
    await scene.finish(task_id)
    return claim.identity.run_id


@pytest.mark.spec("EVT-03")
@pytest.mark.parametrize("ends", [True, False], ids=["ends again", "runs on"])
async def test_a_task_that_is_tried_again_while_its_folders_are_written_gets_those_of_both_attempts(
    tmp_path: Path, ends: bool
) -> None:
    store = TriedAgainStore()
    scene = await open_scene(store)
    task_id = await scene.task("a")
    runs = [await fail_the_next(scene, task_id)]
    folders = run_folders(store, tmp_path)

    async def try_again() -> None:
        await scene.retry_task(task_id)
        if ends:
            runs.append(await fail_the_next(scene, task_id))

    store.meanwhile = try_again
    await folders.write(task_id)
    await asyncio.gather(*folders._writing.values())
    assert await store.tasks.unrecorded(scene.own.owner_id) == []
    if not ends:
        runs.append(await fail_the_next(scene, task_id))
        assert await store.tasks.unrecorded(scene.own.owner_id, set_aside=folders.set_aside()) == [task_id]
        await folders.write(task_id)
    await folders.close()

    assert await store.tasks.unrecorded(scene.own.owner_id) == []
    assert len(runs) == 2
    assert all((tmp_path / "runs" / run_id / "events.jsonl").exists() for run_id in runs)


# -- folders of runs that have ended while their task lasts
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
    store = AwayStore("list_runs", "ended_in_open_tasks")
    task = await lasting_task(store, tmp_path)
    task.later()
    store.away = 1

    away = await task.write_ended()

    assert (away, await task.write_ended()) == (False, True)
