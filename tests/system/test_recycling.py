"""Workers by their lives: forked from a service, and begun anew after so many runs or so much memory."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from soong.shared.engine.runs.events import EventType
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.sandbox.command import HAS_SUBREAPER
from tests.system.cli_scene import CliHarness, scene, until
from tests.system.deployment import ON_SQLITE, Deployment
from tests.system.faults.scene import effect_step, prove, start_workers, until_begun, until_done, waves


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


@ON_SQLITE
@pytest.mark.spec("OPS-06.a", "OPS-06.b")
async def test_workers_that_recycle_after_a_few_runs_lose_and_double_nothing(service: Deployment) -> None:
    await start_workers(service, 2, slots=2, SOONG_RECYCLE_AFTER="8")
    pids = [worker.pid for worker in service.workers]
    tasks = [await service.submit(waves(4, 2, 0.01))]

    async def have_recycled() -> bool:
        counts = [len(await lives(service, pid)) for pid in pids]
        return min(counts) >= 2 and max(counts) >= 3

    while not await have_recycled():
        await service.finished(tasks[-1])
        tasks.append(await service.submit(waves(4, 2, 0.01)))
    await prove(service, *tasks)

    assert [worker.pid for worker in service.workers if worker.poll() is None] == pids
    assert {step.lost_leases for task in tasks for step in await service.store.tasks.steps(task.id)} == {0}
    assert sum([await handed_back(service, task) for task in tasks]) == 0


@ON_SQLITE
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


@ON_SQLITE
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


ONE = "title: One\nsteps:\n  - {id: a, kind: python, call: builtin.echo, inputs: {x: 1}}\n"


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        one.environment.update(SOONG_WORKERS="2")
        yield one


def is_program(process: psutil.Process) -> bool:
    """Say whether a worker was started as a program: its own environment block names its pipes."""
    return "SOONG_PARENT_FD" in process.environ()


def started(cli: CliHarness) -> int:
    service = cli.start("up")
    until(lambda: (cli.home / "service.json").exists() and len(cli.workers()) == 2, "two workers are there", cli.logs)
    return service.pid


def opened(process: psutil.Process) -> Sequence[str]:
    found = []
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(str(entry.readlink()))
    return sorted(found)


@pytest.mark.skipif(not HAS_SUBREAPER, reason="workers are forked on Linux alone")
@pytest.mark.spec("OPS-01", "OPS-06")
def test_forked_workers_run_steps_and_a_killed_one_is_followed_by_a_program(cli: CliHarness) -> None:
    service = started(cli)
    first = cli.workers()

    assert cli.run("run", cli.plan(ONE)).returncode == 0
    assert [is_program(process) for process in first] == [False, False]
    first[0].kill()
    until(lambda: set(cli.workers()) - set(first) and first[0] not in cli.workers(), "another has come", cli.logs)

    assert sorted(is_program(process) for process in cli.workers()) == [False, True]
    assert cli.run("run", cli.plan(ONE)).returncode == 0
    psutil.Process(service).send_signal(signal.SIGINT)
    cli.assert_nothing_left()


@pytest.mark.skipif(not HAS_SUBREAPER, reason="workers are forked on Linux alone")
@pytest.mark.spec("OPS-12")
def test_a_forked_worker_has_no_descriptor_of_its_service(cli: CliHarness) -> None:
    service = psutil.Process(started(cli))

    named = {name for name in opened(service) if name.startswith("/")}
    held = {name for name in named if not name.startswith("/dev/") or name.startswith(str(cli.home))}
    shared = {name for process in cli.workers() for name in held & set(opened(process))}

    assert f"{cli.home}/service.lock" in held
    # The database and its lock are what a worker opens itself; it says what it has to say where its service does.
    assert not {name for name in shared if not name.startswith((f"{cli.home}/soong.db", f"{cli.home}/logs/warm-"))}
    service.send_signal(signal.SIGINT)
    cli.assert_nothing_left()


@pytest.mark.skipif(not HAS_SUBREAPER, reason="workers are forked on Linux alone")
@pytest.mark.spec("OPS-01")
def test_a_service_that_cannot_start_leaves_no_worker_at_its_gate(cli: CliHarness) -> None:
    holder = started(cli)
    second = cli.start("up")

    assert second.wait(60) == 75
    until(lambda: len(cli.workers()) == 2, "only the first has workers", cli.logs)
    psutil.Process(holder).send_signal(signal.SIGINT)
    cli.assert_nothing_left()
