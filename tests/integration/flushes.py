"""Flushes of SQLite's log, watched and held up; and others that keep a database locked."""

import fcntl
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from soong.shared.engine.tasks.step import Claim
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.write_ahead_log import Flush, WriteAheadLog, database_file
from soong.shared.storage.sql.store import SqlStore
from tests.contract.scene import completed
from tests.model.builders import take_turn

LIMIT_S = 30.0
SOON = partial(Database.write, flush=Flush.WITH_NEXT)


def scopes(path: Path) -> list[str]:
    """Return what a program of its own sees."""
    connection = sqlite3.connect(path)
    try:
        return [scope for (scope,) in connection.execute("SELECT scope FROM concurrency_limits ORDER BY scope")]
    finally:
        connection.close()


def log_of(database: Database) -> WriteAheadLog:
    log = database._writer._log
    assert log is not None
    return log


@contextmanager
def held_flush(database: Database) -> Iterator[threading.Event]:
    """Let no flush end before this does; the event says that one has begun."""
    has_begun, may_end = threading.Event(), threading.Event()

    def flush(log: WriteAheadLog) -> None:
        has_begun.set()
        assert may_end.wait(LIMIT_S)
        log.sync()

    log_of(database).flusher = flush
    try:
        yield has_begun
    finally:
        may_end.set()


@contextmanager
def counted_flushes(database: Database) -> Iterator[list[int]]:
    """Gather how many bytes the log has at each flush."""
    found: list[int] = []

    def flush(log: WriteAheadLog) -> None:
        found.append(Path(f"{database_file(database.url)}-wal").stat().st_size)
        log.sync()

    log_of(database).flusher = flush
    yield found


async def advance(store: SqlStore, worker_id: str, *ended: Claim) -> tuple[Claim, ...]:
    """End steps and claim one."""
    found = await take_turn(store, worker_id, [completed(claim) for claim in ended])
    return found.claims


@contextmanager
def by_another_process(path: Path) -> Iterator[None]:
    """Hold our own lock, as another process of ours does."""
    with Path(f"{path}.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def by_another_program(path: Path) -> Iterator[None]:
    """Hold SQLite's lock, as a shell of it does."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()
