import ast
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import psycopg
import pytest
from sqlalchemy import inspect

import soong.shared.agents.runtime
import soong.worker
from soong.orchestrator.schemas.worker import WorkersSchema
from soong.shared.core.errors import InvalidConfigError, SchemaVersionError, UnavailableError
from soong.shared.engine.tasks.event_feed import MessageOutcome, Notice, NoticeState, Totals
from soong.shared.storage.sql.engine.columns import WRITES, written_by_worker
from soong.shared.storage.sql.engine.engine import make_engine, parse_url
from soong.shared.storage.sql.engine.pooler import CREDENTIAL as SETTING
from soong.shared.storage.sql.engine.tables import metadata
from soong.shared.storage.sql.roles.role_grants import Roles, grant
from soong.shared.storage.sql.roles.role_privileges import CHANGED, EMPTIED, WORKER
from soong.shared.storage.sql.store import open_store
from soong.shared.storage.sql.tasks.metrics import SqlMetrics
from tests.contract.databases import empty_postgres
from tests.integration.roles import CREDENTIAL, ORCHESTRATOR, OWNER, PARTS, WORKER_METHODS, RoleUrls, SplitStore, plain
from tests.integration.roles import WORKER as WORKER_ROLE
from tests.integration.sql_stores import begin, claim_one, connected
from tests.model.builders import make_owner

DENIED = psycopg.errors.InsufficientPrivilege


@pytest.fixture
def urls(role_urls: RoleUrls) -> RoleUrls:
    """The deployment, empty."""
    empty_postgres(role_urls.admin)
    return role_urls


@pytest.fixture
async def at_work(urls: RoleUrls) -> AsyncIterator[RoleUrls]:
    """A deployment in which a worker holds one step, and a concurrency limit stands."""
    store = SplitStore(
        await open_store(urls.worker, credential=CREDENTIAL), await open_store(urls.orchestrator)
    ).as_store()
    session, worker_id = await begin(store)  # type: ignore[arg-type]  # any store will do
    await claim_one(store, session, worker_id)  # type: ignore[arg-type]  # as above
    with psycopg.connect(plain(urls.admin), autocommit=True) as admin:
        admin.execute("INSERT INTO concurrency_limits (scope, slots) VALUES ('pool:default', 3)")
        admin.execute(
            "INSERT INTO permission_requests (id, run_id, session_id, tool_call_id, body)"
            " SELECT 'req_1', id, session_id, 'call_1', '{}' FROM runs WHERE worker_id <> '' LIMIT 1"
        )
    yield urls
    await store.close()


def test_a_worker_writes_only_tables_whose_rows_are_checked_and_an_orchestrator_tables_that_are_there() -> None:
    written = {
        name for name, table in metadata.tables.items() if any(written_by_worker(table, verb) for verb in WRITES)
    }

    assert written == {name for name, right in WORKER.items() if right.is_checked}

    assert metadata.tables.keys() > CHANGED > EMPTIED


def test_the_rights_in_the_database_are_those_that_were_decided(urls: RoleUrls) -> None:
    with connected(urls.owner) as connection:
        columns = inspect(connection).get_columns
        found = {
            (name, verb, column["name"])
            for name in metadata.tables
            for column in columns(name)
            for verb in ("INSERT", "UPDATE", "REFERENCES")
            if connection.exec_driver_sql(
                "SELECT has_column_privilege(%s, %s, %s, %s)", (WORKER_ROLE, name, column["name"], verb)
            ).scalar()
        }
        whole = {
            (name, verb)
            for name in metadata.tables
            for verb in ("SELECT", "DELETE", "TRUNCATE", "TRIGGER", "INSERT", "UPDATE")
            if connection.exec_driver_sql("SELECT has_table_privilege(%s, %s, %s)", (WORKER_ROLE, name, verb)).scalar()
        }

    assert found == {
        (name, verb, column)
        for name, table in metadata.tables.items()
        for verb in WRITES
        for column in written_by_worker(table, verb)
    }
    assert whole == {(name, "SELECT") for name, right in WORKER.items() if right.reads}


