"""Questions, answers, decisions, and the keys that sign decisions."""

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)

from soong.shared.permissions.request import Choice, RequestState
from soong.shared.storage.sql.engine.columns import Big as _Big
from soong.shared.storage.sql.engine.columns import flag as _flag
from soong.shared.storage.sql.engine.columns import id_column as _id
from soong.shared.storage.sql.engine.columns import number_column as _number
from soong.shared.storage.sql.engine.columns import one_of as _one_of
from soong.shared.storage.sql.engine.columns import ordinal_column as _ordinal
from soong.shared.storage.sql.engine.columns import ranges as _ranges
from soong.shared.storage.sql.engine.columns import text_column as _text
from soong.shared.storage.sql.engine.columns import where as _where
from soong.shared.storage.sql.engine.tables.base import metadata

permission_requests = Table(
    "permission_requests",
    metadata,
    _ordinal(),
    _id(),
    Column("run_id", Text, ForeignKey("runs.id"), nullable=False, index=True),
    _text("session_id", None),
    _text("tool_call_id", None),
    _text("state", "pending"),
    _number("created_us"),
    # The request as it was raised, without its identity: that is the run's row.
    _text("body", None),
    _one_of("state", RequestState),
    _ranges("created_us", "created_us"),
    Index("ix_permission_requests_pending", "session_id", "ordinal", **_where("state = 'pending'")),
    Index(
        "ix_permission_requests_call",
        "run_id",
        "tool_call_id",
        unique=True,
        **_where("state IN ('pending', 'decided')"),
    ),
)

answers = Table(
    "answers",
    metadata,
    Column("request_id", Text, ForeignKey("permission_requests.id"), primary_key=True),
    Column("choice", Text),
    _text("principal"),
    _text("channel"),
    _text("input_digest"),
    _number("answered_us"),
    _text("reason"),
    _text("metadata", "{}"),
    # The process that answered and those that it comes from.
    _text("provenance", "{}"),
    _one_of("choice", Choice),
)

decisions = Table(
    "decisions",
    metadata,
    Column("request_id", Text, ForeignKey("permission_requests.id"), primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    _text("body", None),
)

consumptions = Table(
    "consumptions",
    metadata,
    Column("decision_id", Text, primary_key=True),
    _text("run_id", None),
    _text("tool_call_id", None),
    _number("consumed_us"),
    _ranges("consumed_us", "consumed_us"),
)

signing_keys = Table(
    "signing_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("public_key", LargeBinary, nullable=False),
    _number("created_us"),
    # 1 of the key that the first owner published, else null: of two that start at once one inserts it.
    Column("is_first", _Big),
    CheckConstraint("length(public_key) = 32", name="public_key"),
    CheckConstraint("is_first = 1", name="is_first"),
    UniqueConstraint("is_first", name="uq_signing_keys_is_first"),
)

key_retirements = Table(
    "key_retirements",
    metadata,
    Column("key_id", Text, ForeignKey("signing_keys.id"), nullable=False),
    # 1: nothing signed with it counts any more. 0: what was signed with it until then does, until it expires.
    _number("is_revoked", None),
    _number("retired_us", None),
    _text("principal"),
    _text("reason"),
    _flag("is_revoked"),
    PrimaryKeyConstraint("key_id", "is_revoked", name="pk_key_retirements"),
)
