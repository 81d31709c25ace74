"""Owners die, hang and compete: a session has one at a time; the next goes on where the rows stand (faults 12, 13)."""

import asyncio
import os
import signal
import time

import pytest

from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.tasks.step import Task
from tests.scripted import call, calls
from tests.system.auditor import audit
from tests.system.deployment import LEASE_S, SWEEP_S, Deployment, promised
from tests.system.faults.scene import (
    GROWING,
    done,
    freeze_between_writes,
    prove,
    start_workers,
    until_begun,
    until_done,
    waves,
)

DEATHS = [
    f"{method}:{moment}"
    for method in ("adopt_sessions", "send", "expand", "retry_step", "finish_task")
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
            await service.start_owners(1, FAULT_DIE="expand:before")
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
