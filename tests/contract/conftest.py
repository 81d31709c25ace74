"""One suite, three stores: no test here knows over which it runs.

A deployment is one database; it is opened as often as a test needs processes. SQL deployments are made from a template
that was migrated once.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeAlias

import pytest

from shared.store import Store
from shared.testing.memory import MemoryStore
from tests.contract.scene import Scene, open_scene

OpenStore: TypeAlias = Callable[[], Awaitable[Store]]
"""Opens one more connection to the deployment under test, as another process would."""

ADAPTERS = ("memory",)


@pytest.fixture(params=ADAPTERS)
async def open_another(request: pytest.FixtureRequest) -> AsyncIterator[OpenStore]:
    async with AsyncExitStack() as closing:
        memory = MemoryStore()

        async def connect() -> Store:
            opened: Store = memory
            closing.push_async_callback(opened.close)
            return opened

        yield connect


@pytest.fixture
async def store(open_another: OpenStore) -> Store:
    return await open_another()


@pytest.fixture
async def other_store(open_another: OpenStore) -> Store:
    """The same deployment as ``store``, as a second process sees it."""
    return await open_another()


@pytest.fixture
async def scene(store: Store) -> Scene:
    return await open_scene(store)
