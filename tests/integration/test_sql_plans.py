"""No hand-written statement reads what has ended: each reaches its rows by an index, on both databases.

The plans are those that are really used. SQLite decides without statistics; on PostgreSQL the writer's plans are made
once for any parameters, on tables that may be empty then, so that is how they are looked at here.
"""

import re
import sqlite3
from pathlib import Path

import psycopg
import pytest

from shared.adapters.sql.statements import Statement
from shared.testing.builders import make_step, make_task
from tests.integration.sql_stores import begin, connected, opened, statements

GROWING = "steps|runs|events|nodes|edges|tasks|calls|permission_requests|answers|decisions|consumptions|surfaces"
"""Tables in which what has ended stays."""

LIVE = "ix_steps_(ready|leased|expanding|unsettled|due)|ix_tasks_open|ix_permission_requests_pending"
"""Indexes of what is live: these may be walked."""

POSTGRES_ONLY = ("fused.", "runs.APPEND_ALL")
HOT = ("fused.", "claiming.", "ending.", "heart.", "journal.", "owned.", "reading.", "runs.", "unlocking.")
RARE = {"sessions.FREE_SESSIONS"}  # when an owner ends, and the table of sessions is small


@pytest.fixture
async def sqlite_file(tmp_path: Path) -> Path:
    path = tmp_path / "soong.db"
    async with opened(f"sqlite:///{path}"):
        return path


async def test_sqlite_reaches_every_row_by_an_index(sqlite_file: Path) -> None:
    connection = sqlite3.connect(sqlite_file)
    offending = {}

    for name, statement in statements().items():
        if not name.startswith(POSTGRES_ONLY) and name not in RARE:
            offending[name] = _sqlite_scans(connection, statement)
    connection.close()

    assert {name: scans for name, scans in offending.items() if scans} == {}


def _sqlite_scans(connection: sqlite3.Connection, statement: Statement) -> list[str]:
    names = re.findall(r"(?<![:\w]):([a-z_]\w*)", statement.sqlite)
    plan = connection.execute(f"EXPLAIN QUERY PLAN {statement.sqlite}", dict.fromkeys(names))
    details = [row[3] for row in plan]
    # A scan by a partial index reads live rows only: that is what those are for.
    return [detail for detail in details if re.match(rf"SCAN ({GROWING}|s|p|head)\b(?!.* ix_)", detail)]


@pytest.mark.parametrize("width", [0, 10, 300])
async def test_postgres_reaches_every_row_by_an_index(postgres_url: str, width: int) -> None:
    async with opened(postgres_url) as store:
        if width:
            session, _ = await begin(store)
            steps = [make_step("root"), *(make_step(f"s{number}", depends_on=["root"]) for number in range(width))]
            await store.create_task(make_task(session.id, *steps))
    offending = {}

    with connected(postgres_url) as connection:
        raw = connection.connection.dbapi_connection
        connection.exec_driver_sql("ANALYZE" if width else "SELECT 1")
        for name, statement in statements().items():
            # In a table of one task, to read the whole of a task is to read the whole table.
            if name.startswith(HOT) or (not width and name not in RARE):
                offending[name] = _postgres_scans(raw, statement)  # type: ignore[arg-type]  # psycopg's own

    assert {name: scans for name, scans in offending.items() if scans} == {}


def _postgres_scans(connection: "psycopg.Connection[tuple[str]]", statement: Statement) -> list[str]:
    """Return the parts of the statement's plan that would read a table, or an index of all of it, from end to end."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement.postgres)))
    numbered = re.sub(
        r"%\((\w+)\)s", lambda match: f"${names.index(match[1]) + 1}{_cast(match[1])}", statement.postgres
    )
    # By the simple protocol: the extended one would ask for the parameters.
    result = connection.pgconn.exec_(f"EXPLAIN (GENERIC_PLAN, COSTS OFF) {numbered}".encode())
    assert result.ntuples, result.error_message
    plan = [(result.get_value(row, 0) or b"").decode().strip() for row in range(result.ntuples)]
    return [line for line, after in zip(plan, [*plan[1:], ""], strict=True) if _reads_all(line, after)]


def _reads_all(line: str, after: str) -> bool:
    if re.search(rf"Seq Scan on ({GROWING})\b", line):
        return True
    index = re.search(r"Scan(?: Backward)? using (\w+)|Bitmap Index Scan on (\w+)", line)
    name = (index[1] or index[2]) if index else ""
    is_whole = re.match(rf"(pk|uq|ix)_({GROWING})", name) is not None and re.match(LIVE, name) is None
    return is_whole and "Index Cond" not in after


def test_the_writer_of_postgres_plans_once(postgres_url: str) -> None:
    with connected(postgres_url) as connection:
        assert connection.exec_driver_sql("SHOW plan_cache_mode").scalar() == "force_generic_plan"


def _cast(name: str) -> str:
    """Return what the driver says of an integer and a bare EXPLAIN has to be told."""
    return "::bigint" if name.endswith("_us") else ""
