"""Steps that their owner decides when their dependencies are done: conditions and joins."""

import pytest

from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.record import EndReason, RunStatus
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.spec import FailurePolicy, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import NewStep, Outcome, StepError
from soong.shared.engine.tasks.verdict import FailStep, OpenStep, SkipStep
from tests.contract.scene import ContractHarness, cancelled
from tests.model.builders import make_map, make_step

WHEN: JsonObject = {"when": "${a.output} > 1"}
FALSE = SkipStep("its condition is false: ${a.output} > 1")


def gated(step_id: str, *depends_on: str, join: str = "all", when: str = "") -> NewStep:
    return make_step(step_id, depends_on=depends_on, spec={"join": join, "when": when})


async def decided(scene: ContractHarness) -> tuple[str, str]:
    """Make a task of ``a``, ``b`` with a condition on it, and ``c`` after that; return its id and the key of ``b``."""
    task_id = await scene.task("a", make_step("b", depends_on=("a",), spec=WHEN), make_step("c", depends_on=("b",)))
    claim = await scene.claim_one()
    assert await scene.claim() == ()
    await scene.complete(claim, 2)
    return task_id, f"{task_id}/b"


@pytest.mark.spec("CTL-01")
async def test_step_with_a_condition_is_claimable_once_its_owner_opens_it(scene: ContractHarness) -> None:
    task_id, key = await decided(scene)
    assert (await scene.statuses(task_id))["b"] is StepStatus.EXPANDING
    assert await scene.claim() == ()

    assert await scene.verdict(key, OpenStep())

    claim = await scene.claim_one()
    assert claim.step_key == key
    assert not await scene.verdict(key, OpenStep())
    told = await scene.event_types(claim.identity.run_id)
    assert [one for one in told if one.startswith("step_")] == [
        "step_created",
        "step_expanding",
        "step_ready",
        "step_claimed",
    ]
    await scene.complete(claim)
    await scene.complete(await scene.claim_one())
    assert await scene.finish(task_id) is TaskStatus.COMPLETED


@pytest.mark.spec("CTL-01", "CTL-01.c/all")
async def test_step_whose_condition_is_false_is_skipped_with_the_reason_and_all_that_needs_it_and_the_task_completes(
    scene: ContractHarness,
) -> None:
    task_id, key = await decided(scene)

    assert await scene.verdict(key, FALSE)

    steps = await scene.steps(task_id)
    assert [(one.status, one.outcome) for one in steps.values()] == [
        (StepStatus.COMPLETED, Outcome.CLEAN),
        (StepStatus.SKIPPED, Outcome.CLEAN),
        (StepStatus.SKIPPED, Outcome.CLEAN),
    ]
    assert steps["b"].error == StepError("condition", FALSE.reason)
    run = await scene.store.runs.run(steps["b"].run_id)
    assert (run.status, run.end_reason) == (RunStatus.CANCELLED, EndReason.CANCELLED)
    assert await scene.finish(task_id) is TaskStatus.COMPLETED


@pytest.mark.spec("CTL-01")
async def test_condition_that_cannot_be_decided_fails_its_step_with_its_run(scene: ContractHarness) -> None:
    task_id, key = await decided(scene)

    await scene.verdict(key, FailStep(StepError("invalid_input", "a number and a text have no order")))
    await scene.settle(key, FailurePolicy.SKIP_DEPENDENTS)

    steps = await scene.steps(task_id)
    assert [one.status for one in steps.values()] == [StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.SKIPPED]
    assert (await scene.store.runs.run(steps["b"].run_id)).status is RunStatus.FAILED
    assert await scene.finish(task_id) is TaskStatus.FAILED


@pytest.mark.spec("CTL-01")
@pytest.mark.parametrize(
    "join", [pytest.param(one, marks=pytest.mark.spec(f"CTL-01.c/{one}")) for one in ("any", "done")]
)
@pytest.mark.parametrize("ends", ["fails", "is skipped", "is cancelled"])
async def test_join_waits_until_all_have_ended_however_they_did(scene: ContractHarness, join: str, ends: str) -> None:
    task_id = await scene.task(
        "a", "b", gated("x", "a", when="false"), make_step("y", depends_on=("x",)), gated("j", "y", "b", join=join)
    )
    first, second = await scene.claim()
    await scene.complete(first)
    if ends == "fails":
        await scene.verdict(f"{task_id}/x", FailStep(StepError("x", "x")))
        await scene.settle(f"{task_id}/x", FailurePolicy.SKIP_DEPENDENTS)
    elif ends == "is skipped":
        await scene.verdict(f"{task_id}/x", FALSE)
    else:
        change = TaskChange(cancelled=(f"{task_id}/x",))
        await scene.store.tasks.update_task(scene.own, task_id, change, now_us=scene.now_us)
    statuses = await scene.statuses(task_id)
    assert (statuses["y"], statuses["j"]) == (StepStatus.SKIPPED, StepStatus.PENDING)

    await scene.complete(second, 5)

    assert (await scene.statuses(task_id))["j"] is StepStatus.EXPANDING
    await scene.verdict(f"{task_id}/j", OpenStep())
    claim = await scene.claim_one()
    assert {name: result.output for name, result in claim.dependencies.items()} == {"y": None, "b": 5}
    assert claim.dependencies["y"].status is StepStatus.SKIPPED
    await scene.complete(claim)
    assert await scene.finish(task_id) is (TaskStatus.COMPLETED if ends == "is skipped" else TaskStatus.FAILED)


