"""A map step that had gone on without a dependency, when its task is tried again."""

import pytest

from soong.shared.core.errors import ConflictError
from soong.shared.engine.tasks.spec import FailurePolicy, StepStatus
from tests.contract.scene import ContractHarness
from tests.model.builders import make_map, make_retry, make_step


async def failed_after_growing(scene: ContractHarness) -> str:
    """Let a failure be kept, the map step below it grow one child, and that child fail; return the task's id."""
    task_id = await scene.task(make_step("a", on_failure=FailurePolicy.KEEP), make_map("m", depends_on=["a"]))
    await scene.fail(await scene.claim_one())
    await scene.settle(f"{task_id}/a", FailurePolicy.KEEP)
    await scene.expand(f"{task_id}/m", "i")
    await scene.fail(await scene.claim_one())
    for step_id in ("m[i]", "m"):
        await scene.settle(f"{task_id}/{step_id}", FailurePolicy.SKIP_DEPENDENTS)
    await scene.finish(task_id)
    return task_id


async def test_its_old_children_may_not_run_before_it_is_unlocked(scene: ContractHarness) -> None:
    task_id = await failed_after_growing(scene)
    steps = [step for step in await scene.store.tasks.steps(task_id) if step.run_id]
    runs = [make_retry(await scene.store.runs.run(step.run_id)) for step in steps]

    with pytest.raises(ConflictError, match="expanded again"):
        await scene.store.tasks.retry_task(scene.own, task_id, runs, now_us=scene.now_us)

    assert StepStatus.READY not in (await scene.statuses(task_id)).values()


async def test_it_is_expanded_again_once_what_it_waits_for_has_ended(scene: ContractHarness) -> None:
    task_id = await failed_after_growing(scene)
    last = await scene.store.runs.run((await scene.store.tasks.step(f"{task_id}/a")).run_id)

    await scene.store.tasks.retry_task(
        scene.own, task_id, [make_retry(last)], regrown=[f"{task_id}/m"], now_us=scene.now_us
    )
    await scene.complete(await scene.claim_one())
    expanding = (await scene.statuses(task_id))["m"]
    grown = await scene.expand(f"{task_id}/m", "i", "j")

    assert expanding is StepStatus.EXPANDING
    assert grown
    assert (await scene.statuses(task_id))["m[i]"] is StepStatus.READY
