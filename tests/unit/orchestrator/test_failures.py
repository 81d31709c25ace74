import pytest
from msgspec.structs import replace

from soong.orchestrator.owner.scheduler import Expander, Scheduler, backoff_s
from soong.shared.core import timing
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.functions import StepContext, step_function
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Claim, StepError, Task
from tests.contract.scene import ContractHarness, failed, open_scene
from tests.model.builders import make_step
from tests.model.memory import MemoryStore
from tests.one_loop import OneLoop
from tests.unit.orchestrator.test_service import service

__all__ = ["service"]

pytestmark = pytest.mark.spec("DAG-05")


@pytest.fixture
async def scene() -> ContractHarness:
    return await open_scene(MemoryStore())


def scheduler(scene: ContractHarness) -> Scheduler:
    return Scheduler(
        scene.store.tasks, scene.store.runs, Expander(scene.store.tasks, scene.store.runs, scene.clock), scene.clock
    )


async def fail(scene: ContractHarness, claim: Claim, type_: str, *, retryable: bool = True) -> None:
    end = replace(failed(claim), error=StepError(type_, "it failed", retryable))
    reason = next((reason for reason in EndReason if reason.value == type_), EndReason.FAILED)
    await scene.advance([replace(end, end_reason=reason)])


NEVER_AGAIN = ("permission_timeout", "aborted_tools", "poisoned", "cancelled", "invalid_input")
WITHOUT_HOPE = ("worker_incompatible", "schema_unsupported", "stopped_by_hook", "invalid_output")


@pytest.mark.spec("EXE-07.e", "DAG-05.f")
@pytest.mark.parametrize(
    ("type_", "retryable"), [*((each, True) for each in NEVER_AGAIN), *((each, False) for each in WITHOUT_HOPE)]
)
async def test_what_repeats_itself_was_meant_or_has_no_hope_is_not_tried_again_by_itself(
    scene: ContractHarness, type_: str, *, retryable: bool
) -> None:
    claim = await scene.start(make_step("a", max_attempts=5))
    await fail(scene, claim, type_, retryable=retryable)

    look = await scheduler(scene).reconcile(scene.own)

    step = await scene.store.tasks.step(claim.step_key)
    assert (step.status, step.attempt, look.due_us) == (StepStatus.FAILED, 1, None)
    assert [ended.status for ended in look.ended] == [TaskStatus.FAILED]


@pytest.mark.spec("DAG-05.c")
async def test_the_pause_doubles_up_to_its_limit(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    step = await scene.store.tasks.step(claim.step_key)

    waits = [
        backoff_s(replace(step, spec=replace(step.spec, backoff_s=2.0), attempt=attempt)) for attempt in (1, 2, 3, 50)
    ]

    assert waits == [2.0, 4.0, 8.0, timing.STEP_BACKOFF_LIMIT_S]


# -- as plans say it
def fails(**more: Json) -> dict[str, Json]:
    return {"id": "f", "kind": "python", "call": "builtin.fail", "backoff_s": 0.01, **more}


@step_function("test.wrong_value")
def wrong_value(inputs: JsonObject, context: StepContext) -> Json:
    raise ValueError("the answer had no number in it")


@step_function("test.not_json")
def not_json(inputs: JsonObject, context: StepContext) -> Json:
    return object()  # type: ignore[return-value]  # as a careless function does


@pytest.mark.parametrize(
    ("call", "attempts"),
    [("test.wrong_value", 3), ("test.not_json", 1), ("builtin.sleep", 3)],
    ids=["raises", "returns no JSON", "takes too long"],
)
async def test_only_what_may_go_better_is_tried_again(service: OneLoop, call: str, attempts: int) -> None:
    step = {**fails(retries=2), "call": call, "timeout_s": 0.05, "inputs": {"seconds": 5}}

    task = await service.run({"title": "t", "steps": [step]})

    assert (await service.store.tasks.steps(task.id))[0].attempt == attempts


@pytest.mark.spec("DAG-08")
async def test_a_task_that_somebody_tries_again_may_fail_as_often_as_before(service: OneLoop) -> None:
    child = {name: value for name, value in fails(retries=1).items() if name != "id"}
    over: dict[str, Json] = {"id": "each", "kind": "map", "over": [1], "step": child}
    task = await service.run({"title": "t", "steps": [fails(retries=1), over]})
    tasks = TaskService(service.store, service.board, service.board, service.orchestrator.parts.clock)
    attempts = [await attempts_of(service, task)]

    for _ in range(2):
        await tasks.retry(await service.store.tasks.task(task.id))
        await service.finished(task.id)
        attempts.append(await attempts_of(service, task))

    assert attempts == [{"f": 2, "each[1]": 2}, {"f": 4, "each[1]": 4}, {"f": 6, "each[1]": 6}]


async def attempts_of(service: OneLoop, task: Task) -> dict[str, int]:
    return {step.step_id: step.attempt for step in await service.store.tasks.steps(task.id) if step.run_id}


@pytest.mark.spec("DAG-10")
async def test_keep_hands_on_why_it_failed(service: OneLoop) -> None:
    bad = fails(on_failure="keep", inputs={"message": "the disk is full"})
    told: dict[str, Json] = {
        "id": "told",
        "kind": "python",
        "call": "builtin.echo",
        "depends_on": ["f"],
        "inputs": {"why": "${f.error.message}", "got": "${f.output}"},
    }

    task = await service.run({"title": "t", "steps": [bad, told]})

    assert (await service.outputs(task.id))["told"] == {"why": "RuntimeError: the disk is full", "got": None}
