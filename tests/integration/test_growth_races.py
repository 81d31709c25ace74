"""Two processes over one database, each of which writes before it sees what the other writes: nothing is lost."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from sqlalchemy import RootTransaction, make_url

from soong.orchestrator.approvals.deployment_key import open_key
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.record import Run
from soong.shared.engine.sessions.session import CommandKind, Ownership
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import NewStep, Task
from soong.shared.permissions.signing import Signer
from soong.shared.storage.sql.store import SqlStore, open_store
from tests.contract.databases import sqlite_copy
from tests.contract.scene import ContractHarness, completed, open_scene, step_ids
from tests.model.builders import make_command, make_more, make_session, make_step
from tests.system.deployment import Deployment
from tests.waiting import looks, wait_until

T = TypeVar("T")
LIMIT_S = 30.0


@asynccontextmanager
async def two_workers(url: str) -> AsyncIterator[tuple[ContractHarness, ContractHarness]]:
    """One session as two workers' processes see it."""
    stores = await open_store(url, migrate=True), await open_store(url)
    scene = await open_scene(stores[0])
    yield scene, ContractHarness(stores[1], scene.own, await scene.another_worker())
    for store in stores:
        await store.close()


@asynccontextmanager
async def held_before_commit(scene: ContractHarness, work: Coroutine[Any, Any, T]) -> AsyncIterator["asyncio.Task[T]"]:
    """Write at once what ``work`` writes, and commit it when this ends."""
    is_written, may_commit = threading.Event(), threading.Event()

    def commit_later(transaction: RootTransaction) -> None:
        is_written.set()
        assert may_commit.wait(LIMIT_S)
        transaction.commit()

    assert isinstance(scene.store, SqlStore)
    usual = scene.store._database._writer.committer
    scene.store._database._writer.committer = commit_later
    writing = asyncio.create_task(work)
    try:
        assert await asyncio.to_thread(is_written.wait, LIMIT_S)
        yield writing
    finally:
        may_commit.set()
        await asyncio.wait({writing}, timeout=LIMIT_S)
        scene.store._database._writer.committer = usual


@pytest.fixture
async def workers(postgres_url: str) -> AsyncIterator[tuple[ContractHarness, ContractHarness]]:
    async with two_workers(postgres_url) as both:
        yield both


@pytest.mark.spec("DAG-04.b")
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


async def ended_task(scene: ContractHarness) -> tuple[Ownership, str]:
    """Make a task that has nothing left but its end, in a session that is to end with it."""
    await scene.store.sessions.open_session(make_session(closes_with_task=True))
    (adopted,) = await scene.store.sessions.adopt_sessions(scene.own.owner_id)
    task_id = await scene.task("a", own=adopted.ownership)
    await scene.complete(await scene.claim_one())
    return adopted.ownership, task_id


@pytest.mark.spec("CARD-1.d")
async def test_a_command_that_comes_while_its_session_is_being_closed_is_refused(
    workers: tuple[ContractHarness, ContractHarness],
) -> None:
    owner, client = workers
    own, task_id = await ended_task(owner)
    command = make_command(own.session_id, CommandKind.CANCEL, task_id)

    finishing = owner.store.tasks.look_and_finish(own, now_us=owner.now_us)
    async with held_before_commit(owner, finishing) as ending:
        sending = asyncio.create_task(client.store.sessions.send_command(command))
        await asyncio.wait({sending}, timeout=0.2)
    await sending
    _, (ended,) = await ending

    assert ended.is_closed
    found, has_ended = await client.store.sessions.command(command.id)
    assert has_ended
    assert "'completed' cannot take 'cancel'" in found.refusal


STEPS = 60
WAITING = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def grow(scene: ContractHarness, task: Task, root: Run, name: str, parent: str) -> None:
    steps = make_more(task, root.identity, make_step(name, depends_on=(parent,)))
    await scene.store.tasks.update_task(scene.own, task.id, TaskChange(steps=steps), now_us=scene.now_us)


@pytest.mark.spec("DAG-01", "DAG-07")
async def test_no_join_is_lost_between_a_growth_and_an_end(workers: tuple[ContractHarness, ContractHarness]) -> None:
    owner, worker = workers
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
    workers: tuple[ContractHarness, ContractHarness], postgres_url: str
) -> None:
    owner, worker = workers
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
    workers: tuple[ContractHarness, ContractHarness], postgres_url: str, more: tuple[NewStep, ...]
) -> None:
    """The end's statement began before the growth was committed, so what it reads of the edges is older."""
    owner, worker = workers
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


@pytest.mark.spec("PER-12", "OPS-12")
async def test_the_second_of_two_first_owners_waits_and_learns_that_its_key_is_not_published(
    postgres_url: str, tmp_path: Path
) -> None:
    store = await open_store(postgres_url, migrate=True)
    plain_url = make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    first = "INSERT INTO signing_keys (id, public_key, created_us, is_first) VALUES ('key_a', %s, 1, 1)"
    try:
        async with await psycopg.AsyncConnection.connect(plain_url) as other:
            await other.execute(first, [b"a" * 32])  # the first owner, in the middle of its transaction

            second = asyncio.create_task(open_key(store, tmp_path / "signing.key", SystemClock()))
            await until_done_or_waiting(second, plain_url)
            assert not second.done(), "it decides by what it cannot see"
            await other.commit()
            with pytest.raises(InvalidConfigError, match="not among the published keys"):
                await second

        assert [key.id for key in await store.keys.signing_keys()] == ["key_a"]
    finally:
        await store.close()


@pytest.mark.spec("PER-12", "OPS-12")
async def test_an_owner_tells_that_its_key_file_was_exchanged_before_anybody_asks(
    sqlite_template: Path, redis_url: str, tmp_path: Path
) -> None:
    async with Deployment(sqlite_copy(sqlite_template, tmp_path), redis_url, tmp_path / "home") as service:
        theirs = Signer.generate()
        theirs.save(service.settings.key_file)

        async def is_told() -> bool:
            return bool(await service.store.audit.audit_entries(kinds=["security"]))

        await service.until(is_told)
        told = await service.store.audit.audit_entries(kinds=["security"])

    assert [(entry.data["what"], entry.data["key"]) for entry in told] == [("unpublished_key", theirs.key_id)]


async def until_done_or_waiting(task: "asyncio.Task[object]", url: str) -> None:
    """Return when a task is done, or waits for a lock of another transaction."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as looking:
        async for _ in looks(LIMIT_S):
            rows = await looking.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            if task.done() or await rows.fetchone() is not None:
                return
