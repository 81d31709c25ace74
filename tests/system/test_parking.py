"""Runs that wait for a person hold no slot, and go on in another process, their tool executed once (PER-13)."""

from collections import Counter
from pathlib import Path

import pytest

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.record import RunStatus
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Outcome, Task
from soong.shared.permissions.request import PermissionRequest
from tests.model.builders import make_answer
from tests.scripted import call, calls
from tests.system.deployment import ON_SQLITE, Deployment, end, kill

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


async def story(service: Deployment, request: PermissionRequest) -> Counter[str]:
    return Counter(str(event.type) for event in await service.store.runs.events(request.identity.run_id))


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

    told = await story(service, request)
    asks = (await service.steps(task))["asks"]
    assert (ended.status, asks.outcome) == (TaskStatus.COMPLETED, Outcome.CLEAN)
    assert lines(file) == "line\n"
    assert (told["run_parked"], told["step_unparked"], told["run_resumed"]) == (1, 1, 1)
    assert (told["permission_requested"], told["permission_decided"]) == (1, 2)  # the read was settled by the policy
    assert told["tool_completed"] == 2
    assert told["aborted_tools"] == told["permission_withdrawn"] == 0
    assert asks.lost_leases == 0
    assert (await service.store.runs.run(run.id)).fence == run.fence + 1


@pytest.mark.spec("PER-13", "DAG-07", "DAG-09")
@pytest.mark.parametrize(
    ("service", "killed"), [("sqlite", "parked"), ("sqlite", "decided"), ("postgres", "owner")], indirect=["service"]
)
async def test_when_any_process_is_killed_the_tool_runs_once_and_nobody_is_asked_twice(
    service: Deployment, file: Path, killed: str
) -> None:
    """``killed``: the worker that parked it, before its question is decided or after, or the owner."""
    await service.start_workers(1, slots=1, **PARKS)
    task, request = await asking(service, file)

    if killed == "owner":
        await service.kill_orchestrator()
        await service.start_orchestrator()
    else:
        kill(service.workers[0])
    if killed != "parked":
        await answer(service, request)
    if killed == "decided":
        await service.until(lambda: stands(service, task, StepStatus.READY))
    if killed != "owner":
        await service.start_workers(1, slots=1, **PARKS)
    if killed == "parked":
        await answer(service, request)
    ended = await service.finished(task)

    told = await story(service, request)
    assert ended.status is TaskStatus.COMPLETED
    assert lines(file) == "line\n"
    assert (told["permission_requested"], told["tool_completed"]) == (1, 2)


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
