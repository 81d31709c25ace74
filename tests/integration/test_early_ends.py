"""Who waits for a task is notified while its end is committed, and again when it has been."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import RootTransaction

from soong.shared.core.clock import SystemClock
from soong.shared.engine.tasks.ending import TaskEnd
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.engine.tasks.step import Claim
from soong.shared.storage.sql.store import SqlStore, open_store
from soong.worker.claim_loop import TOLD_SOON, ClaimLoop, WorkerCapacity
from tests.contract.scene import ContractHarness, completed, open_scene
from tests.model.builders import make_session, make_step, make_task
from tests.model.memory.notifier import MemoryBus

LIMIT_S = 30.0


@pytest.fixture(params=["sqlite", "postgres"])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[ContractHarness]:
    url = "sqlite:///" + str(request.getfixturevalue("tmp_path") / "soong.db")
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    store = await open_store(url, migrate=True)
    yield await open_scene(store)
    await store.close()


@asynccontextmanager
async def claim_loop(scene: ContractHarness, bus: MemoryBus) -> AsyncIterator[ClaimLoop]:
    """A worker's claim loop without a free slot: it hands in ends and claims nothing."""
    capacity = WorkerCapacity(scene.worker, ("default",), ())
    loop = ClaimLoop(scene.store.claims, bus, SystemClock(), lambda: capacity, lambda: 0, lambda claim: None)
    running = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def short_tasks(scene: ContractHarness, count: int) -> list[Claim]:
    """Submit tasks of one step, each in a session of its own that is to end with it, and claim them."""
    for _ in range(count):
        session = make_session(closes_with_task=True)
        await scene.store.tasks.submit(session, make_task(session.id, "a"))
    return list(await scene.claim(count))


def until_released(scene: ContractHarness) -> threading.Event:
    """Hold each commit of the store until the event is set."""
    may_commit = threading.Event()

    def commit(transaction: RootTransaction) -> None:
        assert may_commit.wait(LIMIT_S)
        transaction.commit()

    assert isinstance(scene.store, SqlStore)
    scene.store._database.committer = commit
    return may_commit


async def test_a_client_hears_of_an_end_that_is_being_committed_and_again_of_the_one_that_is(
    scene: ContractHarness,
) -> None:
    bus = MemoryBus()
    (claim,) = await short_tasks(scene, 1)
    waiting = await bus.subscribe_session(claim.identity.session_id)
    read: Callable[[], Awaitable[TaskEnd | TaskStatus]] = partial(scene.store.tasks.end_of, claim.identity.task_id)
    may_commit = until_released(scene)

    async with claim_loop(scene, bus) as loop:
        ending = asyncio.create_task(loop.next_step(completed(claim), claim, wants_step=False))
        early = await waiting.wait(LIMIT_S)
        found_early = await read()
        may_commit.set()
        late = await waiting.wait(LIMIT_S)
        found = await read()
        await ending

    assert early == late == (claim.identity.session_id,)
    assert found_early is TaskStatus.RUNNING
    assert isinstance(found, TaskEnd)
    assert found.task.status is TaskStatus.COMPLETED


async def test_the_clients_of_many_tasks_hear_of_their_ends_once(scene: ContractHarness) -> None:
    bus = MemoryBus()
    claims = await short_tasks(scene, TOLD_SOON + 1)
    waiting = await bus.subscribe_session(claims[0].identity.session_id)
    may_commit = until_released(scene)

    async with claim_loop(scene, bus) as loop:
        turns = [asyncio.create_task(loop.next_step(completed(one), one, wants_step=False)) for one in claims]
        early = await waiting.wait(0.2)
        may_commit.set()
        late = await waiting.wait(LIMIT_S)
        await asyncio.gather(*turns)

    assert early == ()
    assert late == (claims[0].identity.session_id,)


async def test_a_worker_that_holds_one_step_ends_it_in_its_loop(tmp_path: Path) -> None:
    """One with more of them has more to do in its loop, and leaves the transaction to a thread."""
    store = await open_store(f"sqlite:///{tmp_path / 'soong.db'}", migrate=True)
    scene = await open_scene(store)
    chain = [make_step("a"), make_step("b", depends_on=("a",)), make_step("c", depends_on=("b",))]
    for _ in range(2):
        await store.tasks.create_task(make_task(scene.own.session_id, *chain))
    threads: list[str] = []

    def commit(transaction: RootTransaction) -> None:
        threads.append(threading.current_thread().name)
        transaction.commit()

    async with claim_loop(scene, MemoryBus()) as loop:
        first, second = [claim for _ in range(2) if (claim := await loop.next_step(None)) is not None]
        store._database.committer = commit
        await loop.next_step(completed(first), first, wants_step=False)
        hop = await loop.next_step(completed(second), second)
        assert hop is not None
        await loop.next_step(completed(hop), hop)

    await store.close()
    here = threading.current_thread().name
    assert threads[:3] == ["soong-sql-write", here, here]
