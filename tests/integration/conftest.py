"""The bench for consent over the stores it has to hold on: nothing in a test says which."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from soong.shared.permissions.request import Choice
from soong.shared.storage.sql.store import open_store
from tests.contract.databases import empty_postgres, sqlite_copy
from tests.integration import consent
from tests.integration.bad_deployment import Deployment, deployed
from tests.integration.consent import Callback, ConsentHarness
from tests.integration.roles import RoleUrls, with_roles
from tests.migrated import migrated_postgres_url, migrated_sqlite_url, postgres_template, sqlite_template
from tests.servers import PostgresServer

__all__ = ["migrated_postgres_url", "migrated_sqlite_url", "postgres_template", "sqlite_template"]

OpenBench: TypeAlias = Callable[..., AbstractAsyncContextManager[ConsentHarness]]


@pytest.fixture
def open_bench(sqlite_template: Path, tmp_path: Path) -> OpenBench:
    """Open a bench over SQLite; see :func:`tests.integration.consent.open_bench`."""
    url = sqlite_copy(sqlite_template, tmp_path)

    @asynccontextmanager
    async def opened(*given: object, **named: object) -> AsyncIterator[ConsentHarness]:
        async with AsyncExitStack() as closing:
            if "store" not in named:
                named["store"] = await open_store(url)
                closing.push_async_callback(named["store"].close)  # type: ignore[attr-defined]  # just opened
            yield await closing.enter_async_context(consent.open_bench(*given, **named))  # type: ignore[arg-type]  # passed on

    return opened


@pytest.fixture(scope="module")
def role_urls(request: pytest.FixtureRequest, postgres_session_server: PostgresServer) -> Iterator[RoleUrls]:
    """Make a database of its own for a module, with a role for each kind of process."""
    name = request.module.__name__.rpartition(".")[2].replace("test_", "soong_")
    with postgres_session_server.fresh_database(name) as url:
        yield with_roles(url)


@pytest.fixture
async def deployment(role_urls: RoleUrls) -> AsyncIterator[Deployment]:
    """Open a deployment with roles, a worker that has turned bad, and somebody who allows each question once."""
    empty_postgres(role_urls.admin)
    async with deployed(role_urls, Callback([Choice.ALLOW_ONCE])) as opened:
        yield opened
