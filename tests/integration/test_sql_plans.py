"""What work costs does not grow with what has ended: counted by the databases, not timed, on both of them."""

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from benchmarks.growth import LIMITS, Comparison
from benchmarks.history import Effort, against_history, against_long_chain, against_wide_fan
from benchmarks.past import fill
from benchmarks.site import fan
from benchmarks.site import opened as site
from soong.shared.storage.sql.engine.columns import add_dialect_options
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.tables import metadata
from tests.integration.sql_stores import connected, statements
from tests.servers import PostgresServer, postgres_server

FINISHED = 5_000
"""Finished steps: some 75,000 rows."""
SMALL = {
    "api_tokens",
    "artifacts",
    "call_aborts",
    "event_consumers",
    "key_retirements",
    "metric_totals",
    "responders",
    "signing_keys",
}
"""Tables that do not grow with what is done."""
add_dialect_options(metadata)
GROWING = sorted(set(metadata.tables) - SMALL)
LIVE = {
    index.name
    for table in metadata.sorted_tables
    for index in table.indexes
    if index.dialect_options["sqlite"]["where"] is not None and not index.unique and index.name != "ix_steps_children"
}
"""Indexes of what has not ended: these may be walked."""
LEADING = {f"pk_{name}": next(iter(metadata.tables[name].primary_key)).name for name in GROWING}
LEADING |= {f"uq_{name}_{column}": column for name in GROWING for column in ("id", "key")}
LEADING |= {
    str(index.name): str(next(iter(index.columns)).name) for name in GROWING for index in metadata.tables[name].indexes
}
"""The first column of each index of a growing table."""
POSTGRES_ONLY = ("postgres_hot_path.", "run_log_buffer.CHANGE_AND_LOG", "run_writes.APPEND_ALL")
EXEMPT = {
    "sessions.FREE_SESSIONS": "when an owner ends, of all sessions that it has had",
    "keys.UNUSED": "when a person revokes a key, of all that was signed",
    "owned_writes.HEAD": "the newest entry of all is the first that SQLite's scan meets",
    "retention.ORPHANS": "when a person collects what has ended, by an index, of all runs",
    "retention.RUNS_OF": "as above, of one task's runs",
    "transaction.WEIGHT": "as above, of one task's runs",
    "retention.RUN_IDS": "as above, of all runs",
    "retention.EMPTY_SESSIONS": "as above, of all sessions",
    "retention.CLOSE_SESSIONS": "as above, of all sessions",
    "event_feed.NEWEST": "the newest of all are the first that a scan from the end meets",
    "budgets.USED": "when a person asks for the sums of a time, of all runs",
    "budgets.UNSUMMED": "as above",
    "sessions.ALL_WORKERS": "when a person lists also those that are gone",
    "tasks.STEP_PAGE": "sorts the steps of one task",
    "tasks.STEPS_IN": "as above, of some statuses",
    "event_feed.GROWN": "sorts the runs of the tasks that are followed, which it reaches by them",
    "event_feed.NEXT_EVENTS": "sorts the events of one page of runs",
}
EXEMPT_WITHIN_ONE_TASK = {
    "metrics.NEXT_IN_LINE": "while one task is all there is, a look of the metrics may read what of it is ready"
}


@pytest.fixture(scope="module")
def full_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("full") / "soong.db"
    fill(f"sqlite:///{path}", FINISHED)
    return path


@pytest.fixture(scope="module")
def full_postgres(postgres_module_url: str) -> str:
    fill(postgres_module_url, FINISHED)
    return postgres_module_url


def looked_at(*, is_sqlite: bool) -> dict[str, Statement]:
    """Return every registered statement by the first of its names, without those of the other database."""
    named = {id(statement): name for name, statement in reversed(statements().items())}
    found = {named[id(statement)]: statement for statement in statements().values()}
    passed_over = {name for name in found if is_sqlite and name.startswith(POSTGRES_ONLY)}
    return {name: found[name] for name in sorted(found.keys() - passed_over - EXEMPT.keys())}


# -- SQLite
def test_sqlite_searches_where_it_could_scan(full_sqlite: Path) -> None:
    connection = sqlite3.connect(full_sqlite)

    offending = {name: _sqlite_scans(connection, each) for name, each in looked_at(is_sqlite=True).items()}
    connection.close()

    assert {name: scans for name, scans in offending.items() if scans} == {}


