"""What must hold when a process dies: nothing is lost, nothing finished runs again, nothing is accepted twice."""

import asyncio
import os
import signal
import time

import pytest

import tests.system.functions  # noqa: F401  # the plan check knows the functions of its own process
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task
from tests.system.deployment import LEASE_S, SWEEP_S, Deployment, end, promised

pytestmark = pytest.mark.timeout(120)

# Where the store decides nothing, one of them is enough.
ON_SQLITE = pytest.mark.parametrize("service", ["sqlite"], indirect=True)
ON_POSTGRES = pytest.mark.parametrize("service", ["postgres"], indirect=True)


def sleep_step(step_id: str, seconds: float, *depends_on: str) -> dict[str, Json]:
    return {
        "id": step_id,
        "kind": "python",
        "call": "builtin.sleep",
        "inputs": {"seconds": seconds, "name": step_id},
        "depends_on": list(depends_on),
    }


def fan(width: int, seconds: float) -> dict[str, Json]:
    names = [f"s{index}" for index in range(width)]
    return {
        "title": "fan",
        "steps": [
            sleep_step("root", 0.01),
            *(sleep_step(name, seconds, "root") for name in names),
            sleep_step("join", 0.01, *names),
        ],
    }


async def completions(service: Deployment, task: Task) -> dict[str, int]:
    """Return how often each step's completion was accepted, over all of its runs."""
    counts: dict[str, int] = {}
    for run in await service.store.runs.list_runs(task_id=task.id):
        for event in await service.store.runs.events(run.id):
            if event.type == EventType.STEP_COMPLETED:
                counts[run.identity.step_key] = counts.get(run.identity.step_key, 0) + 1
    return counts


async def is_running(service: Deployment, task: Task, step_id: str) -> bool:
    return (await service.steps(task))[step_id].status.is_leased


@pytest.mark.timed
@pytest.mark.spec("DAG-07.a", "DAG-03.c")
async def test_a_killed_worker_costs_a_lease_and_no_finished_step_runs_again(service: Deployment) -> None:
    await service.start_workers(2, slots=4)
    task = await service.submit(fan(40, 0.7))

    async def both_work_and_some_are_done() -> bool:
        steps = (await service.steps(task)).values()
        done = sum(step.status is StepStatus.COMPLETED for step in steps)
        return done >= 3 and len({step.worker_id for step in steps if step.status.is_leased}) == 2

    await service.until(both_work_and_some_are_done)
    before = await service.steps(task)
    victim = service.workers[0]
    held = [step for step in before.values() if step.status.is_leased and await service.worker_of(step) is victim]
    os.kill(victim.pid, signal.SIGKILL)
    killed_at = time.monotonic()

    async def all_were_taken_over() -> bool:
        # What ended between the look and the kill keeps its fence; everything else got a higher one.
        now = await service.steps(task)
        return all(now[step.step_id].status.is_terminal or now[step.step_id].fence > step.fence for step in held)

    await service.until(all_were_taken_over)
    recovery_s = time.monotonic() - killed_at
    ended = await service.finished(task)

    after = await service.steps(task)
    assert held
    assert ended.status is TaskStatus.COMPLETED
    assert promised(recovery_s, 2 * LEASE_S + 2 * SWEEP_S)
    assert set((await completions(service, task)).values()) == {1}
    for name, step in before.items():
        if step.status is StepStatus.COMPLETED:
            assert after[name].fence == step.fence


@ON_POSTGRES
@pytest.mark.spec("OPS-06.a", "OPS-06.b")
async def test_a_worker_asked_to_stop_releases_what_it_cannot_finish(service: Deployment) -> None:
    await service.start_workers(1, SOONG_DRAIN_S="0.3")
    task = await service.submit({"title": "t", "steps": [sleep_step("long", 3)]})
    await service.until(lambda: is_running(service, task, "long"))

    service.workers[0].send_signal(signal.SIGTERM)
    code = await asyncio.to_thread(service.workers[0].wait, 20)

    handed_back = (await service.steps(task))["long"]
    assert code == 0
    assert handed_back.status is StepStatus.READY
    assert handed_back.lost_leases == 0
    await service.start_workers(1)
    ended = await service.finished(task)
    assert ended.status is TaskStatus.COMPLETED
    assert (await service.steps(task))["long"].fence == handed_back.fence + 1


