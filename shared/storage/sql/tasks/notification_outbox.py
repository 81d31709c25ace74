"""The outbox of notifications in SQL (soong.shared.engine.tasks.event_feed). Nothing is on the hot path."""

from collections.abc import Sequence
from typing import Final

from soong.shared.engine.tasks.event_feed import MessageOutcome, Notice, NoticeState, Totals
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.row_mapper import RowMapper
from soong.shared.storage.sql.engine.statements import Insert, Statement
from soong.shared.storage.sql.engine.tables.service import notices as notices_table
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.tasks.event_feed import add_totals

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
