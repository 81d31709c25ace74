"""Group commit and connections: nobody's failure is another's, done means committed, and a cut heals."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from sqlalchemy import make_url

from soong.shared.core.errors import ConflictError, LeaseLostError, SoongError, UnavailableError
from soong.shared.engine.runs.events import NewEvent, NewNode, NodeKind
from soong.shared.engine.runs.store import Appended, CallRow
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.engine import driver_error
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.store import SqlStore
from soong.shared.storage.sql.tasks.run_writes import RunWrite, write_runs
from tests.integration.sql_stores import begin, claim_one, opened
from tests.model.builders import make_call, make_worker
from tests.model.clock import START_US
from tests.waiting import others_run

ADD_LIMIT = Statement("add concurrency limit", "INSERT INTO concurrency_limits (scope, slots) VALUES (:scope, 1)")
BREAK = Statement("break", "INSERT INTO concurrency_limits (scope, slots) VALUES (:scope, -1)")
SCOPES = Statement("scopes", "SELECT scope FROM concurrency_limits ORDER BY scope")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'soong.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    async with opened(url) as store:
        yield store


def add(scope: str) -> Callable[[Transaction], str]:
    def write(tx: Transaction) -> str:
        tx.count(ADD_LIMIT, scope=scope)
        return scope

    return write


def add_and_fail(scope: str, error: Exception) -> Callable[[Transaction], None]:
    def write(tx: Transaction) -> None:
        tx.count(ADD_LIMIT, scope=scope)
        raise error

    return write


async def scopes(database: Database) -> list[str]:
    return [row[0] for row in await database.read(lambda tx: tx.rows(SCOPES))]


async def together(database: Database, *functions: Callable[[Transaction], Any]) -> list[Any]:
    """Hand the functions in while the writer is busy, so that they meet in one transaction."""
    return await at_once(database, *(partial(database.write, function) for function in functions))


async def at_once(database: Database, *writes: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Begin the writes while the writer is busy, so that they meet in one transaction."""
    is_busy, may_go = threading.Event(), threading.Event()

    def block(_: Transaction) -> None:
        is_busy.set()
        assert may_go.wait(10)

    first = asyncio.ensure_future(database.write(block))
    assert await asyncio.to_thread(is_busy.wait, 10)
    rest = [asyncio.ensure_future(write()) for write in writes]
    await others_run()
    may_go.set()
    await first
    return await asyncio.gather(*rest, return_exceptions=True)


async def test_an_expected_refusal_is_its_callers_alone(store: SqlStore) -> None:
    outcomes = await together(
        store._database,
        add("a"),
        add_and_fail("b", ConflictError("no")),
        add("c"),
        add_and_fail("d", ConflictError("no")),
    )

    assert outcomes[0] == "a"
    assert outcomes[2] == "c"
    assert [type(outcomes[place]) for place in (1, 3)] == [ConflictError, ConflictError]
    assert await scopes(store._database) == ["a", "c"]


def add_all(tx: Transaction, names: Sequence[str]) -> list[str | SoongError]:
    """Add what many callers name, in one go; one whose name begins with "no" is refused, one "bad" breaks all."""
    added = [name for name in names if not name.startswith("no")]
    for name in added:
        tx.count(BREAK if name == "bad" else ADD_LIMIT, scope=name)
    return [name if name in added else ConflictError(name) for name in names]


async def test_what_is_written_together_is_written_in_one_go_and_refused_one_by_one(store: SqlStore) -> None:
    goes: list[list[str]] = []

    def counted(tx: Transaction, names: Sequence[str]) -> list[str | SoongError]:
        goes.append(list(names))
        return add_all(tx, names)

    database = store._database
    outcomes = await at_once(
        database,
        lambda: database.write_together(counted, "a"),
        lambda: database.write(add("b")),
        lambda: database.write_together(counted, "no"),
        lambda: database.write_together(counted, "c"),
    )

    assert goes == [["a", "no", "c"]]
    assert [outcomes[0], outcomes[1], outcomes[3]] == ["a", "b", "c"]
    assert isinstance(outcomes[2], ConflictError)
    assert await scopes(database) == ["a", "b", "c"]


async def test_of_what_is_written_together_one_that_breaks_takes_no_other_with_it(store: SqlStore) -> None:
    database = store._database
    names = ("a", "bad", "no", "c")

    outcomes = await at_once(database, *(partial(database.write_together, add_all, name) for name in names))

    assert [outcomes[0], outcomes[3]] == ["a", "c"]
    assert isinstance(outcomes[1], Exception)
    assert isinstance(outcomes[2], ConflictError)
    assert await scopes(database) == ["a", "c"]


async def test_writes_of_many_runs_at_once_count_by_their_own_fences(store: SqlStore) -> None:
    session, worker_id = await begin(store)
    claims = [await claim_one(store, session, worker_id) for _ in range(4)]
    node = NewNode(NodeKind.ASSISTANT, {"v": 1})
    # The third has lost its lease, the first writes twice, and the last brings the row of a call.
    calls: Sequence[Sequence[CallRow]] = [(), (), (), (make_call(claims[3]),)]
    writes = [
        RunWrite(claim.identity.run_id, claim.fence + (place == 2), START_US + place, [node], [NewEvent("x")], row)
        for place, (claim, row) in enumerate(zip(claims, calls, strict=True))
    ]
    writes.append(replace(writes[0], nodes=[node, node], taints=True))

    outcomes = await store._database.write(lambda tx: write_runs(tx, writes))

    assert isinstance(outcomes[2], LeaseLostError)
    ends = [outcome.last_node for outcome in outcomes if isinstance(outcome, Appended)]
    assert ends == [1, 1, 1, 3]
    first, lost, last = (claims[place].identity.run_id for place in (0, 2, 3))
    assert [each.number for each in await store.runs.nodes(first)] == [1, 2, 3]
    assert await store.runs.nodes(lost) == []
    assert [each.created_us for each in await store.runs.nodes(last)] == [START_US + 3]
    assert [call.run_id for call in await store.runs.calls(last)] == [last]
    assert [await store.runs.is_tainted(run_id) for run_id in (first, lost, last)] == [True, False, False]
    seqs = [event.seq for event in await store.runs.events(first)]
    assert seqs == list(range(1, len(seqs) + 1))


