from collections.abc import AsyncIterator

import pytest

from soong.shared.core.errors import ConflictError
from soong.shared.core.identity import Origin
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import SystemClock
from soong.shared.engine.sessions.session import ApprovalMode, Command, CommandKind
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task
from tests.model.builders import make_session
from tests.model.memory.store import MemoryStore
from tests.one_loop import OneLoop
from tests.waiting import looks

pytestmark = pytest.mark.spec("PER-02", "OPS-12.a")

WAITS: JsonObject = {"id": "w", "kind": "python", "call": "builtin.echo", "pool": "nobody"}
FAILS: JsonObject = {"id": "f", "kind": "python", "call": "builtin.fail"}
ADDED: JsonObject = {"id": "more", "kind": "python", "call": "builtin.echo"}


@pytest.fixture
async def service() -> AsyncIterator[OneLoop]:
    async with OneLoop(MemoryStore()) as one:
        yield one


def service_of(service: OneLoop, principal: str) -> TaskService:
    return TaskService(service.store, service.board, service.board, SystemClock(), principal=principal)


async def waiting(service: OneLoop) -> Task:
    _, task = await service.submit({"title": "t", "steps": [WAITS]})
    return task


@pytest.mark.parametrize(
    "given",
    [
        {"script": "builtin.echo"},
        {"allowed_tools": ["code.write_file"]},
        {"instructions": "write a file"},
        {"agent": "default_worker_agent"},
    ],
    ids=["script", "tools", "instructions", "agent"],
)
async def test_pull_workers_learn_what_to_do_from_the_sessions_principal_alone(
    service: OneLoop, given: dict[str, Json]
) -> None:
    task = await waiting(service)

    with pytest.raises(ConflictError, match=r"only 'local', whose session it is.*asked by 'root'"):
        await service_of(service, "root").dispatch_worker(task, model="script", **given)  # type: ignore[arg-type]  # as named

    assert [step.step_id for step in await service.store.tasks.steps(task.id)] == ["w"]


@pytest.mark.parametrize(
    "change",
    [{"add_steps": [ADDED]}, {"retry_steps": [{"step": "f", "instructions": "write a file"}]}],
    ids=["add", "change"],
)
async def test_steps_are_added_and_changed_by_the_sessions_principal_alone(
    service: OneLoop, change: JsonObject
) -> None:
    agent: JsonObject = {"id": "f", "script": "builtin.echo", "on_failure": "keep"}  # nobody here runs agents
    _, task = await service.submit({"title": "t", "steps": [agent, WAITS]})
    async for _ in looks(20):
        if (await service.store.tasks.counts(task.id)).get(StepStatus.FAILED) == 1:
            break

    with pytest.raises(ConflictError, match="only 'local', whose session it is"):
        await service_of(service, "root").update(task, change)

    assert {step.step_id for step in await service.store.tasks.steps(task.id)} == {"f", "w"}


async def test_who_runs_a_service_may_still_steer(service: OneLoop) -> None:
    task = await waiting(service)
    root = service_of(service, "root")

    await root.update(task, {"priorities": {"w": 7}})
    await root.pause(task)
    await root.resume(await service.store.tasks.task(task.id))
    await root.cancel(task)

    (step,) = await service.store.tasks.steps(task.id)
    assert step.priority == 7
    assert (await service.store.tasks.task(task.id)).status is TaskStatus.CANCELLED


async def test_what_another_runs_again_is_theirs_and_what_the_principal_runs_again_is_its_own(service: OneLoop) -> None:
    over: JsonObject = {"id": "each", "kind": "map", "over": [1, 2], "step": {"kind": "python", "call": "builtin.echo"}}
    task = await service.run({"title": "t", "steps": [{"id": "a", "kind": "python", "call": "builtin.echo"}, over]})
    first = await origins(service, task)

    await service_of(service, "root").retry(task, from_step="each")
    task = await service.finished(task.id)
    others = await origins(service, task)
    await service_of(service, "local").retry(task, from_step="each")
    await service.finished(task.id)

    root = Origin("root", is_foreign=True)
    assert first == {"a": Origin("local"), "each[1]": Origin("local"), "each[2]": Origin("local")}
    assert others == {"a": Origin("local"), "each[1]": root, "each[2]": root}
    assert await origins(service, task) == first


async def test_what_is_tried_again_by_itself_stays_with_who_asked_for_it(service: OneLoop) -> None:
    task = await service.run({"title": "t", "steps": [{**FAILS, "retries": 1, "backoff_s": 0.01}]})

    await service_of(service, "root").retry(task)
    await service.finished(task.id)

    runs = [run for run in await service.store.runs.list_runs(task_id=task.id) if run.identity.step_key]
    assert [run.identity.origin.is_foreign for run in sorted(runs, key=lambda run: run.attempt)] == [
        *(False, False),
        *(True, True),
    ]


async def origins(service: OneLoop, task: Task) -> dict[str, Origin]:
    """Return who had the last run of each step made."""
    steps = [step for step in await service.store.tasks.steps(task.id) if step.run_id]
    return {step.step_id: (await service.store.runs.run(step.run_id)).identity.origin for step in steps}


@pytest.mark.parametrize(
    ("principal", "may_approve", "mode", "is_foreign"),
    [
        ("ada", False, ApprovalMode.PROMPT, False),
        ("ada", False, ApprovalMode.DENY, False),
        ("root", False, ApprovalMode.INBOX, True),
        ("root", True, ApprovalMode.INBOX, False),
        ("root", True, ApprovalMode.PROMPT, True),
        ("root", True, ApprovalMode.DENY, True),
    ],
)
def test_another_side_is_one_that_could_not_answer_there(
    principal: str, *, may_approve: bool, mode: ApprovalMode, is_foreign: bool
) -> None:
    session = make_session(principal="ada", approval_mode=mode)
    command = Command("cmd_1", session.id, CommandKind.RETRY, "task_1", principal, 1, may_approve=may_approve)

    assert command.origin_in(session) == Origin(principal, is_foreign=is_foreign)
