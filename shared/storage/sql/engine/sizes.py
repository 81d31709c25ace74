"""What rows take, in bytes: of the entire database, and of one task (OPS-10). Cold statements.

PostgreSQL keeps the pages of removed rows for new ones, so the size of its files does not show what is stored:
rows are weighed in a sample of the pages. SQLite counts its free pages.
"""

from typing import Final

from sqlalchemy import Table, Text

from soong.shared.engine.tasks.retention import Footprint
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.tables import metadata
from soong.shared.storage.sql.engine.transaction import Transaction

SAMPLE_PAGES: Final = 2000
"""Pages of each table that PostgreSQL reads to weigh its rows; of a table that has fewer, all."""
PAGE_BYTES: Final = 8192
ROW_BYTES: Final = 28
"""Header and pointer of a row on PostgreSQL."""
ENTRY_BYTES: Final = 120
"""Roughly what a row and its index entries take in addition to its texts."""

OF_FILES: Final = {
    "sqlite": Statement(
        "used bytes: pages of the file that hold something",
        """
        SELECT (c.page_count - f.freelist_count) * s.page_size
        FROM pragma_page_count AS c, pragma_freelist_count AS f, pragma_page_size AS s
        """,
    ),
    "postgresql": Statement(
        "table sizes: bytes of a table's pages and of those with what belongs to it, pages of its rows alone",
        """
        SELECT pg_table_size(c.oid), pg_total_relation_size(c.oid), pg_relation_size(c.oid)
        FROM pg_class AS c WHERE c.oid = to_regclass(:name)
        """,
    ),
}


def _sampled(table: Table) -> Statement:
    size = " + ".join(f"coalesce(pg_column_size({column.name}), 0)" for column in table.columns)
    return Statement(
        f"sampled {table.name}: bytes of the live rows in a share of the pages",
        f"SELECT coalesce(sum({ROW_BYTES} + {size}), 0) FROM {table.name} TABLESAMPLE SYSTEM (:percent)",  # noqa: S608  # our own names
    )


SAMPLED: Final = {name: _sampled(table) for name, table in metadata.tables.items()}


def used_bytes(tx: Transaction) -> int:
    """Return what the rows take with their indexes, without space that removed rows left free.

    On PostgreSQL an estimate: the share of live rows in sampled pages, times the size of table and indexes.
    """
    if not tx.is_postgres:
        return int(tx.rows(OF_FILES["sqlite"])[0][0])
    total = 0
    for name in SAMPLED:
        total += _table_bytes(tx, name)
    return total


def _table_bytes(tx: Transaction, name: str) -> int:
    pages_bytes, total_bytes, heap_bytes = (int(size) for size in tx.rows(OF_FILES["postgresql"], name=name)[0])
    if not heap_bytes:
        return 0
    percent = min(100.0, 100.0 * SAMPLE_PAGES * PAGE_BYTES / heap_bytes)
    sampled_bytes = int(tx.rows(SAMPLED[name], percent=percent)[0][0])
    return round(total_bytes * min(1.0, sampled_bytes * 100.0 / percent / pages_bytes))


def _weighed(name: str, where: str) -> str:
    size = " + ".join(
        f"coalesce(length({column.name}), 0)"
        for column in metadata.tables[name].columns
        if isinstance(column.type, Text)
    )
    return f"SELECT sum({ENTRY_BYTES} + {size}) AS size FROM {name} WHERE {where}"  # noqa: S608  # our own names


_OF_A_TASK: Final = (
    _weighed("tasks", "id = :task_id"),
    _weighed("steps", "task_id = :task_id"),
    _weighed("runs", "task_id = :task_id"),
    *(
        _weighed(name, "run_id IN (SELECT r.id FROM runs AS r WHERE r.task_id = :task_id)")
        for name in ("events", "nodes", "calls", "permission_requests")
    ),
)
WEIGHT: Final = Statement(
    "weight: roughly what the rows of one task take",
    f"SELECT sum(part.size) FROM ({' UNION ALL '.join(_OF_A_TASK)}) AS part",  # noqa: S608  # our own names
)
RUNS_OF_TASK: Final = Statement("runs of task: all of them", "SELECT id FROM runs WHERE task_id = :task_id")


def footprint(tx: Transaction, task_id: str) -> Footprint:
    """Return what a task consists of; its size is a rough one."""
    run_ids = tuple(tx.column(RUNS_OF_TASK, task_id=task_id))
    return Footprint(run_ids, int(tx.rows(WEIGHT, task_id=task_id)[0][0] or 0))
