"""Databases that have the schema already: made once in a run, then copied for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.contract.databases import migrate, sqlite_copy
from tests.servers import PostgresServer


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file that nobody has open."""
    path = tmp_path_factory.mktemp("template") / "soong.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres_session_server: PostgresServer) -> Iterator[str]:
    """The name of a migrated PostgreSQL database that nobody is connected to."""
    with postgres_session_server.fresh_database() as url:
        migrate(url)
        yield str(make_url(url).database)


@pytest.fixture
def migrated_sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A migrated SQLite file without rows, ``soong.db`` in the test's own folder."""
    return sqlite_copy(sqlite_template, tmp_path)


@pytest.fixture
def migrated_postgres_url(postgres_session_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A migrated PostgreSQL database without rows for one test."""
    with postgres_session_server.fresh_database(template=postgres_template) as url:
        yield url
