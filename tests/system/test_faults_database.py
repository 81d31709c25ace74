"""Faults of the database, and of the owners that work on it."""

import asyncio
import itertools
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from sqlalchemy import RootTransaction

from soong.orchestrator.client.bootstrap import open_client
from soong.orchestrator.client.client import Client, Submission
from soong.shared.core.errors import UnavailableError
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.timing import SystemClock
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.new_tasks import new_task
from soong.shared.engine.tasks.plan.reader import plan_from_json
from soong.shared.engine.tasks.planner import no_tools
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.storage.sql.store import SqlStore
from tests.model.builders import make_session
from tests.scripted import call, calls
from tests.servers import RedisServer, short_folder
from tests.system.auditor import audit, read_effects
from tests.system.deployment import LEASE_S, SWEEP_S, Deployment, promised
from tests.system.faults.proxy import Proxy
from tests.system.faults.scene import (
    GROWING,
    done,
    effects_file,
    fill,
    freeze_between_writes,
    prove,
    small_disk,
    start_workers,
    until_begun,
    until_done,
    waves,
)
from tests.system.faults.servers import MortalPostgres, mortal_postgres

MOST_TASKS = 20

SHORTER_THAN_TRUST_S = 0.3 * LEASE_S

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")


@pytest.fixture
async def on_postgres(postgres: MortalPostgres, redis_url: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    """A deployment on a PostgreSQL that may be killed."""
    async with Deployment(postgres.url, redis_url, tmp_path) as deployment:
        yield deployment


@pytest.mark.spec("DAG-07.c", "DAG-03")
async def test_a_postgres_that_is_killed_again_and_again_loses_and_doubles_nothing(
    on_postgres: Deployment, postgres: MortalPostgres
) -> None:
    await start_workers(on_postgres, 2, slots=4)
    task = await on_postgres.submit(waves(4, 8, 0.2))

    for number, way in enumerate((postgres.kill, postgres.stop, postgres.kill), start=1):
        await until_done(on_postgres, task, 6 * number)
        await asyncio.to_thread(way)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(postgres.start)

    await prove(on_postgres, task)


async def test_a_frozen_postgres_is_waited_for(on_postgres: Deployment, postgres: MortalPostgres) -> None:
    await start_workers(on_postgres, 2, slots=2)
    task = await on_postgres.submit(waves(4, 3, 0.3))

    for begun, frozen_s in ((3, SHORTER_THAN_TRUST_S), (5, 2 * LEASE_S)):
        await until_begun(on_postgres, begun)
        postgres.freeze()
        await asyncio.sleep(frozen_s)
        postgres.thaw()

    await prove(on_postgres, task)


@pytest.mark.parametrize(
    ("no_owner", "fault"),
    [("sqlite", "undone:0.05,lost_answer:0.05"), ("postgres", "lost_answer:0.1")],
    indirect=["no_owner"],
)
async def test_commits_that_end_in_an_error_are_neither_lost_nor_doubled(no_owner: Deployment, fault: str) -> None:
    faults = {"FAULT_COMMITS": fault, "FAULT_SEED": "1"}
    async with no_owner as service:
        await service.start_owners(1, **faults)
        await start_workers(service, 2, slots=4, **faults)

        tasks = [await service.submit(GROWING)]
        # How many commits a task takes depends on how many gather in one: work goes on until an answer was lost.
        while len(tasks) < MOST_TASKS and "fault: lost_answer" not in service.logs(all_of_it=True):
            tasks.append(await service.submit(waves(6, 4, 0.02)))
            await prove(service, *tasks)

        await prove(service, *tasks)
        assert "fault: lost_answer" in service.logs(all_of_it=True)


async def test_processes_whose_registration_was_reported_as_an_error_begin_all_the_same(no_owner: Deployment) -> None:
    async with no_owner as service:
        await service.start_owners(1, FAULT_LOSE="0")
        await start_workers(service, 1, FAULT_LOSE="0")
        task = await service.submit(waves(2, 2, 0.01))

        await prove(service, task)

        assert service.logs(all_of_it=True).count("fault: lost_answer") == 2
        assert [process.poll() for process in (*service.owners, *service.workers)] == [None, None]
        assert (
            len(await service.store.sessions.workers(include_gone=True))
            == len(await service.store.sessions.owners())
            == 1
        )


async def test_a_submission_that_was_reported_as_an_error_is_made_once(no_owner: Deployment) -> None:
    async with no_owner as service:
        session = make_session(project=str(service.home), cwd=str(service.home))
        plan, now_us = plan_from_json(waves(2, 2, 0.01), "test"), SystemClock().now_us()
        task = new_task(plan, {}, session, surface_of=no_tools, default_model="script", now_us=now_us)
        client = await open_client(service.settings)
        lost = lose_answers(client, 0, 2)  # each submission is written by one commit, and again

        for _ in range(2):
            await client.submit(Submission(session, task))
        await client.close()
        await service.start_owners(1)
        await start_workers(service, 1)

        await prove(service, await service.store.tasks.task(task.id))
        assert lost == [0, 2]
        assert [one.id for one in await service.store.tasks.list_tasks()] == [task.id]


def lose_answers(client: Client, *numbers: int) -> list[int]:
    """Let these commits of a client be told as errors although they were made; return those that were, so far."""
    lost: list[int] = []
    count = itertools.count()

    def faulty(transaction: RootTransaction) -> None:
        number = next(count)
        transaction.commit()
        if number in numbers:
            lost.append(number)
            raise ConnectionResetError("lost answer: the transaction was committed")

    assert isinstance(client.store, SqlStore)
    client.store._database._writer.committer = faulty
    return lost


@pytest.mark.spec("DAG-03")
async def test_a_worker_cut_off_from_the_database_stops_before_its_lease_ends(
    on_postgres: Deployment, postgres: MortalPostgres
) -> None:
    async with Proxy("127.0.0.1", postgres.port) as proxy:
        await start_workers(on_postgres, 1, slots=2, SOONG_DATABASE_URL=postgres.url_at(proxy.port))
        task = await on_postgres.submit(waves(2, 1, 1.9))
        await until_begun(on_postgres, 2)

        proxy.toxics.is_hole = True
        cut_at = time.monotonic_ns() // 1000
        await start_workers(on_postgres, 1, slots=2)
        await prove(on_postgres, task, at_rest=False)
        proxy.toxics.is_hole = False

        effects = read_effects(effects_file(on_postgres))
        cut_off = on_postgres.workers[0].pid
        # Its own clock ended them before anybody else could begin: nothing of it came to its end.
        assert [
            effect["at"] for effect in effects if effect["pid"] == cut_off and effect["monotonic_us"] > cut_at
        ] == []
        await on_postgres.until(lambda: _is_back(on_postgres, cut_off))


async def _is_back(service: Deployment, pid: int) -> bool:
    rows = [worker for worker in await service.store.sessions.workers(include_gone=True) if worker.pid == pid]
    return len(rows) == 2 and rows[-1].state.value == "live"


@AS_ROOT
async def test_an_sqlite_whose_disk_is_full_waits_for_room(redis_live: RedisServer, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk:
        async with Deployment(f"sqlite:///{disk / 'soong.db'}", redis_live.socket_url, tmp_path) as service:
            await start_workers(service, 1, slots=2)
            task = await service.submit(waves(2, 4, 0.3))
            await until_begun(service, 1)

            ballast = fill(disk)
            with pytest.raises(UnavailableError, match="full"):
                await _submit_until_refused(service)
            ballast.unlink()

            await service.finished(task)
            assert audit(service.database_url, effects=effects_file(service)).broken == []
        with closing(sqlite3.connect(disk / "soong.db")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def _submit_until_refused(service: Deployment) -> Task:
    """Submit plans until one is refused; what the log of the database has room for is still taken."""
    for _ in range(200):
        await service.submit(waves(8, 8, 0.0))
    raise AssertionError("the disk is not full")


@AS_ROOT
@pytest.mark.chaos
async def test_a_postgres_whose_disk_is_full_waits_for_room(redis_live: RedisServer, tmp_path: Path) -> None:
    with (
        short_folder("soong-disk-") as parent,  # pytest's own folders are closed to the user that PostgreSQL runs as
        small_disk(parent / "disk", "160m") as disk,
        mortal_postgres(folder=disk) as postgres,
    ):
        async with Deployment(postgres.url, redis_live.tcp_url, tmp_path) as service:
            await start_workers(service, 1, slots=2)
            task = await service.submit(waves(2, 6, 0.3))
            await until_begun(service, 1)

            ballast = fill(disk)
            with pytest.raises(UnavailableError):
                await _submit_until_refused(service)
            ballast.unlink()
            if not psutil.pid_exists(postgres.pid):  # without room for its log it gives up, and says so
                await asyncio.to_thread(postgres.start)

            await service.finished(task)
            assert audit(service.database_url, effects=effects_file(service)).broken == []


DEATHS = [
    f"{method}:{moment}"
    for method in ("adopt_sessions", "send", "write_verdict", "retry_step", "finish_task")
    for moment in ("before", "after")
]
"""Where an owner is killed: before it commits or sends, and after, when nobody has been told yet."""


@pytest.mark.timed
@pytest.mark.spec("DAG-07.b", "CARD-1.b")
@pytest.mark.parametrize("no_owner", [pytest.param("sqlite", marks=pytest.mark.chaos), "postgres"], indirect=True)
async def test_a_killed_owner_is_succeeded_by_one_that_runs_beside_it(no_owner: Deployment) -> None:
    async with no_owner as service:
        await service.start_owners(2)
        await start_workers(service, 1, slots=4)
        task = await service.submit(GROWING)
        waiting = await service.submit(waves(4, 3, 0.3))
        owner = await service.owner_of(task)
        await until_begun(service, 2)

        owner.kill()
        after = await _owner_after(service, task, owner.pid)

        await prove(service, task, waiting)
        assert after != owner.pid
        assert (await service.store.sessions.session(task.session_id)).owner_epoch == 2


@pytest.mark.spec("DAG-07")
@pytest.mark.parametrize(
    "deaths", [DEATHS[1::4], pytest.param(DEATHS, marks=pytest.mark.chaos)], ids=["some borders", "every border"]
)
async def test_owners_killed_at_one_border_after_another_leave_work_that_the_last_one_ends(
    no_owner: Deployment, deaths: list[str]
) -> None:
    async with no_owner as service:
        await start_workers(service, 1, slots=4)
        task = await service.submit(GROWING)

        for death in deaths:
            await service.start_owners(1, FAULT_DIE=death)
            assert await asyncio.to_thread(service.owners[-1].wait, 20) == -signal.SIGKILL, death
        await service.start_owners(1)

        await prove(service, task)


@pytest.mark.spec("OPS-12", "DAG-05")
async def test_a_map_step_whose_expansion_kills_two_owners_fails_and_the_third_lives(no_owner: Deployment) -> None:
    async with no_owner as service:
        await start_workers(service, 1, slots=4)
        task = await service.submit(GROWING)
        other = await service.submit(waves(2, 2, 0.05))

        for _ in range(2):
            await service.start_owners(1, FAULT_DIE="write_verdict:before")
            assert await asyncio.to_thread(service.owners[-1].wait, 20) == -signal.SIGKILL
        await service.start_owners(1)

        assert (await service.finished(task)).status is TaskStatus.FAILED
        step = (await service.steps(task))["each"]
        assert step.error is not None
        assert step.error.type == "poisoned"
        assert "its expansion was begun 2 times and ended its orchestrator each time" in step.error.message
        assert (await service.finished(other)).status is TaskStatus.COMPLETED
        assert service.owners[-1].poll() is None


@pytest.mark.timed
@pytest.mark.spec("CARD-1.a")
async def test_a_frozen_owner_is_succeeded_and_writes_nothing_when_it_thaws(no_owner: Deployment) -> None:
    async with no_owner as service:
        await service.start_owners(2)
        await start_workers(service, 1, slots=2)
        task = await service.submit(waves(2, 12, 0.3))
        frozen = await service.owner_of(task)
        await until_begun(service, 1)

        await freeze_between_writes(service, frozen)
        await _owner_after(service, task, frozen.pid)
        epoch = (await service.store.sessions.session(task.session_id)).owner_epoch
        os.kill(frozen.pid, signal.SIGCONT)

        await prove(service, task)
        # It is an owner again, under another name, and leaves the session to whom it now belongs.
        await service.until(lambda: _lives(service, frozen.pid))
        assert (await service.store.sessions.session(task.session_id)).owner_epoch == epoch == 2


async def test_several_owners_share_the_sessions_and_none_is_owned_twice(no_owner: Deployment) -> None:
    async with no_owner as service:
        await service.start_owners(3)
        await start_workers(service, 1, slots=8)

        tasks = [await service.submit(GROWING) for _ in range(6)]
        await until_done(service, tasks[0], 1)
        watched = [audit(service.database_url).broken for _ in range(5)]

        await prove(service, *tasks)
        assert watched == [[]] * 5
        assert {(await service.store.sessions.session(task.session_id)).owner_epoch for task in tasks} == {1}
        assert await done(service, tasks[0]) == 8


@pytest.mark.spec("EVT-03", "DAG-07")
async def test_run_folders_that_a_killed_owner_has_not_written_are_written_by_the_next(no_owner: Deployment) -> None:
    step: JsonObject = {
        "id": "a",
        "instructions": "Look around.",
        **calls(call("code.list_dir", path="."), output={"done": True}),
    }
    async with no_owner as service:
        await start_workers(service, 1)
        await service.start_owners(1, FAULT_DIE="finish_task:done")
        task = await service.submit({"title": "t", "steps": [step]})
        assert await asyncio.to_thread(service.owners[-1].wait, 20) == -signal.SIGKILL
        ended = await service.store.tasks.task(task.id)
        folder = service.settings.home / "runs" / (await service.steps(task))["a"].run_id
        unwritten = folder.joinpath("events.jsonl").exists()

        await service.start_owners(1)

        async def is_written() -> bool:
            return folder.joinpath("logs", "tools.jsonl").exists() and not await service.store.tasks.unrecorded("")

        await service.until(is_written)
        assert ended.status is TaskStatus.COMPLETED
        assert not unwritten
        assert "code.list_dir" in folder.joinpath("logs", "tools.jsonl").read_text(encoding="utf-8")


async def _owner_after(service: Deployment, task: Task, pid: int) -> int:
    """Return the process that owns a session after ``pid`` did."""

    async def is_taken_over() -> bool:
        session = await service.store.sessions.session(task.session_id)
        return session.owner_epoch > 1 and session.owner_id != ""

    began_s = time.monotonic()
    await service.until(is_taken_over)
    assert promised(time.monotonic() - began_s, 2 * LEASE_S + 5 * SWEEP_S)
    return (await service.owner_of(task)).pid


async def _lives(service: Deployment, pid: int) -> bool:
    return any(owner.pid == pid and owner.state is ProcessState.LIVE for owner in await service.store.sessions.owners())
