"""Following the logs of all runs, in SQL (soong.shared.engine.tasks.event_feed). Nothing of it is on the hot path."""

from collections.abc import Sequence
from typing import Any, Final

from soong.shared.engine.runs.events import Event
from soong.shared.engine.tasks.event_feed import FeedCursor, FeedPart, FeedRun, Totals
from soong.shared.engine.tasks.spec import TaskKind
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.log_rows import events_of, sized_before
from soong.shared.storage.sql.engine.row_mapper import encode_ascii, pack, unpack
from soong.shared.storage.sql.engine.rows import IDENTITIES, RUN_COLUMNS
from soong.shared.storage.sql.engine.statements import PAGE_SIZE, Insert, Statement
from soong.shared.storage.sql.engine.tables.service import event_cursors, metric_totals
from soong.shared.storage.sql.engine.transaction import Transaction

TAKE_OVER: Final = Statement(
    "take over: act for a consumer for which no living owner acts",
    """
    INSERT INTO event_consumers (name, owner_id, since_us) VALUES (:name, :owner_id, :now_us)
    ON CONFLICT (name) DO UPDATE SET owner_id = excluded.owner_id
    WHERE event_consumers.owner_id = excluded.owner_id
       OR NOT EXISTS (SELECT 1 FROM owners WHERE owners.id = event_consumers.owner_id AND owners.state <> 'gone')
    RETURNING since_us
    """,
)
STILL_OURS: Final = Statement(
    "still ours: an owner that acts for a consumer says how far it is; no row means that another does",
    "UPDATE event_consumers SET since_us = :since_us WHERE name = :name AND owner_id = :owner_id RETURNING name",
)
FOLLOWED: Final = Statement(
    "followed: tasks that are open, and that have ended since",
    """
    SELECT id FROM tasks WHERE status IN ('running', 'paused')
    UNION ALL
    SELECT id FROM tasks WHERE is_recorded = 0 AND status IN ('completed', 'failed', 'cancelled')
    UNION ALL
    SELECT id FROM tasks
    WHERE is_recorded = 1 AND status IN ('completed', 'failed', 'cancelled') AND ended_us >= :since_us
    """,
)
GROWN: Final = Statement(
    "grown: runs of these tasks whose logs continue beyond a consumer's place in them; sorted by no index, whose order "
    "would lead through all runs that there have been",
    f"""
    SELECT {", ".join(f"r.{name}" for name in RUN_COLUMNS)}, r.attempt, r.retry_of, r.created_us,
           t.title, t.kind, t.root_run_id, t.trace_parent,
           coalesce(root.parent_run_id, '') AS planner_run_id, coalesce(c.seq, 0) AS seq, coalesce(c.state, '') AS state
    FROM runs AS r
    JOIN tasks AS t ON t.id = r.task_id
    LEFT JOIN runs AS root ON root.id = t.root_run_id
    LEFT JOIN event_cursors AS c ON c.consumer = :consumer AND c.run_id = r.id
    WHERE r.task_id IN @tasks AND t.id IN @tasks AND r.last_seq > coalesce(c.seq, 0) ORDER BY +r.ordinal LIMIT :limit
    """,  # noqa: S608  # our own words
)
_EVENT_ROW: Final = "run_id, seq, type, time_us, data, preceding, step_key"
NEXT_EVENTS: Final = Statement(
    "next events: of these runs, each after its place, run by run",
    f"""
    SELECT {_EVENT_ROW} FROM (
        SELECT {_EVENT_ROW}, ordinal, {sized_before("data", "ordinal, seq")} AS size FROM (
            SELECT e.run_id, e.seq, e.type, e.time_us, e.data, e.preceding, r.step_key, r.ordinal
            FROM @places p(run_id text, seq bigint) JOIN runs AS r ON r.id = p.run_id
            JOIN events AS e ON e.run_id = r.id AND e.seq > p.seq AND e.seq <= r.last_seq
            WHERE r.last_seq > p.seq ORDER BY r.ordinal, e.seq LIMIT :limit
        ) AS next
    ) AS sized WHERE size < {PAGE_SIZE} ORDER BY ordinal, seq
    """,  # noqa: S608  # our own words
)
PUT_CURSORS: Final = Insert(
    event_cursors,
    ("consumer", "run_id", "seq", "state"),
    then="ON CONFLICT (consumer, run_id) DO UPDATE SET seq = excluded.seq, state = excluded.state",
)
ADD_TOTALS: Final = Insert(
    metric_totals,
    ("name", "labels", "total"),
    then="ON CONFLICT (name, labels) DO UPDATE SET total = metric_totals.total + excluded.total",
)
TOTALS: Final = Statement("totals", "SELECT name, labels, total FROM metric_totals ORDER BY name, labels")


class SqlFeed(StorePart):
    """Implements :class:`soong.shared.engine.tasks.event_feed.EventFeed`."""

    async def take_over(self, consumer: str, owner_id: str, *, now_us: int) -> int | None:
        since: int | None = await self._database.write(
            lambda tx: tx.value(TAKE_OVER, name=consumer, owner_id=owner_id, now_us=now_us)
        )
        return since

    async def read(self, consumer: str, *, since_us: int, limit: int) -> Sequence[FeedPart]:
        return await self._database.read(lambda tx: _read(tx, consumer, since_us, limit))

    async def advance(
        self,
        consumer: str,
        owner_id: str,
        cursors: Sequence[FeedCursor],
        *,
        since_us: int,
        totals: Totals | None = None,
    ) -> bool:
        places = [(consumer, cursor.run_id, cursor.seq, pack(cursor.state)) for cursor in cursors]

        def write(tx: Transaction) -> bool:
            if not tx.rows(STILL_OURS, name=consumer, owner_id=owner_id, since_us=since_us):
                return False
            tx.insert(PUT_CURSORS, places)
            add_totals(tx, totals or {})
            return True

        return await self._database.write(write)

    async def totals(self) -> Totals:
        return await self._database.read(read_totals)


def add_totals(tx: Transaction, totals: Totals) -> None:
    """Add to the running totals."""
    tx.insert(ADD_TOTALS, [(name, encode_ascii(labels), total) for (name, labels), total in sorted(totals.items())])


def read_totals(tx: Transaction) -> Totals:
    """Return the running totals."""
    return {(name, tuple(unpack(labels))): total for name, labels, total in tx.rows(TOTALS)}


def _read(tx: Transaction, consumer: str, since_us: int, limit: int) -> list[FeedPart]:
    followed = tx.column(FOLLOWED, since_us=since_us)
    rows = tx.rows(GROWN, tasks=followed, consumer=consumer, limit=limit) if followed else ()
    if not rows:
        return []
    places = [(row.id, row.seq) for row in rows]
    logs: dict[str, list[Event]] = {row.id: [] for row in rows}
    for event in events_of(tx.rows(NEXT_EVENTS, places=places, limit=limit)):
        logs[event.run_id].append(event)
    # A row of events may begin before the place that its consumer had reached.
    return [
        FeedPart(run, events)
        for run in map(_run_of, rows)
        if (events := [event for event in logs[run.identity.run_id] if event.seq > run.seq])
    ]


def _run_of(row: Any) -> FeedRun:
    return FeedRun(
        identity=IDENTITIES.read(row),
        attempt=row.attempt,
        retry_of=row.retry_of,
        created_us=row.created_us,
        task_title=row.title,
        task_kind=TaskKind(row.kind),
        is_root=row.id == row.root_run_id,
        planner_run_id=row.planner_run_id,
        trace_parent=row.trace_parent,
        seq=row.seq,
        state=unpack(row.state) if row.state else {},
    )