FORBIDDEN = {
    "change a decision": "UPDATE decisions SET body = '{}'",
    "make its question a decided one": "UPDATE permission_requests SET state = 'decided' WHERE id = 'req_1'",
    "take a session": "UPDATE sessions SET owner_id = 'own_mine', owner_epoch = owner_epoch + 1",
    "open a session": "INSERT INTO sessions (id, approval_mode) VALUES ('sess_x', 'deny')",
    "close a session": "UPDATE sessions SET is_closed = 1",
    "insert a run": "INSERT INTO runs (id, session_id, role, status) VALUES ('run_x', 's', 'main', 'running')",
    "change a run's agent": "UPDATE runs SET agent_id = 'agent_other'",
    "change a run's parents": "UPDATE runs SET parent_run_id = 'run_x', parent_agent_id = 'agent_x'",
    "change a run's role": "UPDATE runs SET role = 'main'",
    "change a run's session": "UPDATE runs SET session_id = 'sess_x'",
    "change a run's surface": "UPDATE runs SET surface = 'x'",
    "change a run's token": "UPDATE runs SET token = 'x'",
    "write a surface": "INSERT INTO surfaces (digest, body) VALUES ('x', '{}')",
    "insert a step": (
        "INSERT INTO steps (key, task_id, session_id, step_id, kind, lane) VALUES ('k', 't', 's', 'i', 'python', 'l')"
    ),
    "change what a step does": "UPDATE steps SET spec = '{}'",
    "change what a step needs": "UPDATE steps SET needs = '[]'",
    "move a step to another session": "UPDATE steps SET session_id = 'sess_x', lane = 'x'",
    "give a step another run": "UPDATE steps SET run_id = 'run_x'",
    "forget lost leases": "UPDATE steps SET lost_leases = 0",
    "start a paused step": "UPDATE steps SET is_paused = 0",
    "draw an edge": "UPDATE steps SET depends_on = NULL, dependents = NULL",
    "end a task": "UPDATE tasks SET status = 'completed'",
    "command an owner": "INSERT INTO commands (id, session_id, kind) VALUES ('cmd_x', 's', 'cancel')",
    "lift a concurrency limit": "UPDATE concurrency_limits SET slots = 1000",
    "set a concurrency limit": "INSERT INTO concurrency_limits (scope, slots) VALUES ('pool:x', 1)",
    "be an owner": "INSERT INTO owners (id) VALUES ('own_x')",
    "read who listens": "SELECT * FROM responders",
    "rewrite the log": "UPDATE events SET data = '{}'",
    "read the log": "SELECT * FROM events",
    "shorten the log": "DELETE FROM events",
    "rewrite what an agent saw": "UPDATE nodes SET payload = '{}'",
    "delete a ledger row": "DELETE FROM calls",
    "move a ledger row": "UPDATE calls SET run_id = 'run_x'",
    "forget a worker": "DELETE FROM workers",
    "pose as another host": "UPDATE workers SET host = 'x', capabilities = '[]'",
    "change the schema's version": "UPDATE alembic_version SET version_num = '9999'",
    "make a table": "CREATE TABLE mine (x int)",
    "empty a table": "TRUNCATE consumptions",
    "take the row checks away": "ALTER TABLE concurrency_limits DISABLE ROW LEVEL SECURITY",
    "become the owner": f"SET ROLE {OWNER}",
    "become the orchestrator": f"SET ROLE {ORCHESTRATOR}",
    "read the server's files": "SELECT pg_read_file('/etc/passwd')",
    "run a program": "COPY events TO PROGRAM 'true'",
    "read the server's passwords": "SELECT rolpassword FROM pg_authid",
}


@pytest.mark.spec("PER-12", "OPS-12.b")
async def test_a_worker_may_do_nothing_else(at_work: RoleUrls) -> None:
    allowed = []
    options = f"-c {SETTING}={CREDENTIAL}"
    with psycopg.connect(plain(at_work.worker), autocommit=True, options=options) as worker:
        for what, statement in FORBIDDEN.items():
            try:
                worker.execute(statement.encode())
            except psycopg.errors.InsufficientPrivilege:
                continue
            allowed.append(what)

    assert allowed == []


