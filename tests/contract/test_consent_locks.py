"""Questions that several hold at once on PostgreSQL: those who answer and those who decide take them in one order."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from soong.shared.core.errors import AlreadyDecidedError
from soong.shared.permissions.audit_log import AuditKind
from soong.shared.permissions.request import Choice, PermissionRequest, RequestState
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.store import SqlStore, open_store
from tests.contract.scene import ContractHarness, open_scene
from tests.contract.test_consent import ask, decide
from tests.model.builders import make_answer, make_decision, make_request
from tests.waiting import looks, others_run

LIMIT_S = 30.0
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[SqlStore]:
    store = await open_store(url, migrate=False)
    assert isinstance(store, SqlStore)
    try:
        yield store
    finally:
        await store.close()


async def written_together(store: SqlStore, *writes: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Make writes of one store in one transaction, in their order; return their results and errors."""
    is_full = threading.Event()

    def wait(_tx: Transaction) -> bool:
        return is_full.wait(LIMIT_S)

    before = asyncio.ensure_future(store.consent._database.write(wait))
    writing = [asyncio.ensure_future(write()) for write in writes]
    await others_run()  # each is handed to the writer
    is_full.set()
    await before
    return await asyncio.gather(*writing, return_exceptions=True)


async def waiting(connection: psycopg.AsyncConnection[Any], count: int) -> None:
    """Wait until so many transactions wait for a row that another holds."""
    async for _ in looks(LIMIT_S):
        if (await (await connection.execute(WAITING)).fetchone() or (0,))[0] >= count:
            break


def deciding_of(scene: ContractHarness, request: PermissionRequest) -> Callable[[], Awaitable[Any]]:
    """Return what denies a question, which it holds meanwhile."""
    return lambda: scene.store.consent.decide(
        scene.own, make_decision(request, Choice.DENY), state=RequestState.DECIDED, events=(), now_us=scene.now_us
    )


@pytest.mark.spec("PER-13")
async def test_who_answers_questions_and_who_decides_them_never_wait_for_each_other(postgres_deployment: str) -> None:
    plain = postgres_deployment.replace("+psycopg", "")
    async with opened(postgres_deployment) as owner, opened(postgres_deployment) as client:
        scene = await open_scene(owner)
        claim = await scene.start("a")
        asked = [await scene.raised(make_request(claim, call), ()) for call in ("call_1", "call_2")]
        first, second = sorted(asked, key=lambda request: request.id)
        async with (
            await psycopg.AsyncConnection.connect(plain) as holder,
            await psycopg.AsyncConnection.connect(plain, autocommit=True) as observer,
        ):
            await holder.execute("SELECT 1 FROM permission_requests WHERE id = %s FOR UPDATE", [second.id])
            deciding = asyncio.ensure_future(
                written_together(owner, deciding_of(scene, second), deciding_of(scene, first))
            )
            await waiting(observer, 1)
            answering = asyncio.ensure_future(
                written_together(
                    client,
                    lambda: client.consent.answer(make_answer(first)),
                    lambda: client.consent.answer(make_answer(second)),
                )
            )
            await waiting(observer, 2)

            await holder.rollback()

            receipts = await deciding
            outcomes = await answering

        assert [receipt.worker_id for receipt in receipts] == [scene.worker] * 2
        assert [type(outcome) for outcome in outcomes] == [AlreadyDecidedError] * 2


# -- an answer that is written again: its responder does not know whether its commit was applied
@pytest.mark.parametrize("state", [None, RequestState.DECIDED, RequestState.EXPIRED, RequestState.WITHDRAWN])
@pytest.mark.spec("PER-15.d")
async def test_an_answer_that_is_given_again_after_a_lost_commit_is_no_late_one(
    scene: ContractHarness, state: RequestState | None
) -> None:
    """Its responder cannot know that it was written, and the owner has perhaps settled the question meanwhile."""
    claim = await scene.start("a")
    request = await ask(scene, claim)
    answer = make_answer(request, Choice.ALLOW_FOR_SESSION)
    await scene.store.consent.answer(answer)
    if state is RequestState.WITHDRAWN:
        await scene.withdraw(claim, "call_1", "abort")
    elif state is not None:
        await decide(scene, request, state)
    before = await scene.event_types(claim.identity.run_id)

    await scene.store.consent.answer(answer)
    with pytest.raises(AlreadyDecidedError):
        await scene.store.consent.answer(replace(answer, principal="bob"))

    kinds = [entry.kind for entry in await scene.store.audit.audit_entries()]
    assert (kinds.count(AuditKind.ANSWER), kinds.count(AuditKind.SECURITY)) == (1, 1)
    assert await scene.event_types(claim.identity.run_id) == [*before, "security"]
