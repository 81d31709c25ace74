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
from tests.integration.sql_stores import connected, opened, statements

GROWING = "steps|runs|events|nodes|edges|tasks|calls|permission_requests|answers|decisions|consumptions|surfaces"
"""Tables in which what has ended stays."""

POSTGRES_ONLY = "fused."
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


async def test_postgres_reaches_every_row_by_an_index(postgres_url: str) -> None:
    async with opened(postgres_url):
        pass
    offending = {}

    with connected(postgres_url) as connection:
        raw = connection.connection.dbapi_connection
        assert raw is not None
        for name, statement in statements().items():
            if name not in RARE:
                offending[name] = _postgres_scans(raw, statement)  # type: ignore[arg-type]

    assert {name: scans for name, scans in offending.items() if scans} == {}


def _postgres_scans(connection: "psycopg.Connection[tuple[str]]", statement: Statement) -> list[str]:
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement.postgres)))
    numbered = re.sub(
        r"%\((\w+)\)s", lambda match: f"${names.index(match[1]) + 1}{_cast(match[1])}", statement.postgres
    )
    # By the simple protocol: the extended one would ask for the parameters.
    result = connection.pgconn.exec_(f"EXPLAIN (GENERIC_PLAN) {numbered}".encode())
    assert result.ntuples, result.error_message
    plan = [(result.get_value(row, 0) or b"").decode() for row in range(result.ntuples)]
    return [line.strip() for line in plan if re.search(rf"Seq Scan on ({GROWING})\b", line)]


def test_the_writer_of_postgres_plans_once(postgres_url: str) -> None:
    with connected(postgres_url) as connection:
        assert connection.exec_driver_sql("SHOW plan_cache_mode").scalar() == "force_generic_plan"


def _cast(name: str) -> str:
    """Return what the driver says of an integer and a bare EXPLAIN has to be told."""
    return "::bigint" if name.endswith("_us") else ""
