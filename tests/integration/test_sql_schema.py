import asyncio
import os
import stat
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from soong.shared.core.errors import InvalidConfigError, SchemaVersionError, UnavailableError
from soong.shared.storage.sql.engine import schema
from soong.shared.storage.sql.engine.columns import add_dialect_options
from soong.shared.storage.sql.engine.engine import parse_url
from soong.shared.storage.sql.engine.schema import HEAD, prepare, script
from soong.shared.storage.sql.engine.tables import metadata
from soong.shared.storage.sql.store import open_store
from tests.integration.sql_stores import connected
from tests.integration.test_sql_database import url
from tests.schema_scripts import head, scripts
from tests.warm import warm_parent

__all__ = ["url"]

add_dialect_options(metadata)


@pytest.mark.spec("OPS-07.a")
def test_the_scripts_of_the_first_migration_are_made_from_the_tables_and_the_revision_is_theirs() -> None:
    made = scripts()

    assert {name: script(name) for name in made} == made, "run python -P -m tests.schema_scripts"
    assert head(made) == HEAD, "run python -P -m tests.schema_scripts"


async def test_a_new_sqlite_file_is_made_without_the_migrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "upgrade", lambda _connection: pytest.fail("a new file needs none"))

    store = await open_store(f"sqlite:///{tmp_path / 'soong.db'}", migrate=True)

    assert await store.sessions.session_page() == []
    await store.close()


@pytest.mark.spec("OPS-07.a")
@pytest.mark.filterwarnings("ignore:autogenerate skipping metadata-specified expression-based index")
def test_migrations_make_what_the_tables_say(url: str) -> None:
    prepare(parse_url(url), migrate=True)

    with connected(url) as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
        # The comparison cannot read an index in descending order from SQLite; the next test does.
        assert [found for found in differences if getattr(found[1], "name", "") != "ix_steps_ready"] == []


@pytest.mark.spec("OPS-07")
def test_migrations_make_each_index_and_constraint_word_for_word(url: str, tmp_path: Path) -> None:
    prepare(parse_url(url), migrate=True)
    with connected(url) as connection:
        migrated = _definitions(connection)

    is_sqlite = url.startswith("sqlite")
    (tmp_path / "made.db").touch()  # connecting makes no file
    with connected(f"sqlite:///{tmp_path / 'made.db'}" if is_sqlite else url) as connection, connection.begin():
        if not is_sqlite:
            connection.exec_driver_sql("CREATE SCHEMA made")
            connection.exec_driver_sql("SET LOCAL search_path TO made")
        metadata.create_all(connection)
        made = _definitions(connection)

    assert made
    assert migrated == made


@pytest.mark.spec("OPS-07")
async def test_a_database_without_a_schema_is_refused_unless_asked_to_make_it(url: str) -> None:
    with pytest.raises(SchemaVersionError, match="soong up"):
        await open_store(url, migrate=False)

    store = await open_store(url, migrate=True)
    assert await store.sessions.session_page() == []
    await store.close()


@pytest.mark.spec("OPS-07")
@pytest.mark.parametrize(("found", "said"), [("9999", "newer"), ("0000", "older")])
async def test_another_schema_is_refused_by_its_age(url: str, found: str, said: str) -> None:
    prepare(parse_url(url), migrate=True)
    _set_version(url, found)

    with pytest.raises(SchemaVersionError, match=said):
        await open_store(url, migrate=False)


@pytest.mark.spec("OPS-07")
@pytest.mark.parametrize("migrate", [False, True])
@pytest.mark.parametrize("found", ["0001", "0001_0badc0de"])
async def test_the_schema_of_a_development_version_is_refused(url: str, found: str, *, migrate: bool) -> None:
    prepare(parse_url(url), migrate=True)
    _set_version(url, found)

    with pytest.raises(SchemaVersionError, match=rf"development version .* schema is {found}, .*SOONG_AGENT_HOME"):
        await open_store(url, migrate=migrate)


@pytest.mark.spec("OPS-07")
async def test_a_newer_schema_is_not_migrated_either(url: str) -> None:
    prepare(parse_url(url), migrate=True)
    _set_version(url, "9999")

    with pytest.raises(SchemaVersionError, match="upgrade"):
        await open_store(url, migrate=True)


async def test_processes_that_start_together_migrate_once(url: str) -> None:
    codes = await asyncio.to_thread(_migrate_in_processes, url, 3)

    assert codes == [0, 0, 0]


async def test_an_sqlite_file_is_read_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "home" / "soong.db"

    await (await open_store(f"sqlite:///{path}", migrate=True)).close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")

    with pytest.raises(InvalidConfigError, match=r"file/soong\.db"):
        await open_store(f"sqlite:///{tmp_path}/file/soong.db", migrate=True)


async def test_a_server_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="did not answer"):
        await open_store(f"postgresql://nobody@/nothing?host={tmp_path}", migrate=False)


def _definitions(connection: Connection) -> dict[str, str]:
    """Return the definitions of the tables, indexes and constraints that a schema has, by name."""
    if connection.dialect.name == "sqlite":
        query = "SELECT name, sql FROM sqlite_master WHERE sql > ''"
    else:
        query = (
            "SELECT indexname, replace(indexdef, schemaname || '.', '') FROM pg_indexes "
            "WHERE schemaname = current_schema() UNION ALL "
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = current_schema()::regnamespace"
        )
    rows = connection.exec_driver_sql(query)
    return {row[0]: " ".join(row[1].split()) for row in rows if "alembic_version" not in row[0]}


def _migrate_in_processes(url: str, number: int) -> list[int]:
    """Migrate the database from several processes at once; return their exit codes."""
    env = {**os.environ, "SOONG_DATABASE_URL": url}
    started = [
        warm_parent().start("soong.orchestrator.cli", ["migrate"], env=env, cwd=Path("/"), stdout=1, stderr=2)
        for _ in range(number)
    ]
    return [process.wait(60) for process in started]


def _set_version(url: str, version: str) -> None:
    with connected(url) as connection, connection.begin():
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{version}'")
