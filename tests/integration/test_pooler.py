import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import soong
from soong.orchestrator.doctor.checks import check_database
from soong.orchestrator.doctor.machine import Level
from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError, UnavailableError, UnsupportedPoolerError
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.engine import make_engine, parse_url
from soong.shared.storage.sql.engine.pooler import CREDENTIAL, keep_settings, require_own_process
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Transaction
from tests.contract.databases import migrate
from tests.extra import pgbouncer
from tests.pooler import Mode, Order, pooler
from tests.servers import pgbouncer_server
from tests.system.deployment import Deployment
from tests.warm import called

PLAN: JsonObject = {
    "title": "pooled",
    "steps": [{"id": "only", "kind": "python", "call": "builtin.echo", "inputs": {"value": 1}}],
}
HINT = "connect directly, or set the pooler to session mode (PgBouncer: pool_mode = session)"

POOLERS = {
    "transaction, one server connection": (Mode.TRANSACTION, 1, Order.LAST_USED),
    "transaction, the last used": (Mode.TRANSACTION, 4, Order.LAST_USED),
    "transaction, the longest unused": (Mode.TRANSACTION, 4, Order.LONGEST_UNUSED),
    "statement": (Mode.STATEMENT, 4, Order.LAST_USED),
}

PROGRAMS = {
    "migrate": ("migrate",),
    "orchestrator": ("orchestrator",),
    "worker": ("worker",),
    "serve": ("serve", "--port", "0"),
    "client": ("tasks", "list"),
    "metrics": ("metrics",),
    "collection": ("gc", "--older-than", "30d"),
}


@pytest.fixture(params=list(POOLERS))
def shared_url(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[str]:
    """A database by a pooler that shares server connections."""
    migrate(postgres_url)
    with pooler(postgres_url, *POOLERS[request.param]) as url:
        yield url


@pytest.fixture
def session_url(postgres_url: str) -> Iterator[str]:
    """A database by a pooler in session mode."""
    with pooler(postgres_url, Mode.SESSION, 60) as url:
        yield url


def told(home: Path, url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Call soong as a user does who has this database."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "SOONG_AGENT_HOME": str(home),
        "SOONG_DATABASE_URL": url.replace("+psycopg", ""),
        "SOONG_REDIS_URL": "redis://127.0.0.1:1/0",
    }
    return called("soong.orchestrator.cli", arguments, env=environment, cwd=home, limit_s=90)


# -- refused
@pytest.mark.parametrize("arguments", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_each_program_refuses_to_start_on_a_pooler_that_shares(
    tmp_path: Path, postgres_url: str, arguments: tuple[str, ...]
) -> None:
    migrate(postgres_url)
    with pooler(postgres_url, Mode.TRANSACTION) as url:
        done = told(tmp_path, url, *arguments)

    assert done.returncode == 2, done.stdout + done.stderr
    assert "runs two connections in one server process (" in done.stderr
    assert HINT in done.stderr
    assert "Traceback" not in done.stderr


async def test_a_program_with_the_sdk_is_refused(shared_url: str, redis_url: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        async with soong.Soong.connect(shared_url, redis_url):
            pass

    assert str(caught.value).startswith("a connection pooler in front of PostgreSQL r")
    assert str(caught.value).endswith(f", expected one server process per connection; {HINT}")


@pytest.mark.spec("OPS-07")
def test_doctor_names_the_pooler_and_the_hint(tmp_path: Path, shared_url: str) -> None:
    done = told(tmp_path, shared_url, "doctor")

    assert done.returncode == 1, done.stdout + done.stderr
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAIL  database")]
    assert len(failed) == 1
    assert "SOONG_DATABASE_URL: a connection pooler in front of PostgreSQL " in failed[0]
    assert f"-> {HINT}" in done.stdout


def test_the_probe_leaves_nothing_to_the_next_user_of_a_server_process(postgres_url: str) -> None:
    asked = "SELECT name, setting FROM pg_settings WHERE name <> 'application_name' ORDER BY name"
    with pooler(postgres_url, Mode.TRANSACTION, 1) as url:
        plain = url.replace("+psycopg", "")
        with psycopg.connect(plain, autocommit=True, prepare_threshold=None) as connection:
            before = connection.execute(asked).fetchall()
        with pytest.raises(UnsupportedPoolerError):
            require_own_process(parse_url(url))
        with psycopg.connect(plain, autocommit=True, prepare_threshold=None) as connection:
            after = connection.execute(asked).fetchall()
            prepared = connection.execute("SELECT name FROM pg_prepared_statements").fetchall()

    assert after == before
    assert prepared == []


def test_a_pooler_that_forgets_the_settings_of_a_session_is_refused(postgres_url: str) -> None:
    with pooler(postgres_url, Mode.SESSION, 60, resets=True) as url:
        engine = make_engine(parse_url(url), size=1, is_writer=True, credential="not to be said")
        with pytest.raises(UnsupportedPoolerError, match="drops the session setting") as caught:
            engine.connect()
        engine.dispose()

    assert "not to be said" not in str(caught.value)


def test_a_pooler_with_too_few_server_connections_is_named(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "EXCHANGE_LIMIT_S", 0.5)

    with (
        pooler(postgres_url, Mode.SESSION, 1) as url,
        pytest.raises(UnavailableError, match="answered only one of two connections"),
    ):
        require_own_process(parse_url(url))


def test_options_in_the_url_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"SOONG_DATABASE_URL has options='-cjit=on'.* ALTER ROLE"):
        parse_url("postgresql://soong@db/soong?options=-cjit%3Don")


LOOK = Statement("look: a statement that is prepared", "SELECT count(*) FROM workers")
FORGET = "DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"
"""What a server process does that another has prepared the statements of: psycopg does not see it."""


@pytest.mark.parametrize("how", ["read", "write"])
async def test_a_connection_that_has_lost_its_statements_is_replaced(postgres_url: str, how: str) -> None:
    await asyncio.to_thread(migrate, postgres_url)
    database = Database(parse_url(postgres_url))
    run = getattr(database, how)

    before = await run(lambda tx: tx.rows(LOOK))
    await run(lambda tx: tx.connection.exec_driver_sql(FORGET))
    after = await run(lambda tx: tx.rows(LOOK))
    await asyncio.to_thread(database.close)

    assert before == after == [(0,)]


@pytest.mark.parametrize("how", ["read", "write"])
async def test_who_loses_statements_again_and_again_learns_of_poolers(postgres_url: str, how: str) -> None:
    await asyncio.to_thread(migrate, postgres_url)
    database = Database(parse_url(postgres_url))

    def lose(tx: Transaction) -> object:
        tx.rows(LOOK)
        tx.connection.exec_driver_sql(FORGET)
        return tx.rows(LOOK)

    with pytest.raises(UnavailableError, match=r"a connection pooler may have begun .* run `soong doctor`"):
        await getattr(database, how)(lose)
    await asyncio.to_thread(database.close)


# -- session mode
async def test_a_deployment_works_by_a_pooler_in_session_mode(session_url: str, redis_url: str, tmp_path: Path) -> None:
    async with Deployment(session_url, redis_url, tmp_path) as service:
        await service.start_workers(1)
        task = await service.submit(PLAN)
        ended = await service.finished(task)
        finding = await check_database(
            load_settings(agent_home=tmp_path / "home", database_url=session_url, redis_url=redis_url)
        )

    assert ended.status is TaskStatus.COMPLETED
    assert finding.level is Level.OK


@pytest.mark.parametrize("is_pooled", [True, False], ids=["pooled", "direct"])
def test_a_connection_keeps_its_settings(postgres_url: str, session_url: str, *, is_pooled: bool) -> None:
    url = parse_url(session_url if is_pooled else postgres_url)
    writer = make_engine(url, size=1, is_writer=True, credential="only ours")
    reader = make_engine(url, size=1, is_writer=False)
    names = (CREDENTIAL, "idle_in_transaction_session_timeout", "lock_timeout", "jit")
    planning = ("plan_cache_mode", "enable_seqscan", "enable_hashjoin", "enable_mergejoin")

    with writer.connect() as connection:
        kept = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in (*names, *planning)]
    with reader.connect() as connection:
        read = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in ("transaction_read_only", *planning)]
    writer.dispose()
    reader.dispose()

    by_index = ["force_generic_plan", "off", "off", "off"]
    assert kept == ["only ours", "5s", "30s", "off", *by_index]
    assert read == ["on", *by_index]


