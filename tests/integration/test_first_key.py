"""Of two owners that start a deployment at once, each with a key file of its own, one publishes its key."""

import asyncio
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from soong.orchestrator.approvals.deployment_key import open_key
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.timing import SystemClock
from soong.shared.permissions.signing import Signer
from soong.shared.storage.sql.store import open_store
from tests.contract.databases import sqlite_copy
from tests.system.deployment import Deployment
from tests.waiting import looks

LIMIT_S = 20.0


@pytest.mark.spec("PER-12", "OPS-12")
async def test_the_second_of_two_first_owners_waits_and_learns_that_its_key_is_not_published(
    postgres_url: str, tmp_path: Path
) -> None:
    store = await open_store(postgres_url, migrate=True)
    plain_url = make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    first = "INSERT INTO signing_keys (id, public_key, created_us, is_first) VALUES ('key_a', %s, 1, 1)"
    try:
        async with await psycopg.AsyncConnection.connect(plain_url) as other:
            await other.execute(first, [b"a" * 32])  # the first owner, in the middle of its transaction

            second = asyncio.create_task(open_key(store, tmp_path / "signing.key", SystemClock()))
            await until_done_or_waiting(second, plain_url)
            assert not second.done(), "it decides by what it cannot see"
            await other.commit()
            with pytest.raises(InvalidConfigError, match="not among the published keys"):
                await second

        assert [key.id for key in await store.keys.signing_keys()] == ["key_a"]
    finally:
        await store.close()


@pytest.mark.spec("PER-12", "OPS-12")
async def test_an_owner_tells_that_its_key_file_was_exchanged_before_anybody_asks(
    sqlite_template: Path, redis_url: str, tmp_path: Path
) -> None:
    async with Deployment(sqlite_copy(sqlite_template, tmp_path), redis_url, tmp_path / "home") as service:
        theirs = Signer.generate()
        theirs.save(service.settings.key_file)

        async def is_told() -> bool:
            return bool(await service.store.audit.audit_entries(kinds=["security"]))

        await service.until(is_told)
        told = await service.store.audit.audit_entries(kinds=["security"])

    assert [(entry.data["what"], entry.data["key"]) for entry in told] == [("unpublished_key", theirs.key_id)]


async def until_done_or_waiting(task: "asyncio.Task[object]", url: str) -> None:
    """Return when a task is done, or waits for a lock of another transaction."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as looking:
        async for _ in looks(LIMIT_S):
            rows = await looking.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            if task.done() or await rows.fetchone() is not None:
                return
