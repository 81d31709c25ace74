"""A process that is stopped in the middle of a write: what the others hear and do, and what becomes of its work."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from structlog.testing import capture_logs

from soong.shared.core.errors import TooSlowError, UnavailableError
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.verdict import GrowMap
from soong.shared.storage.sql.engine.postgres_wire import PostgresWire
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.store import SqlStore
from soong.shared.storage.store import retry_until_confirmed
from tests.integration.sql_stores import opened
from tests.model.builders import make_children, make_map, make_session, make_step, make_task
from tests.model.clock import START_US
from tests.waiting import wait_until

STOPS_IN_A_WRITE = """
import asyncio, signal, sys, threading
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.store import open_store

ADD = Statement("add a slots of one", "INSERT INTO concurrency_limits (scope, slots) VALUES (:scope, 1)")
lives = []

def write(tx):
    tx.count(ADD, scope="a")
    lives.append(1)
    if len(lives) == 1:
        # To this thread: one sent to the process may reach another thread first, and this one go on meanwhile.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

async def main(url):
    store = await open_store(url)
    await store._database.write(write)
    print(len(lives), flush=True)
    await store.close()

asyncio.run(main(sys.argv[1]))
"""
TAKE = Statement(
    "set a concurrency limit of two",
    "INSERT INTO concurrency_limits (scope, slots) VALUES (:scope, 2) ON CONFLICT (scope) DO UPDATE SET slots = 2",
)
LIMITS = Statement("all concurrency limits", "SELECT scope, slots FROM concurrency_limits ORDER BY scope")


async def test_sqlite_says_which_process_holds_it_and_goes_on_after_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'soong.db'}"
    async with opened(url) as store:
        store._database.patience_s = 0.3
        with _stopped_in_a_write(url) as process:
            with pytest.raises(UnavailableError) as caught:
                await _take(store, "b")
            assert f"process {process.pid} holds the database" in str(caught.value)
            assert f"it is stopped: continue it (kill -CONT {process.pid}" in str(caught.value)
            async with asyncio.timeout(10), opened(url, migrate=False) as other:  # reading needs no lock
                assert await _concurrency_limits(other) == []

            process.send_signal(signal.SIGCONT)
            assert process.communicate(timeout=20)[0] == "1\n"

        store._database.patience_s = 30
        await _take(store, "c")
        assert dict(await _concurrency_limits(store)) == {
            "a": 1,
            "b": 2,
            "c": 2,
        }  # b: told as not known, and done after all


async def test_who_comes_after_somebody_has_waited_without_success_learns_it_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'soong.db'}"
    async with opened(url) as store:
        store._database.patience_s = 2
        with _stopped_in_a_write(url):
            with pytest.raises(UnavailableError):
                await _take(store, "a")
            since = time.monotonic()
            for scope in "bcdef":
                with pytest.raises(UnavailableError):
                    await _take(store, scope)

            assert time.monotonic() - since < 5 * 2


async def test_a_process_that_is_slow_itself_does_not_accuse_another(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path / 'soong.db'}") as store:
        store._database.patience_s = 0.1
        may_go_on = threading.Event()

        with pytest.raises(UnavailableError, match=r"a write of this process takes more than 0\.1 s"):
            await store._database.write(lambda _tx: may_go_on.wait(60))
        may_go_on.set()


async def test_sqlite_is_free_when_the_one_that_hangs_is_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'soong.db'}"
    async with opened(url) as store:
        with _stopped_in_a_write(url) as process:
            process.kill()
            await _take(store, "b")

        assert await _concurrency_limits(store) == [("b", 2)]


async def test_closing_does_not_wait_for_ever_for_a_process_that_hangs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'soong.db'}"
    async with opened(url) as store:
        store._database.patience_s = 0.2
        with _stopped_in_a_write(url):
            with pytest.raises(UnavailableError):
                await _take(store, "b")
            async with asyncio.timeout(10):
                await store.close()


@pytest.mark.spec("CARD-1", "DAG-07")
async def test_postgres_takes_its_rows_from_it_before_a_lease_has_ended(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        with _stopped_in_a_write(postgres_url) as process:
            since = time.monotonic()
            await _take(store, "a")  # the very row that it has written and not committed

            assert time.monotonic() - since < 20
            assert await _concurrency_limits(store) == [("a", 2)]
            process.send_signal(signal.SIGCONT)
            assert process.wait(20) != 0  # it did the same again, and found the row of another

        assert await _concurrency_limits(store) == [("a", 2)]


async def test_what_postgres_took_back_is_done_again(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        lives: list[int] = []

        def still_twice(tx: Transaction) -> None:
            lives.append(tx.count(TAKE, scope="a"))
            if len(lives) < 3:
                tx.connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '50ms'")
                time.sleep(1)  # longer than the server bears
                tx.count(TAKE, scope="b")

        await store._database.write(still_twice)

        assert len(lives) == 3
        assert await _concurrency_limits(store) == [("a", 2)]


@contextmanager
def _stopped_in_a_write(url: str) -> "Iterator[subprocess.Popen[str]]":
    """A process that has written a row and stands still before it commits; ended with the block."""
    arguments = [sys.executable, "-P", "-c", STOPS_IN_A_WRITE, url]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, 20, "its write")
            yield process
        finally:
            process.kill()


async def _take(store: SqlStore, scope: str) -> None:
    def write(tx: Transaction) -> None:
        tx.count(TAKE, scope=scope)

    await store._database.write(write)


async def _concurrency_limits(store: SqlStore) -> list[tuple[str, int]]:
    return [(row[0], row[1]) for row in await store._database.read(lambda tx: tx.rows(LIMITS))]


# -- a client with little CPU time: PostgreSQL ends transactions that are silent for too long
STEPS = 12_000
CHILDREN = 8_000


@pytest.mark.spec("DAG-08")
async def test_nothing_is_computed_between_the_statements_of_a_large_write(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps = _cpu_gaps(monkeypatch)
    async with opened(postgres_url) as store:
        session = make_session(owner_id="own_1")
        own = Ownership(session.id, "own_1", session.owner_epoch)
        await store.sessions.open_session(session)
        fan = [make_step(f"s{number}", depends_on=["root"]) for number in range(STEPS)]
        task = make_task(session.id, make_map("m"), make_step("root"), *fan)
        await store.tasks.create_task(task)
        map_step = (await store.tasks.steps(task.id))[0]
        root = (await store.runs.run((await store.tasks.task(task.id)).root_run_id)).identity
        children = make_children(map_step, root, *(str(number) for number in range(CHILDREN)))
        await store.tasks.write_verdict(own, map_step.key, GrowMap(tuple(children)), now_us=START_US)
        assert await _counted(store) == STEPS + CHILDREN + 2

    # 0.5 s and 0.3 s of CPU time when rows are built within the transaction.
    assert len(gaps) > 2 * (STEPS + CHILDREN) // 1_000
    assert max(gaps) < 0.1


async def test_a_process_that_is_always_too_slow_is_warned_and_does_not_try_for_ever(postgres_url: str) -> None:
    lives: list[int] = []

    def always_silent(tx: Transaction) -> None:
        lives.append(1)
        tx.connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '20ms'")
        time.sleep(0.3)
        tx.connection.exec_driver_sql("SELECT 1")

    async with opened(postgres_url) as store:
        with (
            capture_logs() as logs,
            pytest.raises(TooSlowError, match="nothing was written; give the process more CPU time"),
        ):
            await retry_until_confirmed(lambda: store._database.write(always_silent), what="a silent write")

    assert len(lives) == 4  # with others, and three times alone
    told = [(line["event"], line.get("attempt")) for line in logs]
    assert told == [("writes_repeated_alone", None), *(("write_undone", attempt) for attempt in (1, 2, 3))]
    assert all("idle-in-transaction timeout" in line["reason"] for line in logs)


def _cpu_gaps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the CPU time that a thread takes from each statement of a transaction to the next one."""
    gaps: list[float] = []
    ended: dict[object, float] = {}

    def measure(of: Any, connection_of: Callable[[Any], psycopg.Connection[Any]]) -> None:
        execute = of.execute

        def measured(self: Any, *arguments: Any, **named: Any) -> Any:
            connection = connection_of(self)
            if connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS:
                gaps.append(time.thread_time() - ended.get(connection, time.thread_time()))
            try:
                return execute(self, *arguments, **named)
            finally:
                ended[connection] = time.thread_time()

        monkeypatch.setattr(of, "execute", measured)

    measure(psycopg.Cursor, lambda cursor: cursor.connection)
    measure(PostgresWire, lambda wire: wire.connection)
    return gaps


async def _counted(store: SqlStore) -> int:
    tasks = await store.tasks.list_tasks()
    return sum([sum((await store.tasks.counts(task.id)).values()) for task in tasks])
