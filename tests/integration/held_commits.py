"""Two processes over one PostgreSQL database, one of which has written and not committed yet."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import RootTransaction

from soong.shared.storage.sql.store import SqlStore, open_store
from tests.contract.scene import ContractHarness, open_scene

T = TypeVar("T")

LIMIT_S = 30.0


@asynccontextmanager
async def two_workers(url: str) -> AsyncIterator[tuple[ContractHarness, ContractHarness]]:
    """One session as two workers' processes see it."""
    stores = await open_store(url, migrate=True), await open_store(url)
    scene = await open_scene(stores[0])
    yield scene, ContractHarness(stores[1], scene.own, await scene.another_worker())
    for store in stores:
        await store.close()


@asynccontextmanager
async def held_before_commit(scene: ContractHarness, work: Coroutine[Any, Any, T]) -> AsyncIterator["asyncio.Task[T]"]:
    """Write at once what ``work`` writes, and commit it when this ends."""
    is_written, may_commit = threading.Event(), threading.Event()

    def commit_later(transaction: RootTransaction) -> None:
        is_written.set()
        assert may_commit.wait(LIMIT_S)
        transaction.commit()

    assert isinstance(scene.store, SqlStore)
    usual = scene.store._database._writer.committer
    scene.store._database._writer.committer = commit_later
    writing = asyncio.create_task(work)
    try:
        assert await asyncio.to_thread(is_written.wait, LIMIT_S)
        yield writing
    finally:
        may_commit.set()
        await asyncio.wait({writing}, timeout=LIMIT_S)
        scene.store._database._writer.committer = usual
