"""The deployment under test, on both databases."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from soong.orchestrator.client.bootstrap import open_retention
from soong.shared.core.settings import load_settings
from soong.shared.storage.sql.store import open_store
from tests.contract.scene import open_scene
from tests.integration.gc.place import Place
from tests.servers import PostgresServer


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'soong.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_session_server")
    with server.fresh_database("soong_gc") as made:
        yield made


@pytest.fixture
async def place(url: str, tmp_path: Path) -> AsyncIterator[Place]:
    store = await open_store(url, migrate=True)
    rows = await open_retention(load_settings(agent_home=tmp_path, database_url=url))
    yield Place(url, tmp_path, await open_scene(store), store, rows)
    await rows.close()
    await store.close()
