"""Processes and sessions: owners, workers, and what clients ask of owners."""

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Table, Text

from soong.shared.engine.sessions.session import ApprovalMode, CommandKind, ProcessState, RefusalType
from soong.shared.storage.sql.engine.columns import flag as _flag
from soong.shared.storage.sql.engine.columns import id_column as _id
from soong.shared.storage.sql.engine.columns import number_column as _number
from soong.shared.storage.sql.engine.columns import one_of as _one_of
from soong.shared.storage.sql.engine.columns import ordinal_column as _ordinal
from soong.shared.storage.sql.engine.columns import ranges as _ranges
from soong.shared.storage.sql.engine.columns import text_column as _text
from soong.shared.storage.sql.engine.columns import where as _where
from soong.shared.storage.sql.engine.tables.base import metadata

owners = Table(
    "owners",
    metadata,
    _ordinal(),
    _id(),
    _text("host"),
    _number("pid"),
    _number("started_us"),
    _text("state", "live"),
    _number("beat"),
    _one_of("state", ProcessState),
    Index("ix_owners_alive", "ordinal", **_where("state <> 'gone'")),
)

sessions = Table(
    "sessions",
    metadata,
    _ordinal(),
    _id(),
    _text("project"),
    _text("cwd"),
    _text("approval_mode", None),
    _number("created_us"),
    _text("policy", "{}"),
    _text("principal"),
    _text("owner_id"),
    _number("owner_epoch"),
    _number("is_closed"),
    _number("last_claimed"),
    _text("project_id"),
    _number("closes_with_task"),
    _one_of("approval_mode", ApprovalMode),
    _flag("is_closed"),
    _flag("closes_with_task"),
    _ranges("last_claimed", "last_claimed"),
    Index("ix_sessions_owner", "owner_id", **_where("is_closed = 0")),
    Index("ix_sessions_last_claimed", "last_claimed"),
)

responders = Table(
    "responders",
    metadata,
    _ordinal(),
    _id(),
    Column("session_id", Text, ForeignKey("sessions.id"), nullable=False, index=True),
    _text("principal"),
    _text("channel"),
    _number("beat"),
)

commands = Table(
    "commands",
    metadata,
    _ordinal(),
    _id(),
    Column("session_id", Text, ForeignKey("sessions.id"), nullable=False),
    _text("kind", None),
    _text("subject"),
    _text("principal"),
    # Whether that principal carries the right to approve, as the client that wrote it checked.
    _number("may_approve"),
    _number("created_us"),
    _text("detail", "{}"),
    _text("refusal"),
    _text("refusal_type", RefusalType.CONFLICT.value),
    _number("is_ended"),
    _one_of("kind", CommandKind),
    _one_of("refusal_type", RefusalType),
    _flag("is_ended"),
    _flag("may_approve"),
    Index("ix_commands_open", "session_id", **_where("is_ended = 0")),
)

workers = Table(
    "workers",
    metadata,
    _ordinal(),
    _id(),
    _text("node_name"),
    _text("host"),
    _number("pid"),
    _number("slots"),
    _text("pools", "[]"),
    _text("capabilities", "[]"),
    _number("started_us"),
    _number("protocol"),
    _text("state", "live"),
    _number("beat"),
    # The SHA-256 of what only its process knows: by it the database tells one worker's rows from another's.
    _text("credential"),
    _one_of("state", ProcessState),
    CheckConstraint("id <> ''", name="id"),
    _ranges("numbers", "pid", "slots", "started_us", "protocol", "beat"),
    Index("ix_workers_credential", "credential"),
    Index("ix_workers_alive", "ordinal", **_where("state <> 'gone'")),
)
