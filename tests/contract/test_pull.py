import asyncio
from collections import Counter

import pytest

from soong.shared.core.errors import ConflictError
from soong.shared.engine.sessions.session import CommandKind
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.spec import ClaimMode, FailurePolicy, StepStatus, TaskEvent, TaskStatus
from soong.shared.engine.tasks.step import Claim
from soong.shared.storage.store import Store
from tests.contract.conftest import OpenStore
from tests.contract.pulling import further, pull_worker, pulled, taken, work
from tests.contract.scene import ContractHarness, cancelled, completed, failed, step_ids
from tests.model.builders import make_more, take_turn

pytestmark = pytest.mark.spec("DAG-03")


async def test_neither_a_claim_loop_nor_the_dispatcher_learns_of_steps_that_are_pulled(scene: ContractHarness) -> None:
    task_id = await scene.task(pulled("p", priority=9), work("a"), pulled("q"), work("b"))

    assert (await scene.store.claims.backlog()).ready == {"default": 2}
    assert step_ids(await scene.claim()) == ["a", "b"]
    assert (await scene.store.claims.backlog()).ready == {}
    steps = await scene.steps(task_id)
    assert (steps["p"].claim_mode, steps["a"].claim_mode) == (ClaimMode.PULL, ClaimMode.ASSIGNED)


async def test_steps_that_are_pulled_do_not_shrink_a_workers_share(scene: ContractHarness) -> None:
    await scene.task(*(pulled(f"p{number}") for number in range(20)), *(work(f"a{number}") for number in range(4)))

    claims = (await scene.advance(claim=10, live_workers=2)).claims

    assert len(claims) == 2


async def test_a_pull_worker_is_claimed_like_any_run_and_is_given_a_step_of_both_modes(scene: ContractHarness) -> None:
    own = await scene.start(pull_worker(priority=1), pulled("p"), work("a"))

    first = await taken(scene, own, "p")
    await scene.complete(first)
    second = await taken(scene, own, "a")

    assert (await scene.store.tasks.step(own.step_key)).is_pull_worker
    assert step_ids([own, first, second]) == ["pull-worker", "p", "a"]


async def test_a_pulled_step_that_is_unlocked_waits_for_who_asks(scene: ContractHarness) -> None:
    first = await scene.start(work("a"), pulled("p", depends_on=["a"]))
    advance = await scene.advance([completed(first)], claim=5)

    assert advance.claims == ()


@pytest.mark.spec("CARD-2")
async def test_pull_workers_on_several_workers_do_each_step_once(
    scene: ContractHarness, open_another: OpenStore
) -> None:
    total = 24
    task_id = await scene.task(
        *(pull_worker(f"pull worker{number}", priority=1) for number in range(6)),
        *(pulled(f"p{number}") for number in range(total)),
    )
    workers = [await scene.another_worker() for _ in range(3)]
    stores: list[Store] = [await open_another() for _ in range(3)]
    done: Counter[str] = Counter()

    async def pull(own: Claim, worker: str, store: Store) -> None:
        for number in range(total):
            claim = await further(scene, own, f"p{number}", worker=worker, store=store)
            if isinstance(claim, Claim):
                advance = await take_turn(store, worker, [completed(claim)], claim=0, now_us=scene.now_us)
                assert not advance.stale
                done[claim.step_key] += 1

    pull_workers = [(await scene.claim(2, worker=worker), worker) for worker in workers]
    await asyncio.gather(
        *(pull(own, worker, stores[index]) for index, (claims, worker) in enumerate(pull_workers) for own in claims)
    )

    assert len(done) == total
    assert set(done.values()) == {1}
    counts = await scene.store.tasks.counts(task_id)
    assert counts.get(StepStatus.COMPLETED) == total


# -- pull workers and the end of their task
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_a_task_ends_by_its_own_steps_and_not_before_its_pull_workers(scene: ContractHarness, end: str) -> None:
    own = await scene.start(pull_worker(priority=1, on_failure=FailurePolicy.KEEP), work("a"))
    task_id = own.identity.task_id
    await scene.complete(await scene.claim_one())
    assert await scene.finish(task_id) is None

    await scene.advance([{"completed": completed, "failed": failed, "cancelled": cancelled}[end](own)])
    for left in await scene.store.tasks.failures(scene.own):
        await scene.settle(left.key, left.on_failure)

    assert await scene.finish(task_id) is TaskStatus.COMPLETED


async def test_a_step_that_failed_under_a_pull_worker_fails_its_task_and_is_named_alone(scene: ContractHarness) -> None:
    own = await scene.start(pull_worker(on_failure=FailurePolicy.KEEP), pulled("p"))
    task_id = own.identity.task_id
    await scene.advance([failed(await taken(scene, own, "p")), failed(own)])
    for left in await scene.store.tasks.failures(scene.own):
        await scene.settle(left.key, left.on_failure)

    assert await scene.finish(task_id) is TaskStatus.FAILED
    assert (await scene.store.tasks.task(task_id)).reason == "p"


async def test_a_task_is_not_completed_by_its_planner_while_a_pull_worker_goes_on(scene: ContractHarness) -> None:
    own = await scene.start(pull_worker())

    with pytest.raises(ConflictError, match="pull-worker"):
        await scene.store.tasks.end_task(
            scene.own, own.identity.task_id, TaskEvent.COMPLETE, reason="", now_us=scene.now_us
        )


async def test_pull_workers_are_added_once_by_one_command(scene: ContractHarness) -> None:
    task_id = await scene.task(pulled("p"))
    task = await scene.store.tasks.task(task_id)
    root = (await scene.store.runs.run(task.root_run_id)).identity
    change = TaskChange(steps=make_more(task, root, pull_worker("pull-worker-1")))
    command_id = await scene.command(task_id, CommandKind.DISPATCH)

    await scene.store.tasks.update_task(scene.own, task_id, change, now_us=scene.now_us, command_id=command_id)

    assert await scene.store.sessions.take_commands(scene.own) == []
    with pytest.raises(ConflictError, match="pull-worker-1"):
        await scene.store.tasks.update_task(scene.own, task_id, change, now_us=scene.now_us)
    own = await scene.claim_one()
    assert (await scene.store.tasks.step(own.step_key)).is_pull_worker
