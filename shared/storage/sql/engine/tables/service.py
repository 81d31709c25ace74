"""Processes and sessions, questions and the keys that sign decisions, evidence, tokens, artifacts and followers."""

from sqlalchemy import CheckConstraint, Column, Index, LargeBinary, PrimaryKeyConstraint, UniqueConstraint

from soong.shared.engine.sessions.session import ApprovalMode, CommandKind, ProcessState, RefusalType
from soong.shared.engine.tasks.event_feed import NoticeState
from soong.shared.permissions.request import Choice, RequestState
from soong.shared.storage.sql.engine.columns import (
    MAKES,
    MAX_TEXT_CHARS,
    MAX_WORD_CHARS,
    MOVES,
    WRITES,
    by_dialect,
    choice,
    document,
    flag,
    identifier,
    instant,
    key,
    number,
    ordinal,
    partial,
    reference,
    table,
    word,
)

# -- processes and sessions
owners = table(
    "owners",
    ordinal(),
    identifier(),
    word("host"),
    number("pid"),
    number("started_us"),
    choice("state", ProcessState, "live"),
    number("beat"),
    partial("ix_owners_alive", "ordinal", where="state <> 'gone'"),
)

sessions = table(
    "sessions",
    ordinal(),
    identifier(),
    word("project"),
    word("cwd"),
    choice("approval_mode", ApprovalMode),
    number("created_us"),
    document("policy"),
    word("principal"),
    word("owner_id"),
    number("owner_epoch"),
    flag("is_closed"),
    # When it was last served, for fairness.
    number("last_claimed", worker=MOVES),
    word("project_id"),
    flag("closes_with_task"),
    partial("ix_sessions_owner", "owner_id", where="is_closed = 0"),
    Index("ix_sessions_last_claimed", "last_claimed"),
)

responders = table(
    "responders",
    ordinal(),
    identifier(),
    reference("session_id", "sessions.id", index=True),
    word("principal"),
    word("channel"),
    number("beat"),
)

commands = table(
    "commands",
    ordinal(),
    identifier(),
    reference("session_id", "sessions.id"),
    choice("kind", CommandKind),
    word("subject"),
    word("principal"),
    # Whether that principal carries the right to approve, as the client that wrote it checked.
    flag("may_approve"),
    number("created_us"),
    document("detail"),
    word("refusal"),
    choice("refusal_type", RefusalType, RefusalType.CONFLICT.value),
    flag("is_ended"),
    partial("ix_commands_open", "session_id", where="is_ended = 0"),
)

workers = table(
    "workers",
    ordinal(),
    identifier(worker=MAKES),
    word("node_name", worker=MAKES),
    word("host", worker=MAKES),
    number("pid", worker=MAKES),
    number("slots", worker=MAKES),
    document("pools", "[]", worker=MAKES, kind="array", most=MAX_WORD_CHARS),
    document("capabilities", "[]", worker=MAKES, kind="array", most=MAX_WORD_CHARS),
    number("started_us", worker=MAKES),
    number("protocol", worker=MAKES),
    choice("state", ProcessState, "live", worker=WRITES),
    number("beat", worker=WRITES),
    word("left_over", worker=WRITES),
    # The SHA-256 of its process's secret: by it the database distinguishes the rows of workers.
    word("credential", worker=MAKES),
    CheckConstraint("id <> ''", name="id"),
    Index("ix_workers_credential", "credential"),
    partial("ix_workers_alive", "ordinal", where="state <> 'gone'"),
)

# -- consent
permission_requests = table(
    "permission_requests",
    ordinal(),
    identifier(worker=MAKES),
    reference("run_id", "runs.id", worker=MAKES, index=True),
    word("session_id", None, worker=MAKES),
    word("tool_call_id", None, worker=MAKES),
    choice("state", RequestState, "pending", worker=MOVES),
    number("created_us", worker=MAKES),
    # The request as it was raised, without its identity: that is the run's row.
    document("body", None, worker=MAKES, kind="", most=4 * MAX_TEXT_CHARS),
    partial("ix_permission_requests_pending", "session_id", "ordinal", where="state = 'pending'"),
    partial(
        *("ix_permission_requests_call", "run_id", "tool_call_id"),
        where="state IN ('pending', 'decided')",
        is_unique=True,
    ),
)

