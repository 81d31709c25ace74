"""The HTTP scene over SQLite; a test that is about the database asks for PostgreSQL itself.

Tests of one module share a loop, and those that leave nothing behind for each other share a server.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

import pytest
import pytest_asyncio

from tests.contract.databases import sqlite_copy
from tests.integration.http.scene import HttpHarness, open_scene
from tests.servers import RedisServer

OpenScene: TypeAlias = Callable[..., AbstractAsyncContextManager[HttpHarness]]


@pytest.fixture
def open_http(sqlite_template: Path, redis_session_server: RedisServer, tmp_path: Path) -> OpenScene:
    """Open a server over an empty SQLite deployment; see :func:`tests.integration.http.scene.open_scene`."""
    url = sqlite_copy(sqlite_template, tmp_path)

    def opened(**given: object) -> AbstractAsyncContextManager[HttpHarness]:
        return open_scene(url, redis_session_server.socket_url, tmp_path, **given)  # type: ignore[arg-type]  # passed on

    return opened


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scene(
    sqlite_template: Path, redis_session_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[HttpHarness]:
    """The server that the tests of a module share."""
    home = tmp_path_factory.mktemp("http")
    async with open_scene(sqlite_copy(sqlite_template, home), redis_session_server.socket_url, home) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def own_scene(open_http: OpenScene) -> AsyncIterator[HttpHarness]:
    """A server of the test's own: what is asked and listed there is all there is."""
    async with open_http() as opened:
        yield opened
