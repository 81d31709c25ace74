"""A worker closes a short task's session, and at the same moment more comes to it: nothing is left to nobody."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from soong.shared.engine.sessions.session import ApprovalMode, CommandKind
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.storage.sql.claims.task_ends import LastStepEnd, end_with_last_step, send_last_step
from soong.shared.storage.sql.engine.transaction import Reply
from soong.shared.storage.sql.store import SqlStore
from tests.contract.scene import ContractHarness
from tests.integration.held_commits import held_before_commit, two_workers
from tests.integration.sql_stores import connected
from tests.model.builders import make_command, make_session, make_task

pytestmark = pytest.mark.spec("CARD-1.d")


@pytest.fixture
async def both(postgres_url: str) -> AsyncIterator[tuple[ContractHarness, ContractHarness]]:
    """A worker's process and a client's."""
    async with two_workers(postgres_url) as processes:
        yield processes


async def short_task(scene: ContractHarness) -> tuple[str, str]:
    """Submit a task that its worker is to end; return the ids of its session and its own."""
    session = make_session(closes_with_task=True, approval_mode=ApprovalMode.DENY)
    task = make_task(session.id, "a")
    await scene.store.tasks.submit(session, task)
    return session.id, task.id


async def test_a_command_that_comes_while_its_session_is_being_closed_is_refused(
    both: tuple[ContractHarness, ContractHarness],
) -> None:
    worker, client = both
    session_id, task_id = await short_task(worker)
    claim = await worker.claim_one()
    command = make_command(session_id, CommandKind.CANCEL, task_id)

    async with held_before_commit(worker, worker.complete(claim)) as ending:
        sending = asyncio.create_task(client.store.sessions.send_command(command))
        await asyncio.wait({sending}, timeout=0.2)
    await sending

    assert (await ending).closed_sessions == {session_id}
    found, has_ended = await client.store.sessions.command(command.id)
    assert has_ended
    assert "'completed' cannot take 'cancel'" in found.refusal


async def test_a_session_is_not_closed_while_a_command_is_being_written(
    both: tuple[ContractHarness, ContractHarness],
) -> None:
    worker, client = both
    session_id, task_id = await short_task(worker)
    claim = await worker.claim_one()
    command = make_command(session_id, CommandKind.CANCEL, task_id)

    async with held_before_commit(client, client.store.sessions.send_command(command)):
        end = await worker.complete(claim)

    assert (end.closed_sessions, end.owner_sessions) == (frozenset(), frozenset({session_id}))
    (adopted,) = await client.store.sessions.adopt_sessions(client.own.owner_id)
    assert await client.store.sessions.take_commands(adopted.ownership) == [command]


async def answered_before(scene: ContractHarness, url: str) -> tuple[str, str, Reply]:
    """Have a task that has nothing left but its end; return what its worker hears of it before more comes."""
    session_id, task_id = await short_task(scene)
    claim = await scene.claim_one()
    with connected(url) as connection:  # another holds the session, so the worker leaves the end to others
        connection.exec_driver_sql("SELECT 1 FROM sessions FOR UPDATE")
        assert (await scene.complete(claim)).owner_sessions == {session_id}
    assert isinstance(scene.store, SqlStore)
    return (
        session_id,
        task_id,
        await scene.store._database.write(lambda tx: _asked(send_last_step(tx, task_id, session_id))),
    )


def _asked(reply: Reply) -> Reply:
    assert reply.rows()
    return reply


@pytest.mark.parametrize("is_command", [False, True])
async def test_a_session_to_which_more_came_before_it_was_held_stays_open(
    both: tuple[ContractHarness, ContractHarness], postgres_url: str, is_command: bool
) -> None:
    """PostgreSQL reads what a statement asks for, then locks, and looks again at the locked row alone."""
    worker, client = both
    session_id, task_id, asked = await answered_before(worker, postgres_url)
    if is_command:
        await client.store.sessions.send_command(make_command(session_id, CommandKind.CANCEL, task_id))
    else:
        await client.store.tasks.create_task(make_task(session_id, "b"))

    assert isinstance(worker.store, SqlStore)
    end = await worker.store._database.write(
        lambda tx: end_with_last_step(tx, task_id, session_id, worker.now_us, asked=asked)
    )

    assert end is LastStepEnd.RECORDED
    assert (await client.store.tasks.task(task_id)).status is TaskStatus.COMPLETED
    assert not (await client.store.sessions.session(session_id)).is_closed
    assert [one.id for one in await client.store.sessions.adopt_sessions(client.own.owner_id)] == [session_id]
