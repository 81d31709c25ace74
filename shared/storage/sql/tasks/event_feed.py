"""Following the logs of all runs, and the outbox of notifications (soong.shared.engine.tasks.event_feed)."""

from collections.abc import Sequence
from typing import Any, Final

from soong.shared.engine.runs.events import Event
from soong.shared.engine.tasks.event_feed import (
    FeedCursor,
    FeedPart,
    FeedRun,
    MessageOutcome,
    Notice,
    NoticeState,
    Totals,
)
from soong.shared.engine.tasks.spec import TaskKind
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.log_rows import events_of, sized_before
from soong.shared.storage.sql.engine.row_mapper import RowMapper, encode_ascii, pack, unpack
from soong.shared.storage.sql.engine.rows import IDENTITIES, RUN_COLUMNS
from soong.shared.storage.sql.engine.statements import PAGE_SIZE, Insert, Statement
from soong.shared.storage.sql.engine.tables.service import event_cursors, metric_totals
from soong.shared.storage.sql.engine.tables.service import notices as notices_table
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


_NOTICES: Final = RowMapper(Notice, notices_table)
_COLUMNS: Final = ", ".join(_NOTICES.written)

ADD: Final = Insert(notices_table, _NOTICES.written, then="ON CONFLICT (id) DO NOTHING")
IS_ACTING: Final = Statement(
    "is acting: whether an owner acts for a consumer",
    "SELECT name FROM event_consumers WHERE name = :name AND owner_id = :owner_id",
)
ACTS: Final = Statement(
    "acts: whether an owner acts for a consumer; held, so that no other takes over meanwhile",
    "SELECT name FROM event_consumers WHERE name = :name AND owner_id = :owner_id /*pg FOR UPDATE */",
)
WAITING: Final = Statement(
    "waiting: notices of these kinds for a channel, the earliest due first",
    f"""
    SELECT {_COLUMNS} FROM notices WHERE state = 'waiting' AND channel = :channel AND event IN @events
    ORDER BY due_us, id LIMIT :limit
    """,  # noqa: S608
)
UNGROUPED: Final = Statement(
    "ungrouped: how many of these wait and are in no message",
    "SELECT count(*) FROM notices WHERE id IN @ids AND state || '' = 'waiting' AND message_id = ''",
)
GROUP: Final = Statement(
    "group: put notices into a message", "UPDATE notices SET message_id = :message_id WHERE id IN @ids"
)
SETTLE: Final = Statement(
    "settle: the outcome of an attempt",
    """
    UPDATE notices SET state = :state, attempts = :attempts, due_us = :due_us, error = :error, ended_us = :ended_us
    WHERE id IN @ids AND state || '' = 'waiting'
    """,
)
HASTEN: Final = Statement(
    "hasten: other messages to a receiver that is back are due at once",
    """
    UPDATE notices SET due_us = :now_us WHERE state = 'waiting' AND due_us > :now_us AND attempts > 0
      AND channel = (SELECT sent.channel FROM notices AS sent WHERE sent.id = :id)
    """,
)
SENT_SINCE: Final = Statement(
    "sent since: messages that a channel got",
    """
    SELECT count(DISTINCT message_id) FROM notices
    WHERE channel = :channel AND ended_us >= :since_us AND state = 'sent'
    """,
)
GONE: Final = Statement(
    "gone: channels whose receivers take no more",
    "SELECT DISTINCT channel FROM notices WHERE state IN ('waiting', 'dead', 'gone') AND state = 'gone'",
)
WAITING_CHANNELS: Final = Statement(
    "waiting channels: those that something waits for", "SELECT DISTINCT channel FROM notices WHERE state = 'waiting'"
)
NEWEST: Final = Statement(
    "newest notices: with those that ended well",
    f"SELECT {_COLUMNS} FROM notices ORDER BY ordinal DESC LIMIT :limit",  # noqa: S608
)
NEWEST_UNSENT: Final = Statement(
    "newest unsent: that wait, or were given up",
    f"""
    SELECT {_COLUMNS} FROM notices WHERE state IN ('waiting', 'dead', 'gone') ORDER BY ordinal DESC LIMIT :limit
    """,  # noqa: S608
)
RETRY: Final = Statement(
    "retry: let what was given up wait again",
    """
    UPDATE notices SET state = 'waiting', attempts = 0, due_us = :now_us, ended_us = 0
    WHERE state IN ('waiting', 'dead', 'gone') AND state <> 'waiting' AND (:message_id = '' OR message_id = :message_id)
      AND (:channel = '' OR channel = :channel)
    """,
)
PRUNE: Final = Statement(
    "prune: remove what ended long ago; what says that a receiver is gone stays",
    "DELETE FROM notices WHERE state IN ('sent', 'dropped', 'dead') AND ended_us < :before_us",
)


