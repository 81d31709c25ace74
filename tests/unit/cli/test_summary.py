"""What is told of a task when it has ended."""

from pathlib import Path

from soong.orchestrator.cli.summary import text_of
from soong.orchestrator.operations.outcome import read_result
from tests.contract.scene import cancelled, open_scene
from tests.model.builders import make_step
from tests.model.memory import MemoryStore


async def test_of_a_task_with_many_steps_a_few_are_read_and_the_number_of_all_is_shown() -> None:
    scene = await open_scene(MemoryStore())
    task_id = await scene.task(*(f"s{number}" for number in range(1_200)))
    (claim,) = await scene.claim(1)
    await scene.fail(claim)

    result = await read_result(scene.store, task_id, Path("/runs"), brief=True)
    text = text_of(result.model_dump())

    assert len(result.steps) == 60
    assert "… and 1140 steps more" in text
    assert f"tasks show {task_id} --json" in text
    assert f"runs tail {claim.identity.run_id}" in text


async def test_only_the_log_of_a_step_that_was_begun_is_worth_following() -> None:
    scene = await open_scene(MemoryStore())
    claim = await scene.start("long", "first", make_step("after", depends_on=["first"]))
    task_id = claim.identity.task_id
    await scene.store.tasks.cancel_task(scene.own, task_id, reason="not needed", now_us=scene.now_us)
    await scene.advance([cancelled(claim)])
    result = await read_result(scene.store, task_id, Path("/runs"))
    begun, _, never = result.steps

    text = text_of(result.model_dump())

    assert never.run
    assert f"soong runs tail {begun.run}" in text
    assert never.run not in text
    assert f"soong resume {task_id}" in text
