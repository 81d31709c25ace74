"""What an orchestrator and its workers make of plans, in one loop."""

from collections.abc import AsyncIterator

import pytest

from soong.shared.core.errors import ConflictError, NotFoundError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import SystemClock
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.spec import TaskStatus
from tests.model.memory.store import MemoryStore
from tests.one_loop import OneLoop


@pytest.fixture
async def service() -> AsyncIterator[OneLoop]:
    async with OneLoop(MemoryStore()) as running:
        yield running


def echo(step_id: str, inputs: JsonObject, *depends_on: str, **more: Json) -> dict[str, Json]:
    return {
        "id": step_id,
        "kind": "python",
        "call": "builtin.echo",
        "inputs": inputs,
        "depends_on": list(depends_on),
        **more,
    }


def plan(*steps: JsonObject) -> JsonObject:
    return {"title": "test", "steps": list(steps)}


@pytest.mark.spec("DAG-02.c")
async def test_results_of_dependencies_reach_the_dependents(service: OneLoop) -> None:
    task = await service.run(plan(echo("a", {"x": 1}), echo("b", {"y": "${a.output.x}"}, "a")))

    assert task.status is TaskStatus.COMPLETED
    assert await service.outputs(task.id) == {"a": {"x": 1}, "b": {"y": 1}}


@pytest.mark.spec("DIS-07.d")
async def test_a_step_over_its_time_limit_fails_as_such(service: OneLoop) -> None:
    slow: dict[str, Json] = {
        "id": "slow",
        "kind": "python",
        "call": "builtin.sleep",
        "inputs": {"seconds": 30},
        "timeout_s": 0.05,
    }

    task = await service.run(plan(slow))

    step = (await service.store.tasks.steps(task.id))[0]
    assert step.error is not None
    assert step.error.type == "time_limit"


@pytest.mark.spec("DAG-08.e")
async def test_a_task_is_run_again_from_a_step_that_it_has_and_from_no_other(service: OneLoop) -> None:
    task = await service.run(plan(echo("a", {"x": 1}), echo("b", {}, "a")))
    tasks = TaskService(service.store, service.board, service.board, SystemClock())

    with pytest.raises(NotFoundError, match="nowhere"):
        await tasks.retry(task, from_step="nowhere")
    with pytest.raises(ConflictError, match="is completed"):
        await tasks.retry(task)
    await tasks.retry(task, from_step="b")

    assert (await service.store.tasks.step(f"{task.id}/b")).attempt == 2
