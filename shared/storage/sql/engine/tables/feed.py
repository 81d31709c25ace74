"""Who follows the logs of runs, how far each has come, and the totals that are counted on the way."""

from sqlalchemy import CheckConstraint, Column, PrimaryKeyConstraint, Table, Text

from soong.shared.storage.sql.engine.columns import number_column as _number
from soong.shared.storage.sql.engine.columns import text_column as _text
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
    sqlite_with_rowid=False,
)

metric_totals = Table(
    "metric_totals",
    metadata,
    Column("name", Text, nullable=False),
    Column("labels", Text, nullable=False),
    _number("total", None),
    PrimaryKeyConstraint("name", "labels"),
)
