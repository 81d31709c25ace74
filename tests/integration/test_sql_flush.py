"""When a commit of SQLite is on the disk, who waits for that, and which thread writes it."""

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from soong.shared.core.errors import ConflictError, UnavailableError
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.storage.sql.engine.database import Database, flush_log
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.engine.write_ahead_log import Flush, WriteAheadLog, write_ahead_log
from soong.shared.storage.sql.store import SqlStore
from tests.integration.flushes import (
    LIMIT_S,
    SOON,
    advance,
    by_another_process,
    by_another_program,
    counted_flushes,
    held_flush,
    scopes,
)
from tests.integration.sql_stores import begin, opened
from tests.integration.test_sql_database import ADD_LIMIT, add
from tests.model.builders import make_session, make_step, make_task
from tests.model.clock import START_US


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "soong.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqlStore]:
    async with opened(f"sqlite:///{path}") as store:
        yield store


@pytest.fixture
def database(store: SqlStore) -> Database:
    return store._database


@pytest.mark.spec("DAG-03")
async def test_claims_and_ends_wait_for_no_disk(store: SqlStore, database: Database) -> None:
    session, worker_id = await begin(store)
    await store.tasks.create_task(make_task(session.id, make_step("a"), make_step("b", depends_on=("a",))))

    with held_flush(database):
        claimed = await advance(store, worker_id)
    with held_flush(database):
        claimed = await advance(store, worker_id, *claimed)

    assert [claim.step_key.partition("/")[2] for claim in claimed] == ["b"]


@pytest.mark.spec("DAG-03", "DIS-10")
async def test_the_end_of_a_task_is_on_the_disk_before_its_owner_continues(store: SqlStore, database: Database) -> None:
    """With the ends of its steps, which are before it in the log."""
    session, worker_id = await begin(store)
    steps = [make_step("a"), make_step("b", depends_on=("a",)), make_step("c", depends_on=("b",))]
    task = make_task(session.id, *steps)
    await store.tasks.create_task(task)
    claimed = await advance(store, worker_id)
    for _ in steps:
        claimed = await advance(store, worker_id, *claimed)
    with counted_flushes(database) as flushes:
        await store.tasks.finish_task(session.ownership, task.id, now_us=START_US)

        assert flushes
    assert [step.status for step in await store.tasks.steps(task.id)] == [StepStatus.COMPLETED] * 3


async def test_what_nobody_waits_for_is_flushed_in_a_moment_also_where_others_keep_writing(database: Database) -> None:
    with counted_flushes(database) as flushes:
        numbers = count()
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while not flushes:
            await SOON(database, add(f"hop {next(numbers)}"))
            assert asyncio.get_running_loop().time() < deadline


async def test_a_log_that_is_being_flushed_is_not_closed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number could be another file's by then, whose flush would be taken for the log's."""
    has_begun, may_end = threading.Event(), threading.Event()
    usual = os.fdatasync

    def held(fd: int) -> None:
        has_begun.set()
        assert may_end.wait(LIMIT_S)
        usual(fd)  # raises where the file is closed

    monkeypatch.setattr(os, "fdatasync", held)
    await database.write(add("a"), flush=Flush.WITH_NEXT)
    log = write_ahead_log(database.url)
    assert log is not None
    flushing = asyncio.create_task(asyncio.to_thread(log.flush))
    assert await asyncio.to_thread(has_begun.wait, LIMIT_S)
    closing = asyncio.create_task(asyncio.to_thread(log.forget))
    await asyncio.sleep(0.05)
    may_end.set()
    await asyncio.gather(flushing, closing)


async def test_what_is_flushed_before_its_caller_returns_others_see_and_write_after_meanwhile(
    database: Database, path: Path
) -> None:
    with held_flush(database) as has_begun:
        writing = asyncio.create_task(database.write(add("a"), flush=Flush.BEFORE_RETURN))
        assert await asyncio.to_thread(has_begun.wait, LIMIT_S)
        with by_another_process(path), by_another_program(path):
            assert scopes(path) == ["a"]
            assert not writing.done()
    assert await writing == "a"


async def test_nobody_hears_of_a_commit_whose_flush_failed(database: Database, path: Path) -> None:
    def fail(_log: WriteAheadLog) -> None:
        raise OSError(5, "Input/output error")

    database.flusher = fail
    with pytest.raises(UnavailableError, match=r"did not confirm a commit: .*Input/output error"):
        await database.write(add("a"), flush=Flush.BEFORE_RETURN)
    assert await database.write(add("b"), flush=Flush.WITH_NEXT) == "b"

    database.flusher = flush_log
    assert await database.write(add("c"), flush=Flush.BEFORE_RETURN) == "c"
    assert scopes(path) == ["a", "b", "c"]


async def test_what_is_flushed_after_its_caller_returns_holds_up_nobody(database: Database, path: Path) -> None:
    with held_flush(database) as has_begun:
        assert await database.write(add("a"), flush=Flush.WITH_NEXT) == "a"
        assert scopes(path) == ["a"]
        assert await asyncio.to_thread(has_begun.wait, LIMIT_S)


async def test_the_disk_has_what_a_caller_was_given_when_the_power_fails(
    database: Database, path: Path, tmp_path: Path
) -> None:
    """The log as it was at the last flush is what a power cut leaves at the least."""
    image = tmp_path / "image.db"

    def flush(log: WriteAheadLog) -> None:
        log.flush()
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{path}{suffix}", f"{image}{suffix}")

    database.flusher = flush
    await SOON(database, add("hop"))
    assert await database.write(add("claim"), flush=Flush.WITH_NEXT) == "claim"
    assert await database.write(add("task"), flush=Flush.BEFORE_RETURN) == "task"

    assert scopes(image) == ["claim", "hop", "task"]


async def test_closing_flushes_what_is_not_on_the_disk(path: Path) -> None:
    async with opened(f"sqlite:///{path}") as store:
        with counted_flushes(store._database) as flushes:
            await store._database.write(add("a"), flush=Flush.WITH_NEXT)
            assert not flushes
            await store.close()
            assert len(flushes) == 1


async def test_a_refusal_is_its_callers_and_undoes_all(database: Database, path: Path) -> None:
    await database.write(add("a"))

    def refuse(tx: Transaction) -> None:
        tx.count(ADD_LIMIT, scope="b")
        raise ConflictError("no")

    with pytest.raises(ConflictError, match="no"):
        await SOON(database, refuse)
    database.close()
    with pytest.raises(UnavailableError, match="closed by this process"):
        await SOON(database, add("c"))

    assert scopes(path) == ["a"]


@pytest.mark.spec("DAG-03")
async def test_a_submission_is_on_the_disk_when_its_caller_hears_of_it(store: SqlStore, database: Database) -> None:
    with counted_flushes(database) as flushes:
        session = make_session()
        await store.tasks.submit(session, make_task(session.id, make_step("a")))
        assert len(flushes) == 1
