"""Removing what has ended, in SQL (OPS-10). Cold statements; each transaction is bounded by a number of rows.

The audit table is read by nothing here: its chain stays complete.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import psycopg
from sqlalchemy.exc import DBAPIError

from soong.shared.core.errors import InvalidConfigError
from soong.shared.engine.runs.budgets import task_scope
from soong.shared.engine.tasks.retention import EndedTask, Footprint, NamedArtifact, RemovedRows
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.engine import driver_error
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.tables.work import UNSETTLED
from soong.shared.storage.sql.engine.transaction import Transaction, footprint, used_bytes

T = TypeVar("T")

OPEN_COMMAND: Final = """
    c.is_ended = 0 AND EXISTS (
        SELECT 1 FROM sessions AS its WHERE its.id = c.session_id AND (its.is_closed = 0 OR its.owner_id <> ''))
"""
"""A command that an owner carries out. A closed session without an owner has none (earlier versions put commands
there)."""
REMOVABLE: Final = f"""
    t.status IN ('completed', 'failed', 'cancelled') AND t.ended_us < :before_us AND t.is_recorded = 1
    AND NOT EXISTS (SELECT 1 FROM steps AS s WHERE s.task_id = t.id AND (
        s.status NOT IN ('completed', 'failed', 'cancelled', 'skipped') OR {UNSETTLED}))
    AND NOT EXISTS (SELECT 1 FROM runs AS r JOIN permission_requests AS q ON q.run_id = r.id
        WHERE r.task_id = t.id AND q.state = 'pending')
    AND NOT EXISTS (SELECT 1 FROM runs AS r JOIN reports AS p ON p.run_id = r.id
        WHERE r.task_id = t.id AND p.is_taken = 0)
    AND NOT EXISTS (SELECT 1 FROM commands AS c WHERE c.session_id = t.session_id AND c.subject = t.id
        AND {OPEN_COMMAND})
    AND NOT EXISTS (
        WITH RECURSIVE planners(run_id) AS (
            SELECT root.parent_run_id FROM runs AS root WHERE root.id = t.root_run_id
            UNION SELECT root.parent_run_id FROM planners JOIN runs AS agent ON agent.id = planners.run_id
                JOIN tasks AS outer_task ON outer_task.id = agent.task_id
                JOIN runs AS root ON root.id = outer_task.root_run_id)
        SELECT 1 FROM planners JOIN runs AS agent ON agent.id = planners.run_id
            LEFT JOIN tasks AS outer_task ON outer_task.id = agent.task_id
        WHERE agent.end_reason IS NULL OR outer_task.status NOT IN ('completed', 'failed', 'cancelled'))
