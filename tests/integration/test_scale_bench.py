"""The question that the benchmark of several workers asks of the rows finds what it is asked for."""

import psycopg
import pytest

from benchmarks.past import end_of
from benchmarks.scale import CLAIMED_TWICE
from soong.shared.engine.tasks.step import Claim, Lease
from soong.shared.storage.sql.engine.engine import parse_url
from soong.shared.storage.sql.store import SqlStore
from tests.integration.sql_stores import begin, claim_one, opened
from tests.model.clock import START_US


@pytest.mark.spec("DAG-03")
async def test_a_step_that_was_claimed_once_is_distinguished_from_one_that_was_claimed_twice(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        session, worker_id = await begin(store)
        once, twice = [await claim_one(store, session, worker_id) for _ in range(2)]
        held = Lease(twice.step_key, twice.identity.run_id, twice.fence)
        await store.claims.release(worker_id, [held], reason="drain", now_us=START_US)
        (again,) = await advance(store, worker_id, claim=1)
        await advance(store, worker_id, once, again)

    plain = parse_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as connection:
        assert connection.execute(CLAIMED_TWICE).fetchone() == (2, 1)


async def advance(store: SqlStore, worker_id: str, *ended: Claim, claim: int = 0) -> tuple[Claim, ...]:
    taken = await store.claims.advance(
        worker_id,
        [end_of(each) for each in ended],
        claim=claim,
        pools=("default",),
        capabilities=(),
        live_workers=1,
        now_us=START_US,
    )
    return taken.claims
