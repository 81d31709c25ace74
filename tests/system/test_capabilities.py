"""A step goes to a worker that has what it needs, and waits where none has: tools, functions, labels (DIS-04)."""

from pathlib import Path

import pytest

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.sandbox.rooted import mark_project
from tests.scripted import call, calls
from tests.system.deployment import ON_SQLITE, Deployment

pytestmark = [ON_SQLITE, pytest.mark.spec("CARD-2", "DIS-04")]

TOOL = "tests.system.faults.effect_tool"
EXTRA = {"tools": (TOOL,), "no_worker_s": 0.5}


async def test_steps_in_a_marked_project_go_to_workers_that_have_it(service: Deployment, tmp_path: Path) -> None:
    project = tmp_path / "shop"
    project.mkdir()
    mark_project(project)
    look: JsonObject = {
        "id": "look",
        "instructions": "Look around.",
        **calls(call("code.list_dir", path="."), output={"done": True}),
    }
    await service.start_workers(1, slots=4)
    task = await service.submit({"title": "shop", "steps": [look]}, project=project)

    async def is_told_of() -> bool:
        return bool(await reasons(service, task.root_run_id))

    await service.until(is_told_of)
    await service.start_workers(1, slots=4, SOONG_PROJECTS=str(project))
    ended = await service.finished(task)

    events = await service.store.runs.events((await service.steps(task))["look"].run_id)
    (claimed,) = [event.data["worker"] for event in events if event.type == EventType.STEP_CLAIMED]
    by_pid = {worker.id: worker.pid for worker in await service.store.sessions.workers()}
    assert ended.status is TaskStatus.COMPLETED
    assert await reasons(service, task.root_run_id) == {f"no capable worker: needs the project at {project}"}
    assert by_pid[str(claimed)] == service.workers[1].pid


async def reasons(service: Deployment, run_id: str) -> set[str]:
    """Return what is told of steps that nobody is able to run."""
    events = await service.store.runs.events(run_id)
    return {str(event.data["reason"]) for event in events if event.type == EventType.STEP_UNCLAIMABLE}


@pytest.mark.spec("CARD-5.a", "CARD-5.c", "DIS-03.c")
async def test_a_worker_that_is_added_takes_what_has_no_slot_and_both_work_at_once(service: Deployment) -> None:
    sleeps: list[Json] = [
        {"id": f"s{number}", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 3600}}
        for number in range(3)
    ]
    await service.start_workers(1, slots=1)
    task = await service.submit({"title": "wide", "steps": sleeps})

    async def running_on() -> set[str]:
        return {step.worker_id for step in (await service.steps(task)).values() if step.status is StepStatus.RUNNING}

    async def run(workers: int) -> bool:
        return len(await running_on()) == workers

    await service.until(lambda: run(1))
    (first,) = await running_on()
    await service.start_workers(1, slots=1)
    await service.until(lambda: run(2))

    statuses = sorted(step.status for step in (await service.steps(task)).values())
    assert first in await running_on()
    assert statuses == sorted([StepStatus.READY, StepStatus.RUNNING, StepStatus.RUNNING])