async def test_an_orchestrator_changes_nothing_that_was_said(at_work: RoleUrls) -> None:
    statements = (
        "UPDATE decisions SET body = '{}'",
        "UPDATE events SET data = '{}'",
        "DELETE FROM consumptions",
        "UPDATE runs SET tainted_us = NULL",
        "UPDATE runs SET started_us = 1 WHERE started_us IS NOT NULL",
        "DELETE FROM events",
        "UPDATE answers SET choice = 'deny'",
        "CREATE TABLE mine (x int)",
        "TRUNCATE events",
    )

    with psycopg.connect(plain(at_work.orchestrator), autocommit=True) as orchestrator:
        orchestrator.execute("UPDATE runs SET tainted_us = 1 WHERE tainted_us IS NULL")
        for statement in statements:
            with pytest.raises(DENIED):
                orchestrator.execute(statement.encode())


UNUSABLE: dict[str, tuple[str, str]] = {
    "a fence that cannot be counted on": ("orchestrator", "UPDATE steps SET fence = 9223372036854775807"),
    "a status that nobody knows": ("orchestrator", "UPDATE runs SET status = 'x'"),
    "a lease without a holder": ("orchestrator", "UPDATE steps SET status = 'running', worker_id = ''"),
    "a step with such a fence": (
        "orchestrator",
        (
            "INSERT INTO steps (key, task_id, session_id, step_id, kind, lane, fence)"
            " VALUES ('k', 't', 's', 'x', 'python', 'l', 9223372036854775807)"
        ),
    ),
    "a run of an unknown status": (
        "orchestrator",
        "INSERT INTO runs (id, session_id, role, status) VALUES ('r', 's', 'x', 'x')",
    ),
}


