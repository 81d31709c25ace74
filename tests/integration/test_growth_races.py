"""A step grows onto another that ends at that very moment: whoever comes first, it becomes ready."""

import asyncio
import threading
from collections.abc import AsyncIterator

import psycopg
import pytest
from sqlalchemy import RootTransaction

from soong.shared.engine.runs.record import Run
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import NewStep, Task
from soong.shared.storage.sql.store import SqlStore, open_store
from tests.contract.scene import ContractHarness, completed, open_scene, step_ids
from tests.model.builders import make_more, make_step
from tests.waiting import wait_until

STEPS = 60
LIMIT_S = 30.0
WAITING = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
async def scenes(postgres_url: str) -> AsyncIterator[tuple[ContractHarness, ContractHarness]]:
    """One session as its owner's process and a worker's see it."""
    owner, worker = await open_store(postgres_url, migrate=True), await open_store(postgres_url)
    scene = await open_scene(owner)
    yield scene, ContractHarness(worker, scene.own, scene.worker)
    await owner.close()
    await worker.close()


async def grow(scene: ContractHarness, task: Task, root: Run, name: str, parent: str) -> None:
    steps = make_more(task, root.identity, make_step(name, depends_on=(parent,)))
    await scene.store.tasks.update_task(scene.own, task.id, TaskChange(steps=steps), now_us=scene.now_us)


@pytest.mark.spec("DAG-01", "DAG-07")
async def test_no_join_is_lost_between_a_growth_and_an_end(scenes: tuple[ContractHarness, ContractHarness]) -> None:
    owner, worker = scenes
    task_id = await owner.task(*(f"p{number}" for number in range(STEPS)))
    task = await owner.store.tasks.task(task_id)
    root = await owner.store.runs.run(task.root_run_id)
    claims = {claim.step_key.rpartition("/")[2]: claim for claim in await worker.claim(STEPS)}

    for number in range(STEPS):
        await asyncio.gather(
            grow(owner, task, root, f"g{number}", f"p{number}"), worker.advance([completed(claims[f"p{number}"])])
        )
    # Nothing else looks again at what one of these missed while other steps can run.
    assert await owner.store.tasks.finish_task(owner.own, task_id, now_us=owner.now_us) is None

    statuses = await owner.statuses(task_id)
    assert {statuses[f"g{number}"] for number in range(STEPS)} == {StepStatus.READY}


@pytest.mark.spec("DAG-07")
async def test_a_join_that_was_lost_all_the_same_is_found_when_nothing_else_is_left(
    scenes: tuple[ContractHarness, ContractHarness], postgres_url: str
) -> None:
    owner, worker = scenes
    task_id = await owner.task("a", make_step("b", depends_on=("a",)))
    await worker.complete(await worker.claim_one())
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
        connection.execute("UPDATE steps SET status = 'pending', open_deps = 1 WHERE step_id = 'b'")

    assert await owner.store.tasks.finish_task(owner.own, task_id, now_us=owner.now_us) is None

    await worker.complete(await worker.claim_one())
    ended = await owner.store.tasks.finish_task(owner.own, task_id, now_us=owner.now_us)
    assert ended is not None
    assert ended.status is TaskStatus.COMPLETED


@pytest.mark.spec("DAG-01", "DAG-07")
@pytest.mark.parametrize("more", [(), (make_step("q", depends_on=("p",)),)], ids=["alone", "with a successor"])
async def test_an_end_that_waits_for_a_growth_opens_the_step_that_grew(
    scenes: tuple[ContractHarness, ContractHarness], postgres_url: str, more: tuple[NewStep, ...]
) -> None:
    """The end's statement began before the growth was committed, so what it reads of the edges is older."""
    owner, worker = scenes
    task_id = await owner.task("p", "other", *more)
    task = await owner.store.tasks.task(task_id)
    root = await owner.store.runs.run(task.root_run_id)
    claims = {claim.step_key.rpartition("/")[2]: claim for claim in await worker.claim(2)}
    is_written = threading.Event()

    def commit_once_the_end_waits(transaction: RootTransaction) -> None:
        is_written.set()
        wait_for_lock(postgres_url)
        transaction.commit()

    assert isinstance(owner.store, SqlStore)
    owner.store._database._writer.committer = commit_once_the_end_waits
    growing = asyncio.create_task(grow(owner, task, root, "g", "p"))
    assert await asyncio.to_thread(is_written.wait, LIMIT_S)
    advance = await worker.advance([completed(claims["p"])], claim=len(more))
    await growing

    assert step_ids(advance.claims) == [step.step_id for step in more]
    assert (await worker.statuses(task_id))["g"] is StepStatus.READY


def wait_for_lock(postgres_url: str) -> None:
    """Return once a statement in this database waits for a lock."""
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
        wait_until(lambda: connection.execute(WAITING).fetchone() is not None, LIMIT_S, "a statement waits for a lock")
