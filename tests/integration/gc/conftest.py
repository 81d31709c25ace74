"""The deployment under test, on both databases."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from soong.orchestrator.client.bootstrap import open_retention
from soong.shared.core.settings import load_settings
from soong.shared.storage.sql.store import open_store
from tests.contract.scene import open_scene
from tests.integration.gc.place import Place


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"migrated_{request.param}_url"))


@pytest.fixture
async def place(url: str, tmp_path: Path) -> AsyncIterator[Place]:
    store = await open_store(url)
    rows = await open_retention(load_settings(agent_home=tmp_path, database_url=url))
    yield Place(url, tmp_path, await open_scene(store), store, rows)
    await rows.close()
    await store.close()
