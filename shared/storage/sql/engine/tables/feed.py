"""Who follows the logs of runs, how far each has come, the totals that are counted on the way, and what is sent."""

from sqlalchemy import CheckConstraint, Column, Index, PrimaryKeyConstraint, Table, Text

from soong.shared.engine.tasks.event_feed import NoticeState
from soong.shared.storage.sql.engine.columns import by_dialect as _by_dialect
from soong.shared.storage.sql.engine.columns import id_column as _id
from soong.shared.storage.sql.engine.columns import number_column as _number
from soong.shared.storage.sql.engine.columns import one_of as _one_of
from soong.shared.storage.sql.engine.columns import ordinal_column as _ordinal
from soong.shared.storage.sql.engine.columns import text_column as _text
from soong.shared.storage.sql.engine.columns import where as _where
from soong.shared.storage.sql.engine.tables.base import metadata

event_consumers = Table(
    "event_consumers",
    metadata,
    Column("name", Text, primary_key=True),
    _text("owner_id", None),
    # Tasks that ended before have been followed to their ends.
    _number("since_us", None),
)

event_cursors = Table(
    "event_cursors",
    metadata,
    Column("consumer", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    _number("seq", None),
    _text("state", None),
    PrimaryKeyConstraint("consumer", "run_id"),
    CheckConstraint("seq >= 1", name="seq"),
    **_by_dialect(sqlite_with_rowid=False),
)

metric_totals = Table(
    "metric_totals",
    metadata,
    Column("name", Text, nullable=False),
    Column("labels", Text, nullable=False),
    _number("total", None),
    PrimaryKeyConstraint("name", "labels"),
)

notices = Table(
    "notices",
    metadata,
    _ordinal(),
    _id(),
    _text("channel", None),
    _text("event", None),
    _text("session_id"),
    _text("request_id"),
    _number("created_us", None),
    _number("due_us", None),
    _text("facts", None),
    # Empty until the first attempt to send it.
    _text("message_id"),
    _text("state", "waiting"),
    _number("attempts"),
    _text("error"),
    _number("ended_us"),
    _one_of("state", NoticeState),
    Index("ix_notices_waiting", "channel", "due_us", "id", **_where("state = 'waiting'")),
    Index("ix_notices_unsent", "ordinal", **_where("state IN ('waiting', 'dead', 'gone')")),
    Index("ix_notices_ended", "ended_us"),
)