async def test_an_unforeseen_failure_and_a_broken_constraint_are_their_callers_alone(store: SqlStore) -> None:
    bug = add_and_fail("b", ZeroDivisionError("bug"))
    outcomes = await together(store._database, add("a"), bug, lambda tx: tx.count(BREAK, scope="b"), add("c"))

    assert isinstance(outcomes[1], ZeroDivisionError)
    assert isinstance(outcomes[2], Exception)
    assert await scopes(store._database) == ["a", "c"]


async def test_a_broken_constraint_that_the_commit_finds_is_its_callers_alone(store: SqlStore) -> None:
    outcomes = await together(store._database, add("a"), lambda tx: tx.send(BREAK, scope="b"), add("c"))

    assert isinstance(driver_error(outcomes[1]), sqlite3.IntegrityError | psycopg.IntegrityError)
    assert await scopes(store._database) == ["a", "c"]
    await store._database.write(add("d"))
    assert await scopes(store._database) == ["a", "c", "d"]


async def test_work_that_meets_shares_one_transaction(store: SqlStore) -> None:
    seen: list[int] = []

    def watch(scope: str) -> Callable[[Transaction], None]:
        def write(tx: Transaction) -> None:
            add(scope)(tx)
            seen.append(len(tx.rows(SCOPES)))

        return write

    await together(store._database, watch("a"), watch("b"), watch("c"))

    # Each saw what those before it had written and not yet committed.
    assert seen == [1, 2, 3]


async def test_loops_of_several_threads_may_use_one_store(store: SqlStore) -> None:
    def work(name: str) -> None:
        async def write() -> None:
            for number in range(20):
                await store._database.write(add(f"{name}{number:02}"))
                await store._database.read(lambda tx: tx.rows(SCOPES))

        asyncio.run(write())

    await asyncio.gather(*(asyncio.to_thread(work, name) for name in "abc"))

    assert len(await scopes(store._database)) == 60


async def test_a_caller_that_leaves_undoes_nothing(store: SqlStore) -> None:
    leaving = asyncio.ensure_future(store._database.write(add("a")))
    await others_run()
    leaving.cancel()

    await store._database.write(add("b"))

    assert await scopes(store._database) == ["a", "b"]


async def test_closing_finishes_what_was_handed_in_and_takes_no_more(url: str) -> None:
    async with opened(url) as store:
        handed_in = [asyncio.ensure_future(store._database.write(add(f"{n}"))) for n in range(10)]
        await others_run()
    assert len(await asyncio.gather(*handed_in)) == 10

    with pytest.raises(UnavailableError, match="closed"):
        await store._database.write(add("late"))
    with pytest.raises(UnavailableError, match="closed"):
        await store.sessions.session_page()


async def test_a_reader_cannot_write(store: SqlStore) -> None:
    with pytest.raises(Exception, match=r"readonly|read-only"):
        await store._database.read(add("a"))

    assert await scopes(store._database) == []


async def test_cut_connections_are_made_again(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await store._database.write(add("a"))
        await scopes(store._database)
        _cut_all(postgres_url)

        await store._database.write(add("b"))

        assert await scopes(store._database) == ["a", "b"]


async def test_a_connection_cut_in_the_middle_of_work_leaves_no_half(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        tries = []

        def cut_in_the_middle(tx: Transaction) -> None:
            tries.append(tx.count(ADD_LIMIT, scope="a"))
            if len(tries) == 1:
                _cut_all(postgres_url)
            tx.count(ADD_LIMIT, scope="b")

        await store._database.write(cut_in_the_middle)

        assert len(tries) == 2
        assert await scopes(store._database) == ["a", "b"]


async def test_a_heartbeat_whose_connection_is_cut_continues(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        worker = make_worker()
        await store.sessions.register_worker(worker)
        heart = store.heartbeat_writer()
        assert await asyncio.to_thread(heart.beat, worker.id)
        _cut_all(postgres_url)

        with pytest.raises(UnavailableError):
            await asyncio.to_thread(heart.beat, worker.id)

        assert await asyncio.to_thread(heart.beat, worker.id)
        heart.close()


@pytest.mark.parametrize("is_posted", [False, True], ids=["an answer tells", "the commit tells"])
async def test_two_that_wait_for_each_other_both_get_through(postgres_url: str, is_posted: bool) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        await one._database.write(add("a"))
        await one._database.write(add("b"))
        lock = Statement("lock", "UPDATE concurrency_limits SET slots = slots + 1 WHERE scope = :scope")
        meeting = threading.Barrier(2)

        def crosswise(first: str, second: str) -> Callable[[Transaction], None]:
            tries: list[int] = []

            def write(tx: Transaction) -> None:
                tx.count(lock, scope=first)
                if not tries:
                    tries.append(meeting.wait(10))
                (tx.send if is_posted else tx.count)(lock, scope=second)

            return write

        await asyncio.gather(one._database.write(crosswise("a", "b")), two._database.write(crosswise("b", "a")))

        concurrency_limits = Statement("limits", "SELECT slots FROM concurrency_limits ORDER BY scope")
        assert await one._database.read(lambda tx: tx.rows(concurrency_limits)) == [(3,), (3,)]


def _cut_all(url: str) -> None:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
