"""Consent raised in worker processes and answered by the session's one callback."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from soong.shared.core.identity import Role
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.engine.tasks.step import Outcome, Step, Task
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from tests.system.deployment import Deployment

pytestmark = pytest.mark.timeout(120)

STORY = (
    EventType.TOOL_QUEUED,
    EventType.PERMISSION_REQUESTED,
    EventType.PERMISSION_DECIDED,
    EventType.TOOL_STARTED,
    EventType.TOOL_COMPLETED,
)
"""What a log says of a call that was asked about, in this order."""

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


@pytest.mark.spec("CARD-3.b", "PER-01", "PER-06")
async def test_allow_once_asks_for_each_and_says_who_asks_from_rows(service: Deployment, folder: Path) -> None:
    person = Person(Choice.ALLOW_ONCE)

    task = await run(service, folder, person, workers=2)

    runs = {each.id: each.identity for each in await service.store.runs.list_runs(task_id=task.id)}
    root = runs[task.root_run_id]
    assert len(person.asked) == 2
    assert len({request.identity.run_id for request in person.asked}) == 2
    for request in person.asked:
        identity = request.identity
        assert identity == runs[identity.run_id]
        assert (identity.parent_run_id, identity.parent_agent_id) == (root.run_id, root.agent_id)
        assert identity.role is Role.WORKER
        assert request.tool == "code.write_file"
        assert Path(request.shown).parent == folder
        assert request.proof == ""
        types = [event.type for event in await service.store.runs.events(identity.run_id)]
        assert [one for one in types if one in STORY] == list(STORY)


@pytest.mark.spec("PER-03.c", "DAG-10")
async def test_a_denial_reaches_the_model_and_the_run_goes_on(service: Deployment, folder: Path) -> None:
    task = await run(service, folder, Person(Choice.DENY))

    assert task.status is TaskStatus.COMPLETED
    assert {step.outcome for step in await writers(service, task)} == {Outcome.PARTIAL}
    assert (EventType.TOOL_DENIED, "permission_denied") in await events_of(service, task)
    assert written(folder) == []


async def broken(request: PermissionRequest) -> PermissionDecision:
    raise RuntimeError("the window was closed")


async def silent(request: PermissionRequest) -> PermissionDecision:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


@pytest.mark.spec("PER-05.d", "PER-14.a")
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


@pytest.mark.spec("PER-10")
async def test_a_rule_for_exactly_that_scope_asks_nobody(service: Deployment, folder: Path) -> None:
    person = Person(Choice.DENY)

    task = await run(service, folder, person, allow=(f"code.write_file:{folder}",))

    assert person.asked == []
    assert task.status is TaskStatus.COMPLETED
    assert written(folder) == ["left.txt", "right.txt"]


async def test_a_session_that_asks_nobody_denies(service: Deployment, folder: Path) -> None:
    task = await run(service, folder, None, approval_mode=ApprovalMode.DENY)

    assert {step.outcome for step in await writers(service, task)} == {Outcome.PARTIAL}
    assert written(folder) == []


@pytest.mark.spec("PER-13", "PER-15", "DAG-07")
async def test_a_question_survives_the_pause_of_its_task(service: Deployment, folder: Path) -> None:
    await service.start_workers(1, slots=4)
    task = await service.submit(PLAN, {"folder": str(folder)}, project=folder.parent)

    async def both_wait() -> bool:
        return len(await service.store.consent.pending(task.session_id)) == 2

    await service.until(both_wait)
    questions = {request.id for request in await service.store.consent.pending(task.session_id)}
    await service.command(task, "pause")

    async def nothing_is_leased() -> bool:
        return not any(step.status.is_leased for step in (await service.steps(task)).values())

    await service.until(nothing_is_leased)
    assert {request.id for request in await service.store.consent.pending(task.session_id)} == questions
    person = Person(Choice.ALLOW_ONCE)
    service.attach(task.session_id, person)
    await service.command(task, "resume")
    ended = await service.finished(task)

    assert ended.status is TaskStatus.COMPLETED
    assert written(folder) == ["left.txt", "right.txt"]
    assert {request.id for request in person.asked} == questions
    assert {step.outcome for step in await writers(service, task)} == {Outcome.CLEAN}
