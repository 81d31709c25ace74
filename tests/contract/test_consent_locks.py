"""Questions that several hold at once on PostgreSQL: those who answer and those who decide take them in one order.

The fixture of the database fails the test when PostgreSQL had to end one of two transactions for the other.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest

from soong.shared.engine.runs.events import NewEvent
from soong.shared.permissions.request import PermissionRequest
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.store import SqlStore, open_store
from tests.contract.scene import ContractHarness, open_scene
from tests.model.builders import make_answer, make_request

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
    """Make writes of one store in one transaction, in their order."""
    is_full = threading.Event()

    def wait(_tx: Transaction) -> bool:
        return is_full.wait(LIMIT_S)

    before = asyncio.ensure_future(store.consent._database.write(wait))
    writing = [asyncio.ensure_future(write()) for write in writes]
    await asyncio.sleep(0)  # each is handed to the writer
    is_full.set()
    await before
    return await asyncio.gather(*writing)


async def waiting(connection: psycopg.AsyncConnection[Any], count: int) -> None:
    """Wait until so many transactions wait for a row that another holds."""
    async with asyncio.timeout(LIMIT_S):
        while (await (await connection.execute(WAITING)).fetchone() or (0,))[0] < count:  # noqa: ASYNC110  # rows
            await asyncio.sleep(0.01)


def undecided(scene: ContractHarness, request: PermissionRequest) -> Callable[[], Awaitable[Any]]:
    """Return what looks for an answer of a question that has none, and holds it meanwhile."""
    own, now_us = scene.own, scene.now_us
    return lambda: scene.store.consent.decide_by_answer(own, request.id, lambda _: None, key_id="key_1", now_us=now_us)


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
            deciding = asyncio.ensure_future(written_together(owner, undecided(scene, second), undecided(scene, first)))
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

            assert await deciding == [None, None]
            await answering
        assert await owner.consent.answer_of(first.id) is not None
        assert await owner.consent.answer_of(second.id) is not None


async def test_questions_of_several_runs_are_raised_together_and_one_that_is_there_is_taken_up(
    postgres_deployment: str,
) -> None:
    async with opened(postgres_deployment) as worker:
        scene = await open_scene(worker)
        await scene.task("a", "b", "c")
        claims = await scene.claim(3)
        requests = [make_request(claim) for claim in claims]
        early: list[str] = []

        def raising(request: PermissionRequest) -> Awaitable[str]:
            event = NewEvent("permission_requested")
            return worker.consent.raise_request(
                request, events=[event], now_us=scene.now_us, before_commit=early.append
            )

        standing = await raising(requests[0])
        alone = list(early)
        again = replace(requests[0], id="req_again")
        raised = await written_together(worker, *(partial(raising, one) for one in (again, *requests[1:])))
        logs = [await scene.event_types(claim.identity.run_id) for claim in claims]

        assert alone == [standing]
        assert raised == [request.id for request in requests]
        assert [log.count("permission_requested") for log in logs] == [1, 1, 1]
