"""One suite, three stores: no test here knows over which it runs."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from soong.shared.storage.sql.store import open_store
from soong.shared.storage.store import Store
from tests.contract.databases import empty_postgres, migrate, sqlite_copy
from tests.contract.scene import ContractHarness, open_scene
from tests.migrated import sqlite_template
from tests.model.memory import MemoryStore
from tests.servers import PostgresServer

__all__ = ["sqlite_template"]

OpenStore: TypeAlias = Callable[[], Awaitable[Store]]
"""Opens one more connection to the deployment under test, as another process would."""


@pytest.fixture(scope="session")
def postgres_migrated(postgres_session_server: PostgresServer) -> Iterator[str]:
    """A migrated PostgreSQL database for all tests, one after another."""
    with postgres_session_server.fresh_database("soong_contract") as url:
        migrate(url)
        yield url


@pytest.fixture
def sqlite_deployment(sqlite_template: Path, tmp_path: Path) -> str:
    return sqlite_copy(sqlite_template, tmp_path)


@pytest.fixture
def postgres_deployment(postgres_session_server: PostgresServer, postgres_migrated: str) -> Iterator[str]:
    """The database, empty. Two transactions that took locks in different orders fail the test."""
    empty_postgres(postgres_migrated)
    log = postgres_session_server.folder / "server.log"
    before = len(log.read_bytes())
    yield postgres_migrated
    # The store does such work again, so nothing else would show it, but each costs a second.
    assert b"deadlock detected" not in log.read_bytes()[before:]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def open_one(request: pytest.FixtureRequest) -> OpenStore:
    """Return what opens the deployment under test; whoever calls it closes what it gives."""
    if request.param == "memory":
        memory = MemoryStore()

        async def share() -> Store:
            return memory

        return share
    url: str = request.getfixturevalue(f"{request.param}_deployment")

    async def connect() -> Store:
        return await open_store(url, migrate=False)

    return connect


@pytest.fixture
async def open_another(open_one: OpenStore) -> AsyncIterator[OpenStore]:
    """Opens the deployment under test once more; all of it is closed after the test."""
    async with AsyncExitStack() as closing:

        async def opened() -> Store:
            store = await open_one()
            closing.push_async_callback(store.close)
            return store

        yield opened


@pytest.fixture
async def store(open_another: OpenStore) -> Store:
    return await open_another()


@pytest.fixture
async def other_store(open_another: OpenStore) -> Store:
    """The same deployment as ``store``, as a second process sees it."""
    return await open_another()


@pytest.fixture
async def scene(store: Store) -> ContractHarness:
    return await open_scene(store)
