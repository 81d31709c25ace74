"""Two workers end the last steps of a task at once, and neither end sees the other: their owner ends the task."""

from collections.abc import AsyncIterator

import pytest

from soong.shared.engine.tasks.spec import TaskStatus
from tests.contract.scene import ContractHarness
from tests.integration.held_commits import held_before_commit, two_workers

pytestmark = pytest.mark.spec("DAG-04.b")


@pytest.fixture
async def workers(postgres_url: str) -> AsyncIterator[tuple[ContractHarness, ContractHarness]]:
    async with two_workers(postgres_url) as both:
        yield both


async def test_the_owner_is_notified_after_both(workers: tuple[ContractHarness, ContractHarness]) -> None:
    slow, quick = workers
    task_id = await slow.task("a", "b")
    first = await slow.claim_one()

    async with held_before_commit(slow, slow.complete(first)) as ending:  # it sees that another step is ready
        second = await quick.complete(await quick.claim_one())  # it sees that the first runs
        early = await quick.finish(task_id)
    end = await ending

    assert second.owner_sessions == end.owner_sessions == {slow.own.session_id}
    assert (early, await slow.finish(task_id)) == (None, TaskStatus.COMPLETED)


async def test_an_end_waits_for_no_other_end_of_its_task(workers: tuple[ContractHarness, ContractHarness]) -> None:
    slow, quick = workers
    task_id = await slow.task("a", "b")
    first, second = await slow.claim_one(), await quick.claim_one()

    async with held_before_commit(slow, slow.complete(first)) as ending:
        assert (await quick.complete(second)).owner_sessions == {slow.own.session_id}
    await ending

    assert await slow.finish(task_id) is TaskStatus.COMPLETED
