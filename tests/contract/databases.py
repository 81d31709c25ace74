"""SQL deployments for the contract tests, migrated once in a run of the tests and empty at the start of each test."""

import asyncio
import atexit
import shutil
from functools import cache
from pathlib import Path
from typing import Final

import psycopg
from sqlalchemy import make_url

from soong.shared.storage.sql.engine.tables import metadata
from soong.shared.storage.sql.store import open_store


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


def empty_postgres(url: str) -> None:
    """Delete all rows. Truncating or copying a database takes ten to a hundred times as long."""
    _connected(url).execute(_DELETE_ALL)


@cache
def _connected(url: str) -> psycopg.Connection:
    """Return the connection that deletes: a new one would plan forty statements again."""
    plain_url = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    connection = psycopg.connect(plain_url, autocommit=True)
    atexit.register(connection.close)
    return connection


_DELETE_ALL: Final = "; ".join(f"DELETE FROM {table.name}" for table in reversed(metadata.sorted_tables)).encode()
"""Children first."""