"""
ENDED_TASKS: Final = Statement(
    "ended tasks: a page of those that may be removed, oldest end first",
    f"""
    SELECT t.id, t.title, t.ended_us, (SELECT count(*) FROM steps AS n WHERE n.task_id = t.id) FROM tasks AS t
    WHERE {REMOVABLE} AND t.ended_us >= :after_us AND (t.ended_us > :after_us OR t.id > :after_id)
    ORDER BY t.ended_us, t.id LIMIT :limit
    """,
)
TASK_ROW: Final = Statement(
    "task row: held, so that nobody tries it again while it is judged",
    "SELECT id FROM tasks WHERE id = :task_id /*pg FOR UPDATE */",
)
REMOVE_TASK: Final = Statement(
    "remove task: what is left of it has no task and goes next",
    f"DELETE FROM tasks WHERE id IN (SELECT t.id FROM tasks AS t WHERE t.id = :task_id AND {REMOVABLE})",
)
ORPHANS: Final = Statement(
    "orphans: tasks that are gone and have runs; the runs go last",
    """
    SELECT DISTINCT r.task_id FROM runs AS r
    WHERE r.task_id <> '' AND NOT EXISTS (SELECT 1 FROM tasks AS t WHERE t.id = r.task_id)
    """,
)
REMOVE_STEPS: Final = Statement(
    "remove steps: a bounded number of one task's; not of one that was submitted again under its id",
    """
    DELETE FROM steps WHERE key IN (SELECT s.key FROM steps AS s WHERE s.task_id = :task_id
        AND NOT EXISTS (SELECT 1 FROM tasks AS t WHERE t.id = s.task_id) LIMIT :limit)
    RETURNING key
    """,
)
RUNS_OF: Final = Statement(
    "runs of: a bounded number of one task's; not of one that was submitted again under its id",
    """
    SELECT r.id FROM runs AS r WHERE r.task_id = :task_id
        AND NOT EXISTS (SELECT 1 FROM tasks AS t WHERE t.id = r.task_id) ORDER BY r.id LIMIT :limit
    """,
)
REMOVE_TASK_LIMITS: Final = Statement("remove task limits: with the task", "DELETE FROM budgets WHERE scope = :scope")
OF_REQUESTS: Final = "(SELECT q.id FROM permission_requests AS q WHERE q.run_id IN @run_ids)"
RUN_ROWS: Final = tuple(
    Statement(f"remove {name}: of runs whose task is gone", f"DELETE FROM {where}")
    for name, where in (
        ("consumptions", "consumptions WHERE run_id IN @run_ids"),
        ("answers", f"answers WHERE request_id IN {OF_REQUESTS}"),
        ("decisions", f"decisions WHERE request_id IN {OF_REQUESTS}"),
        ("questions", "permission_requests WHERE run_id IN @run_ids"),
        ("cursors", "event_cursors WHERE run_id IN @run_ids"),
        ("reports", "reports WHERE run_id IN @run_ids"),
        ("calls", "calls WHERE run_id IN @run_ids"),
        ("aborts", "call_aborts WHERE run_id IN @run_ids"),
        ("waits", "waits WHERE parent_run IN @run_ids OR child_run IN @run_ids"),
        ("charges", "charges WHERE run_id IN @run_ids"),
        ("lines", "log_lines WHERE run_id IN @run_ids"),
        ("nodes", "nodes WHERE run_id IN @run_ids"),
        ("events", "events WHERE run_id IN @run_ids"),
        ("runs", "runs WHERE id IN @run_ids"),
    )
)
EMPTY: Final = f"""
    s.created_us < :before_us AND NOT EXISTS (SELECT 1 FROM tasks AS t WHERE t.session_id = s.id)
    AND NOT EXISTS (SELECT 1 FROM runs AS r WHERE r.session_id = s.id)
    AND NOT EXISTS (SELECT 1 FROM permission_requests AS q WHERE q.session_id = s.id AND q.state = 'pending')
    AND NOT EXISTS (SELECT 1 FROM commands AS c WHERE c.session_id = s.id AND {OPEN_COMMAND})
    AND NOT EXISTS (SELECT 1 FROM responders AS a WHERE a.session_id = s.id)
