"""Consent raised in worker processes and answered by the session's one callback."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from soong.shared.engine.runs.events import EventType
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.tasks.step import Step, Task
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from tests.system.deployment import ON_POSTGRES, ON_SQLITE, Deployment

PLAN = Path(__file__).parents[2] / "examples" / "approve.yaml"


@dataclass
class Person:
    """Answers every question the same way and remembers what was asked, and how many questions were open at once."""

    choice: Choice
    asked: list[PermissionRequest] = field(default_factory=list)

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        self.asked.append(request)
        await asyncio.sleep(0.3)  # a person takes time: the other step's question is waiting by then
        return PermissionDecision(self.choice, reason="seen")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


async def run(
    service: Deployment, folder: Path, callback: Callable[..., object] | None, *, workers: int = 1, **more: object
) -> Task:
    await service.start_workers(workers, slots=2 // workers)
    task = await service.submit(PLAN, {"folder": str(folder)}, project=folder.parent, callback=callback, **more)  # type: ignore[arg-type]
    return await service.finished(task)


async def writers(service: Deployment, task: Task) -> list[Step]:
    """Return the two steps that ask: the map's children."""
    return [step for step in (await service.steps(task)).values() if step.map_key]


async def events_of(service: Deployment, task: Task) -> list[tuple[str, str]]:
    """Return (type, error or reason) of every event of the task's runs."""
    runs = await service.store.runs.list_runs(task_id=task.id)
    events = [event for run in runs for event in await service.store.runs.events(run.id)]
    return [(event.type, str(event.data.get("error") or event.data.get("reason") or "")) for event in events]


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.spec("CARD-3.a", "PER-07.a", "PER-04")
@ON_POSTGRES
async def test_a_grant_for_the_session_answers_the_same_scope_in_another_process(
    service: Deployment, folder: Path
) -> None:
    person = Person(Choice.ALLOW_FOR_SESSION)

    task = await run(service, folder, person, workers=2)

    workers = {step.worker_id for step in await writers(service, task)}
    assert task.status is TaskStatus.COMPLETED
    assert len(workers) == 2
    assert len(person.asked) == 1
    assert written(folder) == ["left.txt", "right.txt"]


async def broken(request: PermissionRequest) -> PermissionDecision:
    raise RuntimeError("the window was closed")


async def silent(request: PermissionRequest) -> PermissionDecision:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


@pytest.mark.spec("PER-05.d", "PER-14.a")
@ON_SQLITE
@pytest.mark.parametrize(
    ("callback", "error"),
    [(None, "permission_no_callback"), (broken, "permission_failed"), (silent, "permission_timeout")],
    ids=["no callback", "callback raises", "callback too slow"],
)
async def test_every_way_of_not_being_answered_is_distinguished(
    service: Deployment, folder: Path, callback: Callable[..., object] | None, error: str
) -> None:
    task = await run(service, folder, callback)

    events = await events_of(service, task)
    assert task.status is TaskStatus.COMPLETED
    assert (EventType.TOOL_DENIED, error) in events
    assert EventType.PERMISSION_FAILED in {type_ for type_, _ in events}
    assert written(folder) == []