@pytest.mark.spec("CTL-01")
async def test_join_opens_by_the_end_that_is_settled_last(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b", gated("j", "a", "b", join="done"))
    first, second = await scene.claim()
    await scene.complete(first)
    await scene.fail(second)
    assert (await scene.statuses(task_id))["j"] is StepStatus.PENDING

    await scene.settle(second.step_key, FailurePolicy.SKIP_DEPENDENTS)

    assert (await scene.statuses(task_id))["j"] is StepStatus.EXPANDING


@pytest.mark.spec("CTL-01")
async def test_join_goes_on_after_a_step_that_was_cancelled_while_it_ran(scene: ContractHarness) -> None:
    task_id = await scene.task("a", gated("j", "a", join="done"))
    claim = await scene.claim_one()
    change = TaskChange(cancelled=(claim.step_key,))
    await scene.store.tasks.update_task(scene.own, task_id, change, now_us=scene.now_us)
    assert (await scene.statuses(task_id))["j"] is StepStatus.PENDING

    await scene.advance([cancelled(claim)])
    assert await scene.finish(task_id) is None

    assert (await scene.statuses(task_id))["j"] is StepStatus.EXPANDING


@pytest.mark.spec("CTL-01", "DAG-04")
async def test_map_has_a_condition_too(scene: ContractHarness) -> None:
    task_id = await scene.task(make_map("m"), gated("after", "m", join="done"))

    assert await scene.verdict(f"{task_id}/m", FALSE)

    statuses = await scene.statuses(task_id)
    assert statuses == {"m": StepStatus.SKIPPED, "after": StepStatus.EXPANDING}


@pytest.mark.spec("CTL-01", "DAG-08")
async def test_retry_decides_again_what_was_skipped(scene: ContractHarness) -> None:
    task_id, key = await decided(scene)
    await scene.verdict(key, FALSE)
    await scene.finish(task_id)

    await scene.retry_task(task_id, from_step="a")
    assert (await scene.statuses(task_id))["b"] is StepStatus.PENDING
    await scene.complete(await scene.claim_one(), 1)

    assert (await scene.statuses(task_id))["b"] is StepStatus.EXPANDING
    assert (await scene.steps(task_id))["b"].error is None


@pytest.mark.spec("CTL-01", "DAG-05")
async def test_attempt_after_a_failure_is_not_decided_again(scene: ContractHarness) -> None:
    task_id, key = await decided(scene)
    await scene.verdict(key, OpenStep())
    await scene.fail(await scene.claim_one())
    await scene.retry(key)
    await scene.store.tasks.promote_due(scene.own, now_us=scene.now_us)

    assert (await scene.statuses(task_id))["b"] is StepStatus.READY


@pytest.mark.spec("CTL-01", "DAG-08")
async def test_retry_of_what_failed_leaves_out_what_conditions_left_out(scene: ContractHarness) -> None:
    task_id = await scene.task(
        "a", gated("x", when="false"), gated("j", "x", "a", join="done"), make_step("after", depends_on=("j",))
    )
    await scene.verdict(f"{task_id}/x", FALSE)
    await scene.complete(await scene.claim_one())
    await scene.verdict(f"{task_id}/j", OpenStep())
    await scene.complete(await scene.claim_one())
    await scene.fail(await scene.claim_one())
    await scene.settle(f"{task_id}/after", FailurePolicy.SKIP_DEPENDENTS)
    await scene.finish(task_id)

    await scene.retry_task(task_id)
    assert await scene.statuses(task_id) == {
        "a": StepStatus.COMPLETED,
        "x": StepStatus.SKIPPED,
        "j": StepStatus.COMPLETED,
        "after": StepStatus.READY,
    }
    await scene.complete(await scene.claim_one())
    assert await scene.finish(task_id) is TaskStatus.COMPLETED


@pytest.mark.spec("CTL-01", "DAG-08")
async def test_retry_of_what_failed_runs_joins_of_it_again_and_from_a_left_out_step_decides_what_it_needs_again(
    scene: ContractHarness,
) -> None:
    task_id = await scene.task("a", gated("j", "a", join="done"), gated("x", when="false"), gated("y", "x"))
    await scene.verdict(f"{task_id}/x", FALSE)
    await scene.fail(await scene.claim_one())
    await scene.settle(f"{task_id}/a", FailurePolicy.SKIP_DEPENDENTS)
    await scene.verdict(f"{task_id}/j", OpenStep())
    await scene.complete(await scene.claim_one())
    assert await scene.finish(task_id) is TaskStatus.FAILED

    await scene.retry_task(task_id, from_step="y")

    assert await scene.statuses(task_id) == {
        "a": StepStatus.READY,
        "j": StepStatus.PENDING,
        "x": StepStatus.EXPANDING,
        "y": StepStatus.PENDING,
    }
