"""The log of SQLite is flushed as often as it must be, whatever holds a flush up or keeps the database locked."""

import asyncio
import errno
import fcntl
import os
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import RootTransaction

from soong.shared.core.errors import ConflictError, UnavailableError
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.engine.write_ahead_log import Flush, WriteAheadLog, database_file
from soong.shared.storage.sql.store import SqlStore
from tests.contract.scene import completed
from tests.integration.sql_stores import begin, claim_one, opened
from tests.integration.test_sql_database import ADD_LIMIT, add, add_and_fail, at_once
from tests.model.builders import make_session, make_step, make_task, take_turn
from tests.model.clock import START_US
from tests.waiting import until

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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "soong.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqlStore]:
    async with opened(f"sqlite:///{path}") as store:
        yield store


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

    log_of(database).flusher = fail
    with pytest.raises(UnavailableError, match=r"did not confirm a commit: .*Input/output error"):
        await database.write(add("a"), flush=Flush.BEFORE_RETURN)
    assert await database.write(add("b"), flush=Flush.WITH_NEXT) == "b"

    log_of(database).flusher = WriteAheadLog.sync
    assert await database.write(add("c"), flush=Flush.BEFORE_RETURN) == "c"
    assert scopes(path) == ["a", "b", "c"]


async def test_the_disk_has_what_a_caller_was_given_when_the_power_fails(
    database: Database, path: Path, tmp_path: Path
) -> None:
    """The log as it was at the last flush is what a power cut leaves at the least."""
    image = tmp_path / "image.db"

    def flush(log: WriteAheadLog) -> None:
        log.sync()
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{path}{suffix}", f"{image}{suffix}")

    log_of(database).flusher = flush
    await SOON(database, add("hop"))
    assert await database.write(add("claim"), flush=Flush.WITH_NEXT) == "claim"
    assert await database.write(add("task"), flush=Flush.BEFORE_RETURN) == "task"

    assert scopes(image) == ["claim", "hop", "task"]


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


# -- sQLite's log is flushed as promised also where a commit changes nothing, a flush fails or a loop ends
HAS_LIMIT = Statement("has limit", "SELECT 1 FROM concurrency_limits WHERE scope = :scope")


@pytest.fixture
async def database(store: SqlStore) -> Database:
    """A database whose connections are open."""
    await store._database.write(nothing)
    await store._database.read(nothing)
    return store._database


def nothing(_tx: Transaction) -> None:
    """Change nothing: SQLite flushes no commit of that."""


def written(path: Path) -> tuple[bytes, int]:
    """Return what a file holds and when it was last written."""
    return path.read_bytes(), path.stat().st_mtime_ns


def _is_torn(database: Database) -> bool:
    return log_of(database).failure is not None


def fail(_log: WriteAheadLog) -> None:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.spec("DAG-03")
async def test_a_submission_is_flushed_where_what_is_committed_after_it_changes_nothing(
    store: SqlStore, database: Database
) -> None:
    session, worker_id = await begin(store)
    claim = await claim_one(store, session, worker_id)
    await database.write(add("flushed"))
    new = make_session()
    with counted_flushes(database) as flushes:
        submitted, is_parked, refused = await at_once(
            database,
            lambda: store.tasks.submit(new, make_task(new.id, make_step("a"))),
            lambda: store.claims.park(worker_id, claim.lease, ["req_x"], max_parked=5, now_us=START_US),
            lambda: database.write(add_and_fail("x", ConflictError("no"))),  # has each of them written alone
        )

        assert not isinstance(submitted, BaseException)
        assert (is_parked, type(refused)) == (False, ConflictError)
        assert flushes


@pytest.mark.spec("DAG-03")
async def test_a_hop_is_flushed_soon_where_what_is_committed_after_it_changes_nothing(
    store: SqlStore, database: Database
) -> None:
    session, worker_id = await begin(store)
    await store.tasks.create_task(make_task(session.id, make_step("a"), make_step("b", depends_on=("a",))))
    claimed = await advance(store, worker_id)
    with counted_flushes(database) as flushes:
        claimed = await advance(store, worker_id, *claimed)
        assert not await store.claims.park(worker_id, claimed[0].lease, ["req_x"], max_parked=5, now_us=START_US)

        await until(lambda: len(flushes) == 1)


async def test_closing_flushes_what_a_commit_without_a_change_has_not(path: Path) -> None:
    async with opened(f"sqlite:///{path}") as store:
        with counted_flushes(store._database) as flushes:
            await store._database.write(add("a"), flush=Flush.WITH_NEXT)
            await store._database.write(nothing)
            await store.close()

            assert len(flushes) == 1


