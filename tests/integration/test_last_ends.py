"""Two workers end the last steps of a task at once, and neither end sees the other: one of them says it is over."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.status import TaskStatus
from tests.contract.scene import ContractHarness, completed
from tests.integration.held_commits import LIMIT_S, held_before_commit, two_workers
from tests.model.builders import make_session, make_step, make_task

pytestmark = pytest.mark.spec("DAG-04.b")


@pytest.fixture
async def workers(postgres_url: str) -> AsyncIterator[tuple[ContractHarness, ContractHarness]]:
    async with two_workers(postgres_url) as both:
        yield both


async def test_the_owner_is_asked_to_end_the_task(workers: tuple[ContractHarness, ContractHarness]) -> None:
    slow, quick = workers
    task_id = await slow.task("a", "b")
    first = await slow.claim_one()

    async with held_before_commit(slow, slow.complete(first)) as ending:  # it sees that another step is ready
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

    async with held_before_commit(slow, slow.complete(first)) as ending:
        second = await quick.complete(await quick.claim_one())
    assert not second.closed_sessions | (await ending).closed_sessions

    assert (await slow.advance()).closed_sessions == {session.id}
    assert (await slow.store.tasks.task(task.id)).status is TaskStatus.COMPLETED


async def test_a_task_whose_tail_another_worker_holds_is_looked_at_when_that_has_ended(
    workers: tuple[ContractHarness, ContractHarness],
) -> None:
    """Two that hold the tails of their own tasks and wait for each other's would wait for ever."""
    slow, quick = workers
    passed_over, own = await slow.another_session(), await slow.another_session()
    await slow.task("a", "b", own=passed_over)
    first, second = await slow.claim(2)
    await slow.release(second)
    await slow.advance([completed(first)])
    await slow.task("c", own=own)
    claims = {claim.identity.session_id: claim for claim in await quick.claim(2)}

    async with held_before_commit(quick, quick.complete(claims[passed_over.session_id])) as ending:
        async with asyncio.timeout(LIMIT_S / 3):
            end = await slow.advance([completed(claims[own.session_id])], worker=quick.worker)
        assert (end.owner_sessions, end.look_again) == (frozenset({own.session_id}), True)
    assert (await ending).owner_sessions == {passed_over.session_id}

    again = await slow.advance()

    assert (again.owner_sessions, again.look_again) == (frozenset({passed_over.session_id}), False)


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