class SqlOutbox(StorePart):
    """Implements :class:`soong.shared.engine.tasks.event_feed.NotificationOutbox`."""

    async def add(self, notices: Sequence[Notice]) -> None:
        rows = [ADD.row(_NOTICES.values(notice)) for notice in notices]
        await self._database.write(lambda tx: tx.insert(ADD, rows))

    async def waiting(self, channel: str, *, events: Sequence[str], limit: int) -> Sequence[Notice]:
        return await self._database.read(
            lambda tx: [
                _NOTICES.read(row) for row in tx.rows(WAITING, channel=channel, events=sorted(events), limit=limit)
            ]
        )

    async def is_acting(self, consumer: str, owner_id: str) -> bool:
        return await self._database.read(lambda tx: bool(tx.rows(IS_ACTING, name=consumer, owner_id=owner_id)))

    async def group(self, consumer: str, owner_id: str, message_id: str, ids: Sequence[str]) -> bool:
        wanted = sorted(set(ids))

        def write(tx: Transaction) -> bool:
            if not _acts(tx, consumer, owner_id) or tx.value(UNGROUPED, ids=wanted) != len(wanted):
                return False
            tx.count(GROUP, ids=wanted, message_id=message_id)
            return True

        return await self._database.write(write)

    async def record_outcome(
        self, consumer: str, owner_id: str, ids: Sequence[str], outcome: MessageOutcome, *, now_us: int, totals: Totals
    ) -> bool:
        wanted = sorted(set(ids))
        is_waiting = outcome.state is NoticeState.WAITING

        def write(tx: Transaction) -> bool:
            if not _acts(tx, consumer, owner_id):
                return False
            tx.count(
                SETTLE,
                ids=wanted,
                state=outcome.state.value,
                attempts=outcome.attempts,
                due_us=outcome.due_us,
                error=outcome.error,
                ended_us=0 if is_waiting else now_us,
            )
            if outcome.state is NoticeState.SENT:
                tx.count(HASTEN, id=wanted[0], now_us=now_us)
            add_totals(tx, totals)
            return True

        return await self._database.write(write)

    async def sent_since(self, channel: str, since_us: int) -> int:
        count = await self._database.read(lambda tx: tx.value(SENT_SINCE, channel=channel, since_us=since_us))
        return int(count or 0)

    async def gone_channels(self) -> Sequence[str]:
        return sorted(await self._database.read(lambda tx: tx.column(GONE)))

    async def waiting_channels(self) -> Sequence[str]:
        return sorted(await self._database.read(lambda tx: tx.column(WAITING_CHANNELS)))

    async def notices(self, *, include_ended: bool, limit: int) -> Sequence[Notice]:
        read = NEWEST if include_ended else NEWEST_UNSENT
        return await self._database.read(lambda tx: [_NOTICES.read(row) for row in tx.rows(read, limit=limit)][::-1])

    async def retry(self, *, message_id: str = "", channel: str = "", now_us: int) -> int:
        return await self._database.write(
            lambda tx: tx.count(RETRY, message_id=message_id, channel=channel, now_us=now_us)
        )

    async def prune(self, before_us: int) -> int:
        return await self._database.write(lambda tx: tx.count(PRUNE, before_us=before_us))


def _acts(tx: Transaction, consumer: str, owner_id: str) -> bool:
    return bool(tx.rows(ACTS, name=consumer, owner_id=owner_id))