def test_the_credential_of_a_worker_is_in_no_statement_that_others_can_read(postgres_url: str) -> None:
    plain = postgres_url.replace("+psycopg", "")
    with psycopg.connect(plain) as setting, psycopg.connect(plain) as other:
        with pytest.raises(psycopg.Error, match="lock_timeout"):
            keep_settings(setting, {CREDENTIAL: "a-secret", "lock_timeout": "no time"})
        asked = "SELECT query FROM pg_stat_activity WHERE pid = %s"
        row = other.execute(asked, (setting.info.backend_pid,)).fetchone()

    assert row is not None
    assert "set_config" in row[0]
    assert "a-secret" not in row[0]


# -- a real PgBouncer before the database: refused where it shares server processes, used in session mode
SHARING = {
    "transaction": ["pool_mode = transaction"],
    "transaction, one server connection": ["pool_mode = transaction", "default_pool_size = 1"],
    "transaction, round robin": ["pool_mode = transaction", "server_round_robin = 1"],
    "transaction, options dropped": ["pool_mode = transaction", "ignore_startup_parameters = options"],
    "statement": ["pool_mode = statement"],
}
SESSION = {
    "options refused": ["pool_mode = session", "default_pool_size = 60"],
    "options dropped": ["pool_mode = session", "default_pool_size = 60", "ignore_startup_parameters = options"],
}


@pytest.mark.parametrize("settings", SHARING.values(), ids=SHARING.keys())
def test_a_pgbouncer_that_shares_server_processes_is_refused(
    tmp_path: Path, postgres_url: str, settings: list[str]
) -> None:
    program = pgbouncer()
    migrate(postgres_url)
    with pgbouncer_server(program, postgres_url, *settings) as url:
        migrated, looked = (told(tmp_path, url, command) for command in ("migrate", "doctor"))

    assert migrated.returncode == 2, migrated.stdout + migrated.stderr
    assert "pool_mode = session" in migrated.stderr
    assert looked.returncode == 1
    assert "FAIL  database" in looked.stdout
    assert "pool_mode = session" in looked.stdout


@pytest.mark.parametrize("settings", SESSION.values(), ids=SESSION.keys())
async def test_a_deployment_works_by_a_pgbouncer_in_session_mode(
    tmp_path: Path, postgres_url: str, redis_url: str, settings: list[str]
) -> None:
    with pgbouncer_server(pgbouncer(), postgres_url, *settings) as url:
        async with Deployment(url, redis_url, tmp_path) as service:
            await service.start_workers(1)
            ended = await service.finished(await service.submit(PLAN))

    assert str(ended.status) == "completed"
