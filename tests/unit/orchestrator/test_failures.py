"""What an owner settles: failures by policy (DAG-05), maps that expand (OPS-12)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from soong.orchestrator.owner.scheduler import MAX_STARTS, Expander, Scheduler, backoff_s
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.functions import StepContext, step_function
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.spec import StepKind, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Claim, Step, StepError, Task
from soong.shared.engine.tasks.verdict import GrowMap, StepVerdict
from tests.contract.scene import ContractHarness, failed, open_scene
from tests.model.builders import make_step
from tests.model.memory import MemoryStore
from tests.one_loop import OneLoop
from tests.unit.orchestrator.test_service import service


class FaultyStore(MemoryStore):
    """A store in which the last write of an expansion ends as the test says, and answers to its first are lost."""

    fault: BaseException | None = None
    lost_answers = 0

    async def begin_expansion(self, *given: Any, **named: Any) -> int:
        starts = await super().begin_expansion(*given, **named)
        if self.lost_answers:
            self.lost_answers -= 1
            raise UnavailableError("the database did not confirm a commit")
        return starts

    async def write_verdict(self, ownership: Ownership, step_key: str, verdict: StepVerdict, *, now_us: int) -> bool:
        if self.fault is not None and isinstance(verdict, GrowMap):
            raise self.fault
        return bool(await super().write_verdict(ownership, step_key, verdict, now_us=now_us))


async def expanding() -> tuple[ContractHarness, FaultyStore, str]:
    store = FaultyStore()
    scene = await open_scene(store)
    spec: JsonObject = {"over": [1, 2], "step": {"kind": "python", "call": "builtin.echo"}}
    task_id = await scene.task(make_step("m", kind=StepKind.MAP, spec=spec))
    return scene, store, f"{task_id}/m"


def owner(scene: ContractHarness) -> Callable[[], Awaitable[int]]:
    """Return the looks of a new owner's expander."""
    expander = Expander(scene.store.tasks, scene.store.runs, scene.clock)
    return lambda: expander.expand_all(scene.own)


async def step_of(scene: ContractHarness, key: str) -> Step:
    return await scene.store.tasks.step(key)


@pytest.mark.spec("OPS-12", "DAG-05")
async def test_an_expansion_that_fails_for_an_unknown_reason_is_begun_twice_and_then_failed() -> None:
    scene, store, key = await expanding()
    store.fault = MemoryError()
    look = owner(scene)

    for _ in range(MAX_STARTS):
        with pytest.raises(MemoryError):
            await look()
    await look()

    step = await step_of(scene, key)
    assert step.status is StepStatus.FAILED
    assert step.error is not None
    assert step.error.type == "poisoned"


@pytest.mark.spec("OPS-12", "DAG-05")
async def test_a_database_that_is_away_counts_once_however_often_it_is_asked() -> None:
    scene, store, key = await expanding()
    store.fault = UnavailableError("away")
    look = owner(scene)
    for _ in range(5):
        with pytest.raises(UnavailableError):
            await look()

    store.fault = None
    await look()

    assert (await step_of(scene, key)).status is not StepStatus.EXPANDING
    assert (await step_of(scene, key)).error is None


@pytest.mark.spec("OPS-12", "DAG-05")
async def test_a_beginning_that_nobody_confirmed_ended_nobody() -> None:
    scene, store, key = await expanding()
    store.lost_answers = MAX_STARTS + 1
    look = owner(scene)
    for _ in range(MAX_STARTS + 1):
        with pytest.raises(UnavailableError):
            await look()

    await look()

    assert (await step_of(scene, key)).status is not StepStatus.EXPANDING
    assert (await step_of(scene, key)).error is None


@pytest.mark.spec("OPS-12", "DAG-05")
async def test_an_owner_that_is_asked_to_stop_does_not_count() -> None:
    scene, store, key = await expanding()
    for _ in range(MAX_STARTS + 1):
        store.fault = asyncio.CancelledError()
        with pytest.raises(asyncio.CancelledError):
            await owner(scene)()

    store.fault = None
    await owner(scene)()

    assert (await step_of(scene, key)).error is None


__all__ = ["service"]


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


@pytest.mark.spec("EXE-07.e", "DAG-05.f", "DAG-05")
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


@pytest.mark.spec("DAG-05.c", "DAG-05")
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


@pytest.mark.spec("DAG-05")
@pytest.mark.parametrize(
    ("call", "attempts"),
    [("test.wrong_value", 3), ("test.not_json", 1), ("builtin.sleep", 3)],
    ids=["raises", "returns no JSON", "takes too long"],
)
async def test_only_what_may_go_better_is_tried_again(service: OneLoop, call: str, attempts: int) -> None:
    step = {**fails(retries=2), "call": call, "timeout_s": 0.05, "inputs": {"seconds": 5}}

    task = await service.run({"title": "t", "steps": [step]})

    assert (await service.store.tasks.steps(task.id))[0].attempt == attempts


@pytest.mark.spec("DAG-08", "DAG-05")
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