"""
EMPTY_SESSIONS: Final = Statement(
    "empty sessions: a bounded number of those without anything, held against a writer of a task into one",
    f"""
    SELECT s.id FROM sessions AS s WHERE s.is_closed = :is_closed AND {EMPTY} ORDER BY s.id LIMIT :limit
    /*pg FOR UPDATE SKIP LOCKED */
    """,
)
STILL_EMPTY: Final = Statement(
    "still empty: looked at again once they are held",
    f"SELECT s.id FROM sessions AS s WHERE s.id IN @session_ids AND {EMPTY}",
)
CLOSE_SESSIONS: Final = Statement(
    "close sessions: whose tasks are gone; their owners let go of them",
    "UPDATE sessions SET is_closed = 1 WHERE id IN @session_ids",
)
SESSION_ROWS: Final = (
    Statement("remove limits: of sessions that go", "DELETE FROM concurrency_limits WHERE scope IN @scopes"),
    Statement("remove budgets: of sessions that go", "DELETE FROM budgets WHERE scope IN @scopes"),
    Statement("remove commands: of sessions that go", "DELETE FROM commands WHERE session_id IN @session_ids"),
    Statement("remove sessions", "DELETE FROM sessions WHERE id IN @session_ids"),
)
PROCESS_ROWS: Final = (
    Statement(
        "remove workers: that are gone and hold nothing",
        """
        DELETE FROM workers WHERE state = 'gone' AND started_us < :before_us
        AND NOT EXISTS (
            SELECT 1 FROM steps WHERE steps.worker_id = workers.id AND steps.status = 'running')
        """,
    ),
    Statement(
        "remove owners: that are gone and own nothing",
        """
        DELETE FROM owners WHERE state = 'gone' AND started_us < :before_us
        AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.owner_id = owners.id AND sessions.is_closed = 0)
        """,
    ),
    Statement(
        "remove commands: that were carried out", "DELETE FROM commands WHERE is_ended = 1 AND created_us < :before_us"
    ),
)
RUN_IDS: Final = Statement("run ids: of all runs", "SELECT id FROM runs")
SESSIONS_AT_ONCE: Final = 500
_NOT_ALLOWED: Final = "42501"

NAMING: Final = (
    ("events", "data", ("run_id", "seq")),
    ("events", "preceding", ("run_id", "seq")),
    ("nodes", "payload", ("run_id", "number")),
    ("nodes", "preceding", ("run_id", "number")),
    ("calls", "result", ("run_id", "tool_call_id")),
    ("log_lines", "lines", ("run_id", "place")),
    ("steps", "output", ("key",)),
    ("steps", "spec", ("key",)),
    ("tasks", "inputs", ("id",)),
    ("tasks", "plan", ("id",)),
    ("permission_requests", "body", ("id",)),
)
"""Columns in which digests of artifacts are, and what orders their rows."""
PAGE: Final = 2000
DELIVERABLE: Final = "deliverable"
_TASK_COLUMNS: Final = {"steps": "task_id", "tasks": "id"}
_DIGEST: Final = re.compile(r"\b[0-9a-f]{64}\b")


class SqlRetention:
    """Implements :class:`soong.shared.engine.tasks.retention.Retention` on both databases. Close it once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def close(self) -> None:
        await asyncio.to_thread(self._database.close)

    async def ended_tasks(self, *, before_us: int, after: tuple[int, str] = (0, ""), limit: int) -> Sequence[EndedTask]:
        def read(tx: Transaction) -> list[EndedTask]:
            rows = tx.rows(ENDED_TASKS, before_us=before_us, after_us=after[0], after_id=after[1], limit=limit)
            return [EndedTask(*row) for row in rows]

        return await self._database.read(read)

    async def remove_task(self, task_id: str, *, before_us: int) -> bool:
        def write(tx: Transaction) -> bool:
            is_removed = bool(tx.rows(TASK_ROW, task_id=task_id)) and bool(
                tx.count(REMOVE_TASK, task_id=task_id, before_us=before_us)
            )
            if is_removed:
                tx.count(REMOVE_TASK_LIMITS, scope=task_scope(task_id))
            return is_removed

        return await self._write(write)

    async def footprint(self, task_id: str) -> Footprint:
        return await self._database.read(lambda tx: footprint(tx, task_id))

    async def gone_tasks(self) -> Sequence[str]:
        return await self._database.read(lambda tx: tx.column(ORPHANS))

    async def remove_rest(self, task_id: str, *, limit: int) -> RemovedRows:
        def write(tx: Transaction) -> RemovedRows:
            removed = len(tx.rows(REMOVE_STEPS, task_id=task_id, limit=limit))
            if removed:
                return RemovedRows(steps=removed)
            run_ids = [run_id for (run_id,) in tx.rows(RUNS_OF, task_id=task_id, limit=max(1, limit // 20))]
            for statement in RUN_ROWS if run_ids else ():
                tx.count(statement, run_ids=run_ids)
            return RemovedRows(run_ids=run_ids)

        return await self._write(write)

    async def remove_sessions(self, *, before_us: int) -> int:
        def of_closed(tx: Transaction) -> int:
            session_ids = _empty_sessions(tx, before_us, is_closed=1)
            if session_ids:
                scopes = [f"session:{session_id}" for session_id in session_ids]
                for statement in SESSION_ROWS:
                    named = {"scopes": scopes} if "scopes" in statement.packed else {"session_ids": session_ids}
                    tx.count(statement, **named)
            return len(session_ids)

        def of_open(tx: Transaction) -> int:
            session_ids = _empty_sessions(tx, before_us, is_closed=0)
            return tx.count(CLOSE_SESSIONS, session_ids=session_ids) if session_ids else 0

        removed = 0
        while count := await self._write(of_closed):
            removed += count
        while await self._write(of_open):
            pass
        return removed

    async def remove_processes(self, *, before_us: int) -> int:
        return await self._write(lambda tx: sum(tx.count(statement, before_us=before_us) for statement in PROCESS_ROWS))

    async def run_ids(self) -> frozenset[str]:
        return await self._database.read(lambda tx: frozenset(tx.column(RUN_IDS)))

    async def named_artifacts(self) -> AsyncIterator[NamedArtifact]:
        for table, column, order in NAMING:
            place: Sequence[Any] | None = ()
            while place is not None:
                named, place = await self._database.read(page_of(table, column, order, place))
                for one in named:
                    yield one

    async def _write(self, function: Callable[[Transaction], T]) -> T:
        try:
            return await self._database.write(function)
        except (DBAPIError, psycopg.Error) as error:
            if getattr(driver_error(error), "sqlstate", None) == _NOT_ALLOWED:
                raise InvalidConfigError(
                    "this database role may not remove rows; run `soong gc` with the SOONG_DATABASE_URL of their owner"
                ) from error
            raise

    async def used_bytes(self) -> int:
        return await self._database.read(used_bytes)


def _empty_sessions(tx: Transaction, before_us: int, *, is_closed: int) -> Sequence[str]:
    """Return a bounded number of sessions without anything, held until commit.

    A writer of a task holds its session first. So a writer before us has committed when we hold it, which the
    second look sees, and a writer after us sees what we did.
    """
    held = tx.column(EMPTY_SESSIONS, before_us=before_us, is_closed=is_closed, limit=SESSIONS_AT_ONCE)
    return tx.column(STILL_EMPTY, session_ids=held, before_us=before_us) if held else ()


def page_of(
    table: str, column: str, order: Sequence[str], after: Sequence[Any]
) -> Callable[[Transaction], tuple[list[NamedArtifact], Sequence[Any] | None]]:
    """Return what reads the next rows of a column: the artifacts that they name, and the place of the last row.

    The place is None when no row follows.
    """
    task = _TASK_COLUMNS.get(table) or f"(SELECT task_id FROM runs WHERE runs.id = {table}.run_id)"
    keys, values = ", ".join(order), ", ".join(f":{name}" for name in order)
    beyond = f"AND ({keys}) > ({values})" if after else ""
    wanted = Statement(
        f"page of {table}.{column}: what may name an artifact, in the order of its rows",
        f"""
        SELECT {column}, {task}, {keys} FROM {table}
        WHERE ({column} LIKE '%digest%' OR {column} LIKE '%artifact%') {beyond} ORDER BY {keys} LIMIT {PAGE}
        """,
    )

    def read(tx: Transaction) -> tuple[list[NamedArtifact], Sequence[Any] | None]:
        rows = tx.rows(wanted, **dict(zip(order, after, strict=bool(after))))
        named = [
            NamedArtifact(digest, task_id or "", kind)
            for text, task_id, *_ in rows
            for digest, kind in named_in(text or "").items()
        ]
        return named, rows[-1][2:] if len(rows) == PAGE else None

    return read


def named_in(text: str) -> dict[str, str]:
    """Return each digest in a text with its kind: a media type, ``deliverable``, or "" when the text does not say."""
    found = dict.fromkeys(_DIGEST.findall(text), "")
    if not found:
        return found
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return found  # not written by this program: artifacts that it names stay all the same
    for item in _objects(value):
        digest, media_type = item.get("digest"), item.get("media_type")
        if not isinstance(digest, str) or digest not in found:
            continue
        if isinstance(media_type, str):
            found[digest] = media_type
        elif "path" in item and "size_bytes" in item:
            found[digest] = DELIVERABLE
    return found


def _objects(value: object) -> Iterator[dict[str, Any]]:
    """Yield every JSON object within a value."""
    open_values = [value]
    while open_values:
        match open_values.pop():
            case dict() as item:
                yield item
                open_values += item.values()
            case list() as items:
                open_values += items
