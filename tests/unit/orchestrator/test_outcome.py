"""What a program is handed of a task that has ended."""

import json
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from soong.orchestrator.operations.outcome import step_detail
from soong.orchestrator.schemas.task import ExitCode, StepDetail, TaskResult
from soong.shared.engine.tasks.spec import StepStatus
from tests.contract.scene import open_scene
from tests.model.builders import make_map
from tests.model.memory import MemoryStore

CHILDREN = 2_000


class CountedSteps(list[StepDetail]):
    """Steps that count how often one of them is looked at."""

    __slots__ = ()
    looks = 0

    def __iter__(self) -> Iterator[StepDetail]:
        for step in super().__iter__():
            CountedSteps.looks += 1
            yield step


async def result_of_two_maps() -> TaskResult:
    """An ended task with two map steps of 2,000 children each, of which the store holds one."""
    scene = await open_scene(MemoryStore())
    task_id = await scene.task(make_map("one"), make_map("two"))
    task, steps = await scene.store.tasks.task_with_steps(task_id)
    one, two = (replace(step, status=StepStatus.COMPLETED) for step in steps)
    children = [
        replace(
            one,
            key=f"{each.key}[{n}]",
            spec=replace(one.spec, id=f"{each.step_id}[{n}]"),
            map_key=each.key,
            output={"n": n},
        )
        for n in range(CHILDREN)
        for each in (one, two)
    ]
    shown = [await step_detail(scene.store, step, (), "") for step in (one, two, *children)]
    nothing: dict[str, Any] = dict.fromkeys(("answer", "limits")) | {"deliverables": [], "denials": [], "undone": []}
    counts = {StepStatus.COMPLETED: len(shown)}
    return TaskResult.of(task, step_counts=counts, exit_code=ExitCode.INTERRUPTED, steps=shown, **nothing)


async def test_outputs_are_gathered_once_however_often_they_are_read() -> None:
    outcome = await result_of_two_maps()
    steps = CountedSteps(outcome.steps)
    outcome = outcome.model_copy(update={"steps": steps})
    CountedSteps.looks = 0

    lists = [outcome.outputs["one"] for _ in range(100)]

    assert lists[0] == [{"n": n} for n in range(CHILDREN)]
    assert outcome.outputs["two[7]"] == {"n": 7}
    assert len(steps) <= CountedSteps.looks <= 3 * len(steps)
    json.dumps(outcome.outputs)


async def test_a_result_names_itself_without_its_steps() -> None:
    outcome = await result_of_two_maps()
    outcome = outcome.model_copy(update={"steps": CountedSteps(outcome.steps)})
    CountedSteps.looks = 0

    text = repr(outcome)

    assert text.startswith(f"TaskResult(id={outcome.id!r}, title='A task', status=<TaskStatus.RUNNING")
    assert "step_counts={<StepStatus.COMPLETED: 'completed'>: 4002}" in text
    assert (CountedSteps.looks, len(text) < 500) == (0, True)