@pytest.mark.spec("OPS-12.d")
@pytest.mark.parametrize("what", UNUSABLE)
async def test_no_role_leaves_a_value_of_a_step_or_a_run_that_nobody_can_use(at_work: RoleUrls, what: str) -> None:
    role, statement = UNUSABLE[what]

    with (
        psycopg.connect(plain(getattr(at_work, role)), autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"),
    ):
        connection.execute(statement.encode())


@pytest.mark.spec("OPS-11.c", "OPS-12")
async def test_an_orchestrator_keeps_the_outbox_of_notifications_under_its_role(urls: RoleUrls) -> None:
    store = await open_store(urls.orchestrator)
    try:
        owner = make_owner()
        await store.sessions.register_owner(owner)
        await store.feed.take_over("notifications", owner.id, now_us=1)
        await store.outbox.add([Notice("n1", "ops", "end", "sess_1", "", 1, 1)])
        failed, sent = MessageOutcome(NoticeState.DEAD, 1), MessageOutcome(NoticeState.SENT, 1)
        totals: Totals = {("notifications", ("ops", "sent")): 1}

        assert await store.outbox.group("notifications", owner.id, "msg_1", ["n1"])
        for outcome in (failed, sent):
            assert await store.outbox.record_outcome(
                "notifications", owner.id, ["n1"], outcome, now_us=2, totals=totals
            )
            await store.outbox.retry(now_us=3)

        assert await store.outbox.prune(9) == 1
    finally:
        await store.close()


@pytest.mark.spec("DIS-04")
async def test_a_worker_finds_itself_in_the_list_and_reads_no_figures_of_others(at_work: RoleUrls) -> None:
    store, metrics = await open_store(at_work.worker), SqlMetrics(parse_url(at_work.worker))
    try:
        view = await WorkersSchema.read(store.claims, store.sessions, metrics)
        with pytest.raises(InvalidConfigError, match="orchestrator"):
            await metrics.metrics()
    finally:
        await metrics.close()
        await store.close()

    assert [worker.used for worker in view.workers] == [1]


async def test_rights_of_an_older_version_are_taken_away(urls: RoleUrls) -> None:
    with psycopg.connect(plain(urls.owner), autocommit=True) as owner:
        owner.execute(f"GRANT UPDATE ON decisions TO {WORKER_ROLE}".encode())
        owner.execute(f"GRANT UPDATE (policy) ON sessions TO {WORKER_ROLE}".encode())

    grant(parse_url(urls.owner), Roles(worker=WORKER_ROLE))

    with psycopg.connect(plain(urls.worker), autocommit=True) as worker:
        for statement in ("UPDATE decisions SET body = '{}'", "UPDATE sessions SET policy = '{}'"):
            with pytest.raises(DENIED):
                worker.execute(statement.encode())


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        (Roles(worker="nobody_of_that_name"), "no database role 'nobody_of_that_name'"),
        (Roles(worker="postgres"), "above all rights"),
        (Roles(worker=OWNER), "the owner of the tables"),
        (Roles(worker="x", orchestrator="x"), "cannot share the role"),
    ],
    ids=["unknown", "superuser", "owner", "shared"],
)
def test_a_role_that_rights_cannot_hold_is_refused(urls: RoleUrls, roles: Roles, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        grant(parse_url(urls.owner), roles)


def test_rights_are_given_by_the_owner_of_the_tables_on_a_server_that_answers(urls: RoleUrls, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="belong to another role"):
        grant(parse_url(urls.orchestrator), Roles(worker=WORKER_ROLE))

    with pytest.raises(InvalidConfigError, match="SQLite"):
        grant(parse_url(f"sqlite:///{tmp_path / 'x.db'}"), Roles(worker="w"))

    with pytest.raises(UnavailableError):
        grant(parse_url(f"postgresql://x@/y?host={tmp_path}"), Roles(worker="w"))


@pytest.mark.spec("PER-12")
def test_what_one_worker_sets_for_the_role_changes_no_connection_of_the_others(urls: RoleUrls) -> None:
    names = ("synchronous_commit", "statement_timeout")
    with psycopg.connect(plain(urls.worker), autocommit=True) as bad:
        for setting in ("synchronous_commit = off", "statement_timeout = '10s'"):
            bad.execute(f"ALTER ROLE CURRENT_USER SET {setting}".encode())
    try:
        for is_writer in (True, False):
            engine = make_engine(parse_url(urls.worker), size=1, is_writer=is_writer, credential=CREDENTIAL)
            with engine.connect() as connection:
                kept = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names]
            engine.dispose()
            assert kept == ["on" if is_writer else "off", "0"]
    finally:
        with psycopg.connect(plain(urls.admin), autocommit=True) as admin:
            admin.execute(f"ALTER ROLE {WORKER_ROLE} RESET ALL".encode())


@pytest.mark.spec("OPS-07")
async def test_an_orchestrator_that_may_not_migrate_says_who_does(urls: RoleUrls) -> None:
    with psycopg.connect(plain(urls.owner), autocommit=True) as owner:
        found = owner.execute("SELECT version_num FROM alembic_version").fetchone()
        owner.execute("DELETE FROM alembic_version")
    try:
        with pytest.raises(SchemaVersionError, match="soong migrate"):
            await open_store(urls.orchestrator, migrate=True)
    finally:
        with psycopg.connect(plain(urls.owner), autocommit=True) as owner:
            owner.execute("INSERT INTO alembic_version VALUES (%s)", found)


def _files_of(package: ModuleType) -> list[Path]:
    return sorted(Path(package.__file__ or "").parent.glob("*.py"))


def test_every_store_method_that_a_worker_calls_is_tried_under_its_role() -> None:
    called = {
        node.func.attr
        for path in (*_files_of(soong.worker), *_files_of(soong.shared.agents.runtime))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        # A part of the store is held under one of these names.
        if ast.unparse(node.func.value).rpartition(".")[2] in PARTS
    }

    assert {"advance", "append", "raise_request"} <= called
    assert called <= WORKER_METHODS
