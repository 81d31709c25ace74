"""The narrow reading of a task's steps says what the full one says."""

import pytest

from soong.shared.engine.tasks.store import StepSnapshot
from tests.contract.scene import ContractHarness, completed, failed


@pytest.mark.spec("OPS-04.d")
async def test_states_are_those_of_the_steps_in_their_order(scene: ContractHarness) -> None:
    task = await scene.task("a", "b", "c", "d")
    first, second, _ = await scene.claim(3)
    await scene.advance([completed(first, {"text": "long " * 100}), failed(second)])

    states = await scene.store.tasks.step_states(task)

    assert states == [StepSnapshot.of(step) for step in await scene.store.tasks.steps(task)]
    assert [str(state.status) for state in states] == ["completed", "failed", "running", "ready"]


async def test_an_unknown_task_has_no_states(scene: ContractHarness) -> None:
    assert list(await scene.store.tasks.step_states("task_unknown")) == []
