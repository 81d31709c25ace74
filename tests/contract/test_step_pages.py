"""Steps read page by page: each once, in the order in which they were made, whatever their number."""

from soong.shared.engine.tasks.status import StepStatus
from tests.contract.scene import ContractHarness


async def test_pages_have_every_step_once(scene: ContractHarness) -> None:
    await scene.task("x")
    task_id = await scene.task(*(f"s{number}" for number in range(7)))
    tasks = scene.store.tasks

    pages, after = [], ""
    while page := await tasks.step_page(task_id, after=after, limit=3):
        pages.append([step.step_id for step in page])
        after = page[-1].key

    assert pages == [["s0", "s1", "s2"], ["s3", "s4", "s5"], ["s6"]]


async def test_only_steps_in_the_named_statuses_are_read(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b", "c")
    first, second, _ = await scene.claim()
    await scene.fail(first)
    await scene.complete(second)
    tasks = scene.store.tasks

    failed = await tasks.step_page(task_id, statuses=(StepStatus.FAILED,))
    others = await tasks.step_page(task_id, statuses=(StepStatus.COMPLETED, StepStatus.RUNNING), limit=1)

    assert [step.key for step in failed] == [first.step_key]
    assert [step.key for step in others] == [second.step_key]
    assert await tasks.step_page(task_id, after=others[0].key, statuses=(StepStatus.FAILED,)) == []
