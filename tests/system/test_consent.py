"""Consent raised in worker processes: answered by the session's one callback, or waited for without a slot (PER-13)."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.record import RunStatus
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Outcome, Task
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from soong.testing import LocalService
from tests.model.builders import make_answer
from tests.scripted import call, calls
from tests.system.deployment import ON_POSTGRES, ON_SQLITE, Deployment, end

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

    workers = {step.worker_id for step in (await service.steps(task)).values() if step.map_key}
    assert task.status is TaskStatus.COMPLETED
    assert len(workers) == 2
    assert len(person.asked) == 1
    assert written(folder) == ["left.txt", "right.txt"]


async def broken(_service: LocalService) -> PermissionDecision:
    raise RuntimeError("the window was closed")


async def silent(service: LocalService) -> PermissionDecision:
    while True:
        await asyncio.sleep(0.01)
        service.clock.advance(60)


@pytest.mark.spec("PER-05.d", "PER-14.a")
@pytest.mark.parametrize(
    ("callback", "error"),
    [(None, "permission_no_callback"), (broken, "permission_failed"), (silent, "permission_timeout")],
    ids=["no callback", "callback raises", "callback too slow"],
)
async def test_every_way_of_not_being_answered_is_distinguished(
    soong_service: LocalService, callback: Callable[..., Awaitable[PermissionDecision]] | None, error: str
) -> None:
    answer = None if callback is None else lambda _request: callback(soong_service)

    result = await soong_service.run(PLAN, permission_callback=answer)

    assert result.status is TaskStatus.COMPLETED
    assert [(one.error, one.author) for one in result.denials] == [(error, "system")] * 2
    assert not (soong_service.project / "notes").exists()


PARKS: dict[str, str] = {"SOONG_PARK_AFTER_S": "0.2"}
"""The setting of a worker whose waiting runs park soon."""


def appends(file: Path) -> dict[str, Json]:
    """Return a step that reads a file and then asks to add a line to it: done twice, that shows."""
    told = "import sys; open(sys.argv[1], 'a').write('line\\n')"
    return {
        "id": "asks",
        "priority": 1,
        "instructions": "x",
        "allowed_tools": ["code.run_command", "code.read_file"],
        **calls(
            call("code.read_file", path=str(file)), call("code.run_command", argv=["python3", "-c", told, str(file)])
        ),
    }


def plan(file: Path, others: int = 2) -> JsonObject:
    """Return a plan whose first step asks a person, and whose others ask nobody."""
    rest: list[Json] = [{"id": f"other{number}", "kind": "python", "call": "builtin.echo"} for number in range(others)]
    return {"title": "asks", "steps": [appends(file), *rest]}


@pytest.fixture
def file(service: Deployment) -> Path:
    """A file to write to, in a deployment that lets commands be asked for."""
    (service.settings.home / "config.toml").write_text("[tools]\ndangerous = true\n", encoding="utf-8")
    file = service.home / "lines.txt"
    file.write_text("", encoding="utf-8")
    return file


async def asking(service: Deployment, file: Path) -> tuple[Task, PermissionRequest]:
    """Submit the plan, and return it with its question once its run is parked."""
    task = await service.submit(plan(file), project=service.home, approval_mode=ApprovalMode.INBOX)
    await service.until(lambda: stands(service, task, StepStatus.BLOCKED))
    (request,) = await service.store.consent.pending(task.session_id)
    return task, request


def lines(file: Path) -> str:
    return file.read_text(encoding="utf-8")


async def stands(service: Deployment, task: Task, status: StepStatus) -> bool:
    return (await service.steps(task))["asks"].status is status


async def answer(service: Deployment, request: PermissionRequest) -> None:
    """Answer as a client does: a row, and a hint."""
    await service.store.consent.answer(make_answer(request))
    await service.orchestrator.parts.notifier.permission_raised(request.id, request.identity.session_id)


@pytest.mark.spec("PER-13.b", "DAG-04", "DAG-07", "PER-12")
async def test_a_run_that_waits_gives_up_the_only_slot_and_goes_on_in_another_process(
    service: Deployment, file: Path
) -> None:
    """The answer is resumed, and by whoever is there (microsoft/agent-framework#4963, makecindy/cindy#944)."""
    await service.start_workers(1, slots=1, **PARKS)
    task, request = await asking(service, file)

    async def others_ended() -> bool:
        steps = await service.steps(task)
        return all(steps[name].status is StepStatus.COMPLETED for name in ("other0", "other1"))

    await service.until(others_ended)
    run = await service.store.runs.run(request.identity.run_id)
    assert (run.status, run.worker_id) == (RunStatus.PARKED, "")
    end(service.workers[0])
    await service.start_workers(1, slots=1, **PARKS)
    await answer(service, request)
    ended = await service.finished(task)

    told = Counter(str(event.type) for event in await service.store.runs.events(run.id))
    asks = (await service.steps(task))["asks"]
    assert (ended.status, asks.outcome) == (TaskStatus.COMPLETED, Outcome.CLEAN)
    assert lines(file) == "line\n"
    assert (told["run_parked"], told["step_unparked"], told["run_resumed"]) == (1, 1, 1)
    assert (told["permission_requested"], told["permission_decided"]) == (1, 2)  # the read was settled by the policy
    assert told["tool_completed"] == 2
    assert told["aborted_tools"] == told["permission_withdrawn"] == 0
    assert asks.lost_leases == 0
    assert (await service.store.runs.run(run.id)).fence == run.fence + 1


@pytest.mark.spec("PER-13")
@ON_SQLITE
async def test_a_worker_that_is_asked_to_stop_parks_what_waits_instead_of_waiting_for_it(
    service: Deployment, file: Path
) -> None:
    await service.start_workers(1, slots=1, SOONG_PARK_AFTER_S="3600", SOONG_DRAIN_S="60")
    task = await service.submit(plan(file, others=0), project=service.home, approval_mode=ApprovalMode.INBOX)
    await service.until(lambda: has_asked(service, task))

    end(service.workers[0])

    assert service.workers[0].returncode == 0
    assert await stands(service, task, StepStatus.BLOCKED)


async def has_asked(service: Deployment, task: Task) -> bool:
    return bool(await service.store.consent.pending(task.session_id))
