"""When run folders are written, and when again."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from soong.orchestrator.owner.run_archive import TRIED_AGAIN
from soong.shared.core import timing
from soong.shared.engine.tasks.spec import FailurePolicy
from soong.shared.sandbox.rooted import RootedFolder
from tests.contract.scene import ContractHarness, open_scene
from tests.integration.run_archiving import AwayStore, ended_run, lines, run_folders
from tests.model.clock import START_US, FakeClock
from tests.model.memory.store import MemoryStore
from tests.waiting import others_run, until


@pytest.mark.parametrize(("away", "is_written"), [(2, True), (9, False)], ids=["a while", "for ever"])
async def test_a_folder_waits_for_a_database_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: int, is_written: bool
) -> None:
    monkeypatch.setattr(timing, "RETRY_S", (0.01, 0.01, 0.01))
    store = AwayStore()
    ended, run_id = await ended_run(store)
    folders = run_folders(store, tmp_path)
    store.away = away

    await folders.write(ended.task_id)
    await asyncio.gather(*folders._writing.values())

    assert (tmp_path / "runs" / run_id / "events.jsonl").exists() is is_written


async def test_closing_waits_for_no_database_that_is_away(tmp_path: Path) -> None:
    store = AwayStore()
    ended, _ = await ended_run(store)
    folders = run_folders(store, tmp_path)
    store.away = 100

    await folders.write(ended.task_id)
    await others_run()
    async with asyncio.timeout(1):
        await folders.close()


async def test_a_task_is_marked_once_its_folders_stand(tmp_path: Path) -> None:
    store = MemoryStore()
    ended, run_id = await ended_run(store)
    ownership = store.rows.sessions[next(iter(store.rows.sessions))].ownership
    await store.tasks.finish_task(ownership, ended.task_id, now_us=START_US)
    before = await store.tasks.unrecorded(ownership.owner_id)

    for _ in range(2):  # a successor that did not hear of it writes the same again
        folders = run_folders(store, tmp_path)
        await folders.write(ended.task_id)
        await folders.close()

    assert before == [ended.task_id]
    assert await store.tasks.unrecorded(ownership.owner_id) == []
    assert len(lines(tmp_path / "runs" / run_id / "events.jsonl")) == len(await store.runs.events(run_id))


async def test_folders_that_cannot_be_written_are_left_to_another_owner(tmp_path: Path) -> None:
    store = MemoryStore()
    ended, _ = await ended_run(store)
    ownership = store.rows.sessions[next(iter(store.rows.sessions))].ownership
    await store.tasks.finish_task(ownership, ended.task_id, now_us=START_US)
    (tmp_path / "runs").write_text("a file is in the way")
    folders = run_folders(store, tmp_path)

    await folders.write(ended.task_id)
    await folders.close()

    assert await store.tasks.unrecorded(ownership.owner_id) == [ended.task_id]


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


@pytest.mark.spec("EVT-03")
async def test_of_many_that_could_not_be_written_a_few_are_tried_again_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    folders = run_folders(MemoryStore(), tmp_path, clock)
    stuck = [f"task_{number}" for number in range(2 * TRIED_AGAIN + 1)]
    for task_id in stuck:
        folders._give_up(task_id)
    clock.advance(timedelta(seconds=timing.GIVEN_UP_S))

    looks = [set(folders.set_aside()) for _ in range(3)]

    assert looks == [set(stuck[TRIED_AGAIN:]), set(stuck[2 * TRIED_AGAIN :]), set()]


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


@pytest.mark.spec("EVT-03.d")
async def test_folders_wait_while_answers_are_dealt_with(tmp_path: Path) -> None:
    store, is_busy = MemoryStore(), True
    ended, run_id = await ended_run(store)
    folders = run_folders(store, tmp_path)
    folders.waits_while = lambda: is_busy
    await folders.write(ended.task_id)
    await asyncio.sleep(0.2)
    before = (tmp_path / "runs").exists()

    is_busy = False
    await until((tmp_path / "runs" / run_id / "events.jsonl").exists, 10)

    assert not before
    await folders.close()


@pytest.mark.spec("EVT-03.d/answers-come")
async def test_folders_that_wait_for_answers_are_written_within_five_seconds(tmp_path: Path) -> None:
    store, clock = MemoryStore(), FakeClock()
    ended, run_id = await ended_run(store)
    folders = run_folders(store, tmp_path, clock)
    folders.waits_while = lambda: True
    await folders.write(ended.task_id)
    await others_run()

    clock.advance(timedelta(seconds=4))

    await until((tmp_path / "runs" / run_id / "events.jsonl").exists, 10)


@pytest.mark.spec("EVT-03.d")
@pytest.mark.parametrize("limit_s", [3600.0, 0.1])
async def test_folders_do_not_wait_for_answers_for_ever_nor_at_the_end(
    tmp_path: Path, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "PUT_OFF_S", limit_s)
    monkeypatch.setattr(timing, "LEAST_PAUSE_S", 0.01)
    store = MemoryStore()
    ended, run_id = await ended_run(store)
    folders = run_folders(store, tmp_path)
    folders.waits_while = lambda: True
    await folders.write(ended.task_id)
    await asyncio.sleep(0.2)  # longer than the short limit
    written = tmp_path / "runs" / run_id / "events.jsonl"
    was_written = written.exists()

    async with asyncio.timeout(10):
        await folders.close()

    assert (was_written, written.exists()) == (limit_s < 1, True)
