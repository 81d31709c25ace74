"""The bench for consent over the stores it has to hold on: nothing in a test says which."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from soong.shared.storage.sql.store import open_store
from tests.contract.databases import migrate, sqlite_copy
from tests.integration import consent
from tests.integration.consent import ConsentHarness

OpenBench: TypeAlias = Callable[..., AbstractAsyncContextManager[ConsentHarness]]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file that nobody has open."""
    path = tmp_path_factory.mktemp("template") / "soong.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["memory", "sqlite"])
def open_bench(request: pytest.FixtureRequest) -> OpenBench:
    """Open a bench over the store under test; see :func:`tests.integration.consent.open_bench`."""
    if request.param == "memory":
        return consent.open_bench
    template: Path = request.getfixturevalue("sqlite_template")
    url = sqlite_copy(template, request.getfixturevalue("tmp_path"))

    @asynccontextmanager
    async def opened(*given: object, **named: object) -> AsyncIterator[ConsentHarness]:
        async with AsyncExitStack() as closing:
            if "store" not in named:
                named["store"] = await open_store(url)
                closing.push_async_callback(named["store"].close)  # type: ignore[attr-defined]  # just opened
            yield await closing.enter_async_context(consent.open_bench(*given, **named))  # type: ignore[arg-type]  # passed on

    return opened
