"""Workers that begin anew after so many runs or so much memory: same process, nothing lost, nothing twice."""

import asyncio
import os
import signal
import time

import pytest

from soong.shared.engine.runs.events import EventType
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task
from tests.system.deployment import ON_SQLITE, Deployment
from tests.system.faults.scene import effect_step, prove, start_workers, until_begun, until_done, waves

pytestmark = ON_SQLITE


async def lives(service: Deployment, pid: int) -> list[Worker]:
    """Return the incarnations that a process has had, the first one first."""
    return [worker for worker in await service.store.sessions.workers(include_gone=True) if worker.pid == pid]


async def handed_back(service: Deployment, task: Task) -> int:
    types = [
        event.type
        for step in await service.store.tasks.steps(task.id)
        for event in await service.store.runs.events(step.run_id)
    ]
    return types.count(EventType.STEP_RELEASED)


@pytest.mark.spec("OPS-06.a", "OPS-06.b")
async def test_workers_that_recycle_after_a_few_runs_lose_and_double_nothing(service: Deployment) -> None:
    await start_workers(service, 2, slots=2, SOONG_RECYCLE_AFTER="8")
    pids = [worker.pid for worker in service.workers]
    tasks = [await service.submit(waves(4, 5, 0.01))]

    async def have_recycled() -> bool:
        counts = [len(await lives(service, pid)) for pid in pids]
        return min(counts) >= 2 and max(counts) >= 3

    while not await have_recycled():
        await service.finished(tasks[-1])
        tasks.append(await service.submit(waves(4, 5, 0.01)))
    await prove(service, *tasks)

    assert [worker.pid for worker in service.workers if worker.poll() is None] == pids
    assert {step.lost_leases for task in tasks for step in await service.store.tasks.steps(task.id)} == {0}
    assert sum([await handed_back(service, task) for task in tasks]) == 0


@pytest.mark.spec("OPS-06")
async def test_a_worker_asked_to_stop_while_it_recycles_stops(service: Deployment) -> None:
    await start_workers(service, 1, slots=2, SOONG_RECYCLE_AFTER="1", SOONG_DRAIN_S="0.2")
    task = await service.submit({"title": "t", "steps": [effect_step("long", 30.0), effect_step("short", 0.01)]})
    await until_begun(service, 2)
    await until_done(service, task, 1)
    worker = service.workers[0]
    told_at = time.monotonic()

    worker.send_signal(signal.SIGTERM)

    assert await asyncio.to_thread(worker.wait, 20) == 0
    assert time.monotonic() - told_at < 10
    assert [one.state for one in await lives(service, worker.pid)] == [ProcessState.GONE]
    assert (await service.steps(task))["long"].status is StepStatus.READY


async def test_a_worker_that_has_recycled_still_ends_with_its_parent(service: Deployment) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    worker = service.spawn_with_parent(reading, SOONG_RECYCLE_AFTER="1")
    os.close(reading)
    task = await service.submit({"title": "t", "steps": [{"id": "a", "kind": "python", "call": "builtin.sleep"}]})
    assert (await service.finished(task)).status is TaskStatus.COMPLETED

    async def has_recycled() -> bool:
        rows = await lives(service, worker.pid)
        return len(rows) == 2 and rows[-1].state is ProcessState.LIVE

    await service.until(has_recycled)
    os.close(writing)

    assert await asyncio.to_thread(worker.wait, 15) in (0, 1)