answers = table(
    "answers",
    reference("request_id", "permission_requests.id", primary_key=True),
    choice("choice", Choice, is_null=True),
    word("principal"),
    word("channel"),
    word("input_digest"),
    number("answered_us"),
    word("reason"),
    document("metadata"),
    # The process that answered and those that it comes from.
    document("provenance"),
)

decisions = table(
    "decisions",
    reference("request_id", "permission_requests.id", primary_key=True),
    identifier(),
    document("body", None),
)

consumptions = table(
    # A decision is used once: inserted in the transaction in which its call starts, and never taken back.
    "consumptions",
    key("decision_id", worker=MAKES),
    word("run_id", None, worker=MAKES),
    word("tool_call_id", None, worker=MAKES),
    number("consumed_us", worker=MAKES),
)

signing_keys = table(
    # Public keys. The private one is a file that only orchestrators have.
    "signing_keys",
    key("id"),
    Column("public_key", LargeBinary, nullable=False),
    number("created_us"),
    # 1 for the key that the first owner published, else null: only one of two that start at once inserts it.
    number("is_first", is_null=True),
    CheckConstraint("length(public_key) = 32", name="public_key"),
    CheckConstraint("is_first = 1", name="is_first"),
    UniqueConstraint("is_first", name="uq_signing_keys_is_first"),
)

key_retirements = table(
    "key_retirements",
    reference("key_id", "signing_keys.id"),
    # 1: nothing signed with it counts any more. 0: earlier signatures count until they expire.
    flag("is_revoked", None),
    number("retired_us", None),
    word("principal"),
    word("reason"),
    PrimaryKeyConstraint("key_id", "is_revoked", name="pk_key_retirements"),
)

# -- evidence, access, artifacts
audit = table(
    "audit",
    ordinal(),
    word("chain", None),
    number("number", None),
    number("time_us", None),
    word("kind", None),
    word("session_id"),
    document("data", None),
    word("previous"),
    word("beside"),
    word("digest", None),
    Index("ix_audit_chain", "chain", "number", unique=True),
    Index("ix_audit_session", "session_id", "ordinal"),
)

reports = table(
    # A worker's reports for the audit log; it can neither read nor take one back.
    "reports",
    ordinal(),
    reference("run_id", "runs.id", worker=MAKES),
    word("type", None, worker=MAKES),
    document("data", None, worker=MAKES, most=MAX_TEXT_CHARS),
    number("time_us", None, worker=MAKES),
    flag("is_taken"),
    partial("ix_reports_new", "ordinal", where="is_taken = 0"),
)

api_tokens = table(
    "api_tokens",
    ordinal(),
    identifier(),
    word("principal", None),
    document("rights", None, kind="array"),
    # The SHA-256 of the secret: the secret itself is shown once and stands nowhere.
    word("digest", None),
    number("created_us"),
    instant("expires_us"),
    instant("revoked_us"),
    instant("sign_in_by_us"),
    CheckConstraint("length(digest) = 64", name="digest"),
)

artifacts = table("artifacts", key("digest"), number("size_bytes"), word("media_type"), number("created_us"))

# -- who follows the logs of runs, how far each has come, the totals counted on the way, and what is sent
event_consumers = table(
    "event_consumers",
    key("name"),
    word("owner_id", None),
    # Tasks that ended before have been followed to their ends.
    number("since_us", None),
)

event_cursors = table(
    "event_cursors",
    word("consumer", None),
    word("run_id", None),
    number("seq", None),
    document("state", None),
    PrimaryKeyConstraint("consumer", "run_id"),
    CheckConstraint("seq >= 1", name="seq"),
    options=by_dialect(sqlite_with_rowid=False),
)

metric_totals = table(
    "metric_totals",
    word("name", None),
    document("labels", None, kind="array"),
    number("total", None),
    PrimaryKeyConstraint("name", "labels"),
)

notices = table(
    "notices",
    ordinal(),
    identifier(),
    word("channel", None),
    word("event", None),
    word("session_id"),
    word("request_id"),
    number("created_us", None),
    number("due_us", None),
    document("facts", None),
    # Empty until the first attempt to send it.
    word("message_id"),
    choice("state", NoticeState, "waiting"),
    number("attempts"),
    word("error"),
    number("ended_us"),
    partial("ix_notices_waiting", "channel", "due_us", "id", where="state = 'waiting'"),
    partial("ix_notices_unsent", "ordinal", where="state IN ('waiting', 'dead', 'gone')"),
    Index("ix_notices_ended", "ended_us"),
)
