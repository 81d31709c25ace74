"""Evidence, the tokens of the HTTP API, and the names of artifacts."""

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Table, Text

from soong.shared.storage.sql.engine.columns import flag as _flag
from soong.shared.storage.sql.engine.columns import id_column as _id
from soong.shared.storage.sql.engine.columns import instant_column as _instant
from soong.shared.storage.sql.engine.columns import number_column as _number
from soong.shared.storage.sql.engine.columns import ordinal_column as _ordinal
from soong.shared.storage.sql.engine.columns import ranges as _ranges
from soong.shared.storage.sql.engine.columns import text_column as _text
from soong.shared.storage.sql.engine.columns import where as _where
from soong.shared.storage.sql.engine.tables.base import metadata

audit = Table(
    "audit",
    metadata,
    _ordinal(),
    _text("chain", None),
    _number("number", None),
    _number("time_us", None),
    _text("kind", None),
    _text("session_id"),
    _text("data", None),
    _text("previous"),
    _text("beside"),
    _text("digest", None),
    Index("ix_audit_chain", "chain", "number", unique=True),
    Index("ix_audit_session", "session_id", "ordinal"),
)

reports = Table(
    "reports",
    metadata,
    _ordinal(),
    Column("run_id", Text, ForeignKey("runs.id"), nullable=False),
    _text("type", None),
    _text("data", None),
    _number("time_us", None),
    _number("is_taken"),
    _flag("is_taken"),
    _ranges("time_us", "time_us"),
    Index("ix_reports_new", "ordinal", **_where("is_taken = 0")),
)

# -- access
api_tokens = Table(
    "api_tokens",
    metadata,
    _ordinal(),
    _id(),
    _text("principal", None),
    _text("rights", None),
    # The SHA-256 of the secret: the secret itself is shown once and stands nowhere.
    _text("digest", None),
    _number("created_us"),
    _instant("expires_us"),
    _instant("revoked_us"),
    _instant("sign_in_by_us"),
    CheckConstraint("length(digest) = 64", name="digest"),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("digest", Text, primary_key=True),
    _number("size_bytes"),
    _text("media_type"),
    _number("created_us"),
)
