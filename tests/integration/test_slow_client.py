"""A client with little CPU time: PostgreSQL ends transactions that are silent for too long."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from soong.shared.core.errors import TooSlowError
from soong.shared.engine.sessions.session import Ownership
from soong.shared.storage.sql.engine.postgres_wire import PostgresWire
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.store import SqlStore
from soong.shared.storage.store import retry_until_confirmed
from tests.integration.sql_stores import opened
from tests.model.builders import make_children, make_map, make_session, make_step, make_task
from tests.model.clock import START_US

ROOT = Path(__file__).parents[2]
STEPS = 20_000
CHILDREN = 10_000

SUBMITS_AND_EXPANDS = """
import asyncio, sys
from soong.shared.storage.sql.engine import engine
from soong.shared.storage.sql.store import open_store
from soong.shared.engine.sessions.session import Ownership
from tests.model.builders import make_children
from tests.model.builders import make_map
from tests.model.builders import make_session
from tests.model.builders import make_step
from tests.model.builders import make_task
from tests.model.clock import START_US

# What a client bears that has a sixteenth of this machine's CPU: 5 s are as little to it as this is to us.
engine._POSTGRES_SETTINGS["idle_in_transaction_session_timeout"] = "300ms"

async def main(url, steps, children):
    store = await open_store(url)
    session = make_session(owner_id="own_1")
    await store.sessions.open_session(session)
    fan = [make_step(f"s{number}", depends_on=["root"]) for number in range(steps)]
    task = make_task(session.id, make_map("m"), make_step("root"), *fan)
    await store.tasks.create_task(task)
    map_step = (await store.tasks.steps(task.id))[0]
    root = (await store.runs.run((await store.tasks.task(task.id)).root_run_id)).identity
    items = make_children(map_step, root, *(str(number) for number in range(children)))
    own = Ownership(session.id, "own_1", session.owner_epoch)
    print(await store.tasks.expand(own, map_step.key, items, now_us=START_US), flush=True)
    await store.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


@pytest.mark.spec("DAG-08")
@pytest.mark.timeout(180)
async def test_a_large_plan_and_a_large_map_are_written_by_a_process_that_is_slow(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        arguments = [sys.executable, "-P", "-c", SUBMITS_AND_EXPANDS, postgres_url, str(STEPS), str(CHILDREN)]
        client = subprocess.run(  # noqa: ASYNC221
            arguments,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )

        assert (client.returncode, client.stdout) == (0, "True\n"), client.stderr
        assert (await _counted(store)) == STEPS + CHILDREN + 2


@pytest.mark.spec("DAG-08")
async def test_nothing_is_computed_between_the_statements_of_a_large_write(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps = _cpu_gaps(monkeypatch)
    async with opened(postgres_url) as store:
        session = make_session(owner_id="own_1")
        own = Ownership(session.id, "own_1", session.owner_epoch)
        await store.sessions.open_session(session)
        task = make_task(session.id, make_map("m"), *(make_step(f"s{n}") for n in range(STEPS)))
        await store.tasks.create_task(task)
        map_step = (await store.tasks.steps(task.id))[0]
        root = (await store.runs.run((await store.tasks.task(task.id)).root_run_id)).identity
        children = make_children(map_step, root, *(str(number) for number in range(CHILDREN)))
        await store.tasks.expand(own, map_step.key, children, now_us=START_US)

    # 0.9 s and 0.4 s of CPU time when rows are built within the transaction.
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
