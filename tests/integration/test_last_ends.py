"""Two workers end the last steps of a task at once, and neither end sees the other: one of them says it is over."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import RootTransaction

from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.engine.tasks.step import Advance, Claim
from soong.shared.storage.sql.store import SqlStore, open_store
from tests.contract.scene import ContractHarness, completed, open_scene
from tests.model.builders import make_session, make_step, make_task

LIMIT_S = 30.0

pytestmark = pytest.mark.spec("DAG-04.b")


@pytest.fixture
async def workers(postgres_url: str) -> AsyncIterator[tuple[ContractHarness, ContractHarness]]:
    """One session as two workers' processes see it."""
    stores = await open_store(postgres_url, migrate=True), await open_store(postgres_url)
    scene = await open_scene(stores[0])
    yield scene, ContractHarness(stores[1], scene.own, await scene.another_worker())
    for store in stores:
        await store.close()


@asynccontextmanager
async def held_before_commit(scene: ContractHarness, claim: Claim) -> AsyncIterator["asyncio.Task[Advance]"]:
    """Write the end of a step at once, and commit it when this ends."""
    is_written, may_commit = threading.Event(), threading.Event()

    def commit_later(transaction: RootTransaction) -> None:
        is_written.set()
        assert may_commit.wait(LIMIT_S)
        transaction.commit()

    assert isinstance(scene.store, SqlStore)
    usual = scene.store._database.committer
    scene.store._database.committer = commit_later
    ending = asyncio.create_task(scene.advance([completed(claim)]))
    try:
        assert await asyncio.to_thread(is_written.wait, LIMIT_S)
        yield ending
    finally:
        may_commit.set()
        await asyncio.wait({ending}, timeout=LIMIT_S)
        scene.store._database.committer = usual


async def test_the_owner_is_asked_to_end_the_task(workers: tuple[ContractHarness, ContractHarness]) -> None:
    slow, quick = workers
    task_id = await slow.task("a", "b")
    first = await slow.claim_one()

    async with held_before_commit(slow, first) as ending:  # it sees that another step is ready
        second = await quick.complete(await quick.claim_one())  # it sees that the first runs
    end = await ending
    assert not second.owner_sessions | end.owner_sessions
    assert end.look_again

    again = await slow.advance()

    assert again.owner_sessions == {slow.own.session_id}
    assert not again.look_again
    assert await slow.finish(task_id) is TaskStatus.COMPLETED


async def test_a_session_without_an_owner_is_closed(workers: tuple[ContractHarness, ContractHarness]) -> None:
    slow, quick = workers
    session = make_session(closes_with_task=True, approval_mode=ApprovalMode.DENY)
    task = make_task(session.id, "a", "b")
    await slow.store.tasks.submit(session, task)
    first = await slow.claim_one()

    async with held_before_commit(slow, first) as ending:
        second = await quick.complete(await quick.claim_one())
    assert not second.closed_sessions | (await ending).closed_sessions

    assert (await slow.advance()).closed_sessions == {session.id}
    assert (await slow.store.tasks.task(task.id)).status is TaskStatus.COMPLETED


async def test_nothing_is_looked_at_again_where_a_step_waits_for_the_end(
    workers: tuple[ContractHarness, ContractHarness],
) -> None:
    slow, _ = workers
    await slow.task("a", make_step("b", depends_on=("a",)))

    end = await slow.advance([completed(await slow.claim_one())])

    assert (end.ready_left, end.look_again) == (True, False)


async def test_nothing_is_looked_at_again_by_a_worker_that_claims_another_step_of_the_task(
    workers: tuple[ContractHarness, ContractHarness],
) -> None:
    slow, _ = workers
    await slow.task("a", "b", "c")

    end = await slow.advance([completed(await slow.claim_one())], claim=1)

    assert (len(end.claims), end.ready_left, end.look_again) == (1, True, False)