@ON_SQLITE
async def test_a_worker_asked_to_stop_does_not_wait_for_a_function_that_blocks(service: Deployment) -> None:
    await service.start_workers(1, SOONG_DRAIN_S="0.2", SOONG_FUNCTIONS="tests.system.functions")
    task = await service.submit({"title": "t", "steps": [{"id": "b", "kind": "python", "call": "test.block"}]})
    await service.until(lambda: is_running(service, task, "b"))

    service.workers[0].send_signal(signal.SIGTERM)

    assert await asyncio.to_thread(service.workers[0].wait, 20) == 0
    assert (await service.steps(task))["b"].status is StepStatus.READY


@ON_POSTGRES
@pytest.mark.spec("DAG-03.b")
async def test_a_frozen_worker_writes_nothing_when_it_thaws(service: Deployment) -> None:
    await service.start_workers(1)
    task = await service.submit({"title": "t", "steps": [sleep_step("slow", 1.0)]})
    await service.until(lambda: is_running(service, task, "slow"))
    frozen = service.workers[0]
    os.kill(frozen.pid, signal.SIGSTOP)
    await service.start_workers(1)

    ended = await service.finished(task)
    fence = (await service.steps(task))["slow"].fence
    os.kill(frozen.pid, signal.SIGCONT)

    async def thawed_is_a_new_incarnation() -> bool:
        return sum(worker.pid == frozen.pid for worker in await service.store.sessions.workers()) == 1

    await service.until(thawed_is_a_new_incarnation)
    assert ended.status is TaskStatus.COMPLETED
    assert fence > 1
    assert (await service.steps(task))["slow"].fence == fence
    assert await completions(service, task) == {f"{task.id}/slow": 1}


@ON_SQLITE
@pytest.mark.spec("DAG-05.d")
async def test_a_step_that_kills_its_worker_is_quarantined(service: Deployment) -> None:
    poison: dict[str, Json] = {"id": "poison", "kind": "python", "call": "test.kill_worker"}
    task = await service.submit({"title": "t", "steps": [poison]})

    for _ in range(3):
        await service.start_dying_worker(SOONG_FUNCTIONS="tests.system.functions")
    ended = await service.finished(task)

    step = (await service.steps(task))["poison"]
    assert ended.status is TaskStatus.FAILED
    assert step.error is not None
    assert step.error.type == "poisoned"
    assert step.lost_leases == 3


@ON_POSTGRES
@pytest.mark.spec("DAG-07.b")
async def test_a_successor_goes_on_where_a_dead_orchestrator_stopped(service: Deployment) -> None:
    await service.start_workers(1, slots=2)
    task = await service.submit(fan(6, 0.3))
    await service.until(lambda: is_running(service, task, "s0"))

    await service.kill_orchestrator()
    await service.start_orchestrator()
    ended = await service.finished(task)

    assert ended.status is TaskStatus.COMPLETED
    assert set((await completions(service, task)).values()) == {1}


@ON_SQLITE
@pytest.mark.spec("DAG-06")
async def test_a_paused_task_is_released_and_goes_on_when_resumed(service: Deployment) -> None:
    await service.start_workers(1)
    task = await service.submit({"title": "t", "steps": [sleep_step("a", 3), sleep_step("b", 0.01, "a")]})
    await service.until(lambda: is_running(service, task, "a"))

    await service.command(task, "pause")

    async def is_handed_back() -> bool:
        return (await service.steps(task))["a"].status is StepStatus.READY

    await service.until(is_handed_back)
    assert (await service.store.tasks.task(task.id)).status is TaskStatus.PAUSED
    await service.command(task, "resume")
    assert (await service.finished(task)).status is TaskStatus.COMPLETED


@ON_POSTGRES
@pytest.mark.spec("DAG-06")
async def test_cancelling_reaches_running_and_waiting_steps(service: Deployment) -> None:
    await service.start_workers(1)
    task = await service.submit({"title": "t", "steps": [sleep_step("a", 30), sleep_step("b", 0.01, "a")]})
    await service.until(lambda: is_running(service, task, "a"))

    await service.command(task, "cancel")

    async def all_are_cancelled() -> bool:
        return {step.status for step in (await service.steps(task)).values()} == {StepStatus.CANCELLED}

    await service.until(all_are_cancelled)
    assert (await service.store.tasks.task(task.id)).status is TaskStatus.CANCELLED


@ON_SQLITE
async def test_a_worker_ends_with_its_parent(service: Deployment) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    worker = service.spawn_with_parent(reading)
    os.close(reading)

    async def is_registered() -> bool:
        return any(row.pid == worker.pid for row in await service.store.sessions.workers())

    await service.until(is_registered)
    os.close(writing)

    # 1: it had not begun to work yet, and so had nothing to hand back.
    assert await asyncio.to_thread(worker.wait, 15) in (0, 1)
    end(worker)