def _sqlite_scans(connection: sqlite3.Connection, statement: Statement) -> list[str]:
    """Return the parts of the plan that read a growing table from end to end, or sort what a limit then cuts off."""
    names = re.findall(r"(?<![:\w]):([a-z_]\w*)", statement.sqlite)
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement.sqlite}", dict.fromkeys(names))]
    tables = {name for table, alias in _tables(statement.sqlite) for name in (table, alias or table)}
    scans = [line for line in plan if (scan := re.match(r"SCAN (\w+)", line)) and scan[1] in tables]
    sorts = [line for line in plan if "USE TEMP B-TREE" in line and "ORDER BY" in line]
    return [line for line in scans if not _walks_live(line)] + (sorts if "LIMIT" in statement.sqlite else [])


def _tables(text: str) -> list[tuple[str, str]]:
    """Return (growing table, its alias or nothing) wherever a statement names one."""
    found = re.findall(rf"\b(?:FROM|JOIN|UPDATE) ({'|'.join(GROWING)})\b(?: AS)?(?: ([a-z]\w*))?", text)
    return [(table, alias) for table, alias in found]


def _walks_live(line: str) -> bool:
    index = re.search(r"USING (?:COVERING )?INDEX (\w+)", line)
    return index is not None and index[1] in LIVE


# -- PostgreSQL
def test_postgres_reaches_every_row_by_an_index_when_many_have_ended(full_postgres: str) -> None:
    assert _offending(full_postgres) == {}


def test_postgres_reaches_every_row_by_an_index_when_there_are_none(migrated_postgres_url: str) -> None:
    assert _offending(migrated_postgres_url) == {}


@pytest.mark.parametrize(("width", "ended"), [(500, 1), (500, 60), (500, 499), (2000, 250)])
async def test_postgres_skips_through_no_index_within_a_large_task(
    migrated_postgres_url: str, width: int, ended: int
) -> None:
    """At the beginning almost all of its steps are ready, and none at its end: one plan has to do for both."""
    async with site("one large task", migrated_postgres_url) as at_work:
        await at_work.submit(fan(width))
        await at_work.work(ended)

    with connected(migrated_postgres_url) as connection:
        connection.exec_driver_sql("ANALYZE")
        connection.commit()  # else nobody plans by what it found
    offending = _offending(migrated_postgres_url, does_scan=lambda _before, line, after: _skips(line, after))
    assert {name: lines for name, lines in offending.items() if name not in EXEMPT_WITHIN_ONE_TASK} == {}


def _offending(url: str, does_scan: Callable[[str, str, str], bool] | None = None) -> dict[str, list[str]]:
    """Return, by statement, the lines of its plan that are told with their neighbours to scan, or to sort too much."""
    with connected(url) as connection:
        raw: Any = connection.connection.dbapi_connection
        plans = {name: _plan(raw, each) for name, each in looked_at(is_sqlite=False).items()}
    found = {name: _problems(plan, does_scan or _scans) for name, plan in plans.items()}
    return {name: lines for name, lines in found.items() if lines}


def _plan(connection: psycopg.Connection[Any], statement: Statement) -> list[str]:
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement.postgres)))
    numbered = re.sub(
        r"%\((\w+)\)s", lambda match: f"${names.index(match[1]) + 1}{_cast(match[1])}", statement.postgres
    )
    # By the simple protocol: the extended one would ask for the parameters.
    result = connection.pgconn.exec_(f"EXPLAIN (GENERIC_PLAN, COSTS OFF) {numbered}".encode())
    assert result.ntuples, result.error_message
    return [(result.get_value(row, 0) or b"").decode().strip() for row in range(result.ntuples)]


def _problems(plan: Sequence[str], does_scan: Callable[[str, str, str], bool]) -> list[str]:
    around = list(zip(["", *plan], plan, [*plan[1:], ""], strict=False))
    sorts = [line for before, line, _ in around if before.endswith("Limit") and re.search("-> +.*Sort", line)]
    return [line for before, line, after in around if does_scan(before, line, after)] + sorts