async def test_what_another_process_has_not_flushed_is_flushed_before_a_caller_hears_of_it(
    database: Database, path: Path
) -> None:
    """As when a client repeats a submission, and another process has committed it a moment ago."""

    def is_there(tx: Transaction) -> bool:
        return bool(tx.value(HAS_LIMIT, scope="task"))

    async with opened(f"sqlite:///{path}", migrate=False) as second:
        other = second._database
        await other.write(nothing)
        with held_flush(database) as has_begun, counted_flushes(other) as flushes:
            writing = asyncio.create_task(database.write(add("task"), flush=Flush.BEFORE_RETURN))
            assert await asyncio.to_thread(has_begun.wait, LIMIT_S)

            found = await at_once(
                other, lambda: other.write(is_there, flush=Flush.BEFORE_RETURN), lambda: other.write(nothing)
            )

            assert (found[0], bool(flushes)) == (True, True)
        await writing


@pytest.mark.spec("DAG-03")
async def test_the_log_of_a_database_that_is_named_by_a_link_is_that_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "target.db", tmp_path / "soong.db"
    async with opened(f"sqlite:///{target}"):
        link.symlink_to(target)
    async with opened(f"sqlite:///{link}") as store:
        session = make_session()
        with counted_flushes(store._database) as flushes:
            await store.tasks.submit(session, make_task(session.id, make_step("a")))

            assert len(flushes) == 1
            with by_another_process(target):
                writing = asyncio.create_task(store._database.write(nothing))
                await asyncio.sleep(0.05)
                assert not writing.done()
            await writing


async def test_what_could_not_be_flushed_is_soon_flushed_although_nothing_is_written(
    database: Database, path: Path
) -> None:
    log = Path(f"{path}-wal")
    log_of(database).flusher = fail
    await SOON(database, add("hop"))
    await until(partial(_is_torn, database))
    before, written_ns = written(log)
    log_of(database).flusher = WriteAheadLog.sync

    await until(lambda: not _is_torn(database))

    # The system had taken it for written; its bytes have been written again, and are the same.
    after, again_ns = written(log)
    assert again_ns > written_ns
    assert after.startswith(before)


async def test_nothing_is_written_after_what_could_not_be_flushed_until_that_is_on_the_disk(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_of(database).flusher = fail
    await SOON(database, add("hop"))
    await until(partial(_is_torn, database))
    log_of(database).flusher = WriteAheadLog.sync
    with monkeypatch.context() as broken:

        def refuse(fd: int, data: bytes, offset: int) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        broken.setattr(os, "pwrite", refuse)
        for flush in Flush:
            with pytest.raises(UnavailableError, match=r"log of the database cannot be written: .*No space left"):
                await database.write(add(flush.name), flush=flush)
        assert scopes(path) == ["hop"]

    assert await database.write(add("then")) == "then"
    assert scopes(path) == ["hop", "then"]


async def test_a_commit_that_was_done_and_reported_as_an_error_is_flushed(database: Database, path: Path) -> None:
    usual = database._writer.committer

    def report_an_error(transaction: RootTransaction) -> None:
        transaction.commit()
        raise OSError("the answer was lost")

    with counted_flushes(database) as flushes:
        database._writer.committer = report_an_error
        with pytest.raises(UnavailableError, match="did not confirm a commit"):
            await SOON(database, add("hop"))
        database._writer.committer = usual

        await until(lambda: len(flushes) == 1)
    assert scopes(path) == ["hop"]


async def test_what_sqlite_has_moved_out_of_its_log_needs_no_flush(path: Path) -> None:
    def break_connection(_tx: Transaction) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    async with opened(f"sqlite:///{path}"):
        pass
    async with opened(f"sqlite:///{path}", migrate=False) as store:  # its writer has the only connection
        database = store._database
        written, broken = await at_once(
            database,
            lambda: database.write(add("task"), flush=Flush.BEFORE_RETURN),
            lambda: database.write(break_connection),
        )

    assert (written, type(broken)) == ("task", UnavailableError)
    assert scopes(path) == ["task"]


async def test_a_system_without_fdatasync_flushes_by_fsync(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", flushed.append)

    assert await database.write(add("a"), flush=Flush.BEFORE_RETURN) == "a"

    assert len(flushed) == 1


async def test_a_lock_that_cannot_be_taken_is_a_database_that_does_not_answer(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as broken:
        broken.setattr(fcntl, "flock", refuse)
        for write in (partial(database.write, add("a")), partial(SOON, database, add("b"))):
            with pytest.raises(UnavailableError, match="cannot be locked: No locks available"):
                await write()

    assert await database.write(add("c")) == "c"
