"""SQL deployments for the contract tests: each test gets its own database, copied from one that was migrated once."""

import asyncio
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from shared.adapters.sql.store import open_store
from tests.servers import PostgresServer


def migrate(url: str) -> None:
    """Bring an empty database to the present schema."""

    async def open_and_close() -> None:
        store = await open_store(url, migrate=True)
        await store.close()

    asyncio.run(open_and_close())


def sqlite_copy(template: Path, folder: Path) -> str:
    """Copy a migrated SQLite file into ``folder``; return the copy's URL."""
    path = folder / "soong.db"
    shutil.copyfile(template, path)
    return f"sqlite:///{path}"


@contextmanager
def postgres_copy(server: PostgresServer, template: str) -> Iterator[str]:
    """Copy a migrated PostgreSQL database; yield the copy's URL and drop it afterwards."""
    name = f"soong_{uuid.uuid4().hex[:16]}"
    with psycopg.connect(server.url("postgres", driver="postgresql"), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY'.encode())
        try:
            yield server.url(name)
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())
