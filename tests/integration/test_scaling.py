"""An autoscaler without a Prometheus asks PostgreSQL how many slots a pool wants, as a role that reads nothing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
import yaml

from soong.orchestrator.telemetry.metrics import collect
from soong.shared.engine.tasks.step import ConcurrencyLimit
from soong.shared.storage.sql.engine.engine import parse_url
from soong.shared.storage.sql.engine.tables import metadata
from soong.shared.storage.sql.roles.role_grants import Roles, grant
from soong.shared.storage.sql.tasks.metrics import SqlMetrics
from tests.contract.pulling import pulled, taken, work
from tests.contract.scene import ContractHarness, open_scene
from tests.integration.roles import plain
from tests.integration.sql_stores import opened
from tests.model.builders import make_step
from tests.model.clock import FakeClock

SCALER = "soong_scaler"
TRIGGER = Path(__file__).parents[2] / "deploy" / "kubernetes" / "keda-sql" / "trigger.yaml"
POOLS = ("default", "big")


@pytest.fixture
async def scene(postgres_url: str) -> AsyncIterator[ContractHarness]:
    async with opened(postgres_url) as store:
        with psycopg.connect(plain(postgres_url), autocommit=True) as admin:
            if admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (SCALER,)).fetchone() is None:
                admin.execute(f"CREATE ROLE {SCALER} LOGIN".encode())
        grant(parse_url(postgres_url), Roles(scaler=SCALER))
        yield await open_scene(store)


@pytest.fixture
def scaler_url(postgres_url: str) -> str:
    return plain(postgres_url).replace("//postgres@", f"//{SCALER}@")


def wanted(url: str, pool: str = "default") -> int:
    """Ask as KEDA does: the query of the manifest, by the role that it has a secret of."""
    (trigger,) = yaml.safe_load(TRIGGER.read_text())["spec"]["triggers"]
    with psycopg.connect(url, autocommit=True) as connection:
        query = trigger["metadata"]["query"].replace("'default'", f"'{pool}'")
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


async def measured(scene: ContractHarness, url: str, pool: str = "default") -> int:
    """Return what the trigger for Prometheus adds up."""
    source = SqlMetrics(parse_url(url))
    snapshot = await collect(scene.store, source, FakeClock())
    await source.close()
    of_pool = snapshot.metrics.pools.get(pool)
    return snapshot.claimable.get(pool, 0) + (0 if of_pool is None else of_pool.running)


@pytest.mark.spec("OPS-03.b")
@pytest.mark.parametrize(
    ("limits", "claims", "expected"),
    [
        ({}, 0, {"default": 6, "big": 1}),
        ({}, 3, {"default": 6, "big": 1}),
        ({"pool:default": 2}, 0, {"default": 2, "big": 1}),
        ({"pool:default": 2}, 1, {"default": 2, "big": 1}),
        ({"model:x": 1}, 0, {"default": 4, "big": 1}),
        ({"model:x": 1, "pool:big": 5}, 7, {"default": 4, "big": 1}),
        ({"session:own": 2}, 2, {"default": 2, "big": 0}),
    ],
    ids=["free", "running", "pool", "pool-running", "model-of-two-lanes", "all-running", "session"],
)
async def test_both_triggers_ask_for_the_same_number_of_workers(
    scene: ContractHarness,
    postgres_url: str,
    scaler_url: str,
    limits: dict[str, int],
    claims: int,
    expected: dict[str, int],
) -> None:
    named = {scope.replace(":own", f":{scene.own.session_id}"): slots for scope, slots in limits.items()}
    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit(*each) for each in named.items()])
    of_model = [make_step(f"m{number}", model="x", needs=("label:" + "ab"[number % 2],)) for number in range(3)]
    await scene.task("a", "b", "c", *of_model, make_step("big", pool="big"))
    await scene.claim(claims)

    answers = {pool: await asyncio.to_thread(wanted, scaler_url, pool) for pool in POOLS}

    assert answers == {pool: await measured(scene, postgres_url, pool) for pool in POOLS} == expected


@pytest.mark.spec("OPS-03.b")
async def test_what_is_held_in_addition_or_pulled_wants_no_slot(
    scene: ContractHarness, postgres_url: str, scaler_url: str
) -> None:
    own = await scene.start(work("own"), pulled("p"), pulled("q"))
    await taken(scene, own, "p")

    assert await asyncio.to_thread(wanted, scaler_url) == await measured(scene, postgres_url) == 1


@pytest.mark.spec("OPS-03.b")
async def test_an_idle_service_wants_no_worker(scene: ContractHarness, scaler_url: str) -> None:
    assert await asyncio.to_thread(wanted, scaler_url, "a pool of which nobody has heard") == 0


async def test_the_role_of_an_autoscaler_reads_and_writes_nothing(scene: ContractHarness, scaler_url: str) -> None:
    with psycopg.connect(scaler_url, autocommit=True) as scaler:
        for table in (*metadata.tables, "alembic_version"):
            for statement in (f"SELECT 1 FROM {table}", f"DELETE FROM {table}"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    scaler.execute(statement.encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            scaler.execute(b"CREATE TABLE mine (a int)")


async def test_no_other_role_may_ask_and_a_table_of_a_temporary_schema_changes_no_answer(
    scene: ContractHarness, postgres_url: str, scaler_url: str
) -> None:
    await scene.task("a")
    with psycopg.connect(plain(postgres_url), autocommit=True) as admin:
        admin.execute(b"DROP ROLE IF EXISTS soong_passer_by")
        admin.execute(b"CREATE ROLE soong_passer_by")
        admin.execute(b"SET ROLE soong_passer_by")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            admin.execute(b"SELECT soong_slots_wanted('default')")
    with psycopg.connect(scaler_url, autocommit=True) as scaler:
        scaler.execute(b"CREATE TEMPORARY TABLE steps (status text)")

        assert scaler.execute(b"SELECT soong_slots_wanted('default')").fetchone() == (1,)
