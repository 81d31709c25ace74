"""What a worker holds by the rows: how it learns of a claim whose answer was lost."""

from soong.shared.engine.tasks.status import StepStatus
from tests.contract.scene import ContractHarness, held


async def test_a_worker_learns_of_all_its_leases_and_of_no_other(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b", "c", "d")
    mine = await scene.claim(3)
    other = await scene.another_worker()
    theirs = await scene.claim(1, worker=other)
    await scene.complete(mine[0])

    leases = await scene.store.claims.leases(scene.worker)

    assert list(leases) == [held(claim) for claim in mine[1:]]
    assert list(await scene.store.claims.leases(other)) == [held(claim) for claim in theirs]
    assert (await scene.statuses(task_id))["a"] is StepStatus.COMPLETED


async def test_a_worker_that_was_declared_gone_holds_nothing(scene: ContractHarness) -> None:
    await scene.start("a", "b")

    await scene.expire()

    assert not await scene.store.claims.leases(scene.worker)
