"""Ready steps that no living worker is able to take wait, and are reported; the needs of steps."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.operations.outcome import snapshot_of
from soong.orchestrator.operations.preparation import prepared
from soong.orchestrator.operations.submissions import SubmissionBody, new_ids
from soong.orchestrator.owner.workers import UnschedulableSteps
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.settings import Settings
from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.tasks.step import NewStep, Task, WaitingSteps
from soong.shared.engine.wire.notifier import projects_among
from soong.shared.sandbox.rooted import mark_project
from tests.model.memory.store import MemoryStore
from tests.one_loop import FAST, OneLoop
from tests.waiting import looks

SETTINGS = FAST.model_copy(update={"sweep_s": 0.02, "no_worker_s": 0.1})
PLAN: JsonObject = {
    "title": "t",
    "steps": [
        {"id": "plain", "kind": "python", "call": "builtin.echo"},
        {"id": "special", "kind": "python", "call": "builtin.echo", "needs": ["gpu"]},
        {"id": "too", "kind": "python", "call": "builtin.echo", "needs": ["gpu"]},
    ],
}


@pytest.fixture
async def service() -> AsyncIterator[OneLoop]:
    async with OneLoop(MemoryStore(), workers=1, settings=SETTINGS) as service:
        yield service


async def told(service: OneLoop, task: Task, number: int = 1) -> list[Event]:
    """Return what the task's log says of workers that are missing, once it says it so often."""
    found: list[Event] = []
    async for _ in looks(10):
        events = await service.store.runs.events(task.root_run_id)
        found = [event for event in events if event.type == EventType.STEP_UNCLAIMABLE]
        if len(found) >= number:
            break
    return found


@pytest.mark.spec("DIS-04")
async def test_what_nobody_is_able_to_run_is_reported_once_and_by_name(service: OneLoop) -> None:
    _, task = await service.submit(PLAN)

    (event,) = await told(service, task)
    await asyncio.sleep(3 * SETTINGS.no_worker_s)

    view = await snapshot_of(service.store, task.id)
    assert event.data["steps"] == ["special", "too"]
    assert event.data["reason"] == "no capable worker: needs the label 'gpu'"
    assert view.lacks == {
        f"{task.id}/{name}": "no capable worker: needs the label 'gpu'" for name in ("special", "too")
    }
    assert len(await told(service, task)) == 1


@pytest.mark.spec("DIS-04")
async def test_a_session_that_was_taken_over_meanwhile_leaves_the_others_to_be_notified() -> None:
    patient = SETTINGS.model_copy(update={"no_worker_s": 1000.0})
    async with OneLoop(MemoryStore(), workers=1, settings=patient) as service:
        rows = service.store
        tasks = [(await service.submit(PLAN))[1] for _ in range(2)]
        lost, kept = [(await rows.sessions.session(task.session_id)).ownership for task in tasks]
        needs = {step.needs for step in await rows.tasks.steps(tasks[0].id) if step.step_id == "special"}.pop()
        unclaimable = {WaitingSteps(own.session_id, "default", needs): "nobody has it" for own in (lost, kept)}
        telling = UnschedulableSteps(rows.tasks, rows.runs, SystemClock(), patience_s=0.0)

        await telling.tell(unclaimable, {own.session_id: own for own in (replace(lost, epoch=lost.epoch - 1), kept)})

        (event,) = await told(service, tasks[1])
        assert event.data["steps"] == ["special", "too"]
        assert EventType.STEP_UNCLAIMABLE not in {one.type for one in await rows.runs.events(tasks[0].root_run_id)}


STEPS: list[Json] = [
    {"id": "agent", "instructions": "x", "script": "builtin.echo"},
    {"id": "bare", "instructions": "x", "script": "builtin.echo", "allowed_tools": []},
    {"id": "function", "kind": "python", "call": "builtin.echo"},
    {"id": "map", "kind": "map", "over": [1], "step": {"instructions": "x", "script": "builtin.echo"}},
]


def submitted(project: Path, *, needs_project: bool) -> dict[str, NewStep]:
    catalogue = replace(Catalogue(), needs_project=needs_project)
    plan: Any = {"title": "t", "steps": STEPS}
    body = SubmissionBody.model_construct(plan=plan, project=str(project), approval_mode="deny", model="script")
    made = prepared(body, "local", new_ids(), catalogue, Settings())
    return {step.step_id: step for step in made.task.steps}


@pytest.mark.spec("CARD-2")
def test_steps_that_use_tools_need_the_marked_project_at_its_path(tmp_path: Path) -> None:
    need = f"project:{mark_project(tmp_path)}@{tmp_path}"

    steps = submitted(tmp_path, needs_project=True)

    assert {name: projects_among(step.needs) for name, step in steps.items()} == {
        "agent": (need,),
        "bare": (),
        "function": (),
        "map": (need,),
    }


def test_nothing_is_needed_without_a_mark_or_where_all_workers_are_here(tmp_path: Path) -> None:
    assert not any(projects_among(step.needs) for step in submitted(tmp_path, needs_project=True).values())

    mark_project(tmp_path)

    assert not any(projects_among(step.needs) for step in submitted(tmp_path, needs_project=False).values())
    assert not Catalogue.of(Settings(agent_home=tmp_path)).needs_project
    assert Catalogue.of(Settings(agent_home=tmp_path, database_url="postgresql://db/soong")).needs_project