def _scans(before: str, line: str, after: str) -> bool:
    """Say whether a line of a plan reads a growing table, or an index of all of it, from end to end."""
    if re.search(rf"Seq Scan on ({'|'.join(GROWING)})\b", line):
        return True
    if "Index Cond" in after:
        return _skips(line, after)
    if before.endswith("Limit") and "Filter" not in after:
        return False  # the first, or the last, of all is one row
    return _index(line) in LEADING.keys() - LIVE


def _skips(line: str, after: str) -> bool:
    """Say whether an index is read by another than its first column: PostgreSQL then skips through its values."""
    leading = LEADING.get(_index(line), "")
    return bool(leading) and "Index Cond" in after and not re.search(rf"\b{leading}\b", after)


def _index(line: str) -> str:
    found = re.search(r"Scan(?: Backward)? using (\w+)|Bitmap Index Scan on (\w+)", line)
    return (found[1] or found[2]) if found else ""


def _cast(name: str) -> str:
    """Return what the driver says of an integer and a bare EXPLAIN has to be told."""
    return "::bigint" if name.endswith("_us") else ""


# -- what the others stand on
def test_a_scan_is_seen(full_sqlite: Path, full_postgres: str) -> None:
    scanning = Statement("scanning", "SELECT s.key FROM steps AS s WHERE s.title = :title ORDER BY s.key LIMIT 1")

    with sqlite3.connect(full_sqlite) as connection:
        assert _sqlite_scans(connection, scanning)
    with connected(full_postgres) as writer:
        raw: Any = writer.connection.dbapi_connection
        assert _problems(_plan(raw, scanning), _scans)


PAST = 2_000
LARGE = 500
EFFORT = Effort(rounds=1, parts=1, part=12, fans=2)
"""So many looks in a part: planning reads pages, too, which fall on the first look of each connection."""
ROUNDING = 2.0
"""Statements or rows a unit that are no growth: what one round does once falls on fewer units in one of the two."""


@pytest.fixture(scope="module")
def quiet_postgres() -> Iterator[PostgresServer]:
    """A server that vacuums nothing by itself: the pages that it reads for that are counted with ours."""
    with postgres_server(settings=("autovacuum=off",)) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Two new databases of one kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'small.db'}", f"sqlite:///{tmp_path / 'large.db'}"
        return
    server: PostgresServer = request.getfixturevalue("quiet_postgres")
    with ExitStack() as stack:
        small, large = (stack.enter_context(server.fresh_database(f"{tmp_path.name}_{n}")) for n in ("small", "large"))
        yield small, large


@pytest.fixture
def full_url(urls: tuple[str, str]) -> str:
    fill(urls[1], PAST)
    return urls[1]


async def test_nothing_costs_more_after_thousands_of_finished_steps(urls: tuple[str, str], full_url: str) -> None:
    # Each round leaves ended tasks in the session that is looked at: they must not cost a look anything either.
    found = await against_history(urls[0], full_url, replace(EFFORT, rounds=4))

    assert {each.act.name for each in found} == {"submit", "call", "keep-up", "look", "hop", "fan"}
    assert grown(found) == []


async def test_a_hop_of_a_long_chain_costs_no_more_than_one_of_a_short_one(urls: tuple[str, str]) -> None:
    found = await against_long_chain(*urls, LARGE, EFFORT)

    assert {each.act.name for each in found} == {"look", "hop"}
    assert grown(found) == []


async def test_a_step_of_a_wide_fan_costs_no_more_than_one_of_a_narrow_one(urls: tuple[str, str]) -> None:
    found = await against_wide_fan(*urls, LARGE, EFFORT)

    assert {each.act.name for each in found} == {"submit", "unlock-and-run", "look", "run-and-join"}
    assert grown(found) == []


def grown(found: Sequence[Comparison]) -> list[str]:
    """Return what was counted more often in the large database than the limits of the benchmark allow."""
    names = ("statements", "rows", "pages", "scanned")
    return [
        f"{each.act.name}: {large:.1f} {name}, not {small:.1f}"
        for each in found
        for name, large, small in zip(names, *each.counts(), strict=True)
        if large > small * LIMITS.get(name, 1.0) + ROUNDING
    ]
