"""What is told of a task when it has ended."""

from pathlib import Path

from soong.orchestrator.cli.summary import text_of
from soong.orchestrator.client.client import brief_view, snapshot_of
from soong.orchestrator.client.outcome import TaskOutcome, outcome_of
from soong.orchestrator.schemas.task import TaskResult
from tests.contract.scene import cancelled, open_scene
from tests.model.builders import make_step
from tests.model.memory import MemoryStore


async def test_of_a_task_with_many_steps_a_few_are_read_and_the_number_of_all_is_shown() -> None:
    scene = await open_scene(MemoryStore())
    task_id = await scene.task(*(f"s{number}" for number in range(1_200)))
    (claim,) = await scene.claim(1)
    await scene.fail(claim)

    view = await brief_view(scene.store, task_id)
    text = text_of(TaskResult.of_outcome(await outcome_of(scene.store, view, Path("/runs"))).model_dump())

    assert len(view.steps) == 60
    assert "… and 1140 steps more" in text
    assert f"tasks show {task_id} --json" in text
    assert f"runs tail {claim.identity.run_id}" in text


async def test_only_the_log_of_a_step_that_was_begun_is_worth_following() -> None:
    scene = await open_scene(MemoryStore())
    claim = await scene.start("long", "first", make_step("after", depends_on=["first"]))
    task_id = claim.identity.task_id
    await scene.store.tasks.cancel_task(scene.own, task_id, reason="not needed", now_us=scene.now_us)
    await scene.advance([cancelled(claim)])
    view = await snapshot_of(scene.store, task_id)
    begun, _, never = view.steps

    text = text_of(TaskResult.of_outcome(TaskOutcome(view, (), ())).model_dump())

    assert never.run_id
    assert f"soong runs tail {begun.run_id}" in text
    assert never.run_id not in text
    assert f"soong resume {task_id}" in text
