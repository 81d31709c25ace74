"""Everything that the first version stores: what :mod:`soong.shared.storage.sql.engine.tables` describes, as it was
then. Logs and calls are plain JSON.
"""

from typing import Any

from alembic import op
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Text,
    UniqueConstraint,
    text,
)

revision = "0001_2cb9d3f5"
down_revision = None
branch_labels = None
depends_on = None

_READY = "status = 'ready' AND is_paused = 0"
_TASK_OVER = "status IN ('completed', 'failed', 'cancelled')"
_LEASED = "status = 'running'"
_UNSETTLED = "status = 'failed' AND is_settled = 0"
_DUE = "status = 'pending' AND not_before_us IS NOT NULL"
_UNTOLD = "kind = 'map' AND ready_us IS NOT NULL"

_ROOM: Any = {"postgresql_with": {"fillfactor": 30}}

_MAX_COUNT = 9_007_199_254_740_991

_TABLES = (
    "owners",
    "sessions",
    "responders",
    "commands",
    "workers",
    "tasks",
    "steps",
    "concurrency_limits",
    "runs",
    "budgets",
    "charges",
    "surfaces",
    "events",
    "nodes",
    "calls",
    "call_aborts",
    "waits",
    "permission_requests",
    "answers",
    "decisions",
    "consumptions",
    "signing_keys",
    "key_retirements",
    "audit",
    "reports",
    "api_tokens",
    "artifacts",
    "event_consumers",
    "event_cursors",
    "metric_totals",
    "notices",
)


def upgrade() -> None:
    _make_processes_and_sessions()
    _make_tasks()
    _make_runs()
    _make_consent()
    _make_audit()
    _make_access()
    _make_feed()


def downgrade() -> None:
    for table in reversed(_TABLES):
        op.drop_table(table)


_Big = BigInteger().with_variant(Integer(), "sqlite")


def _ordinal() -> Column[int]:
    return Column("ordinal", _Big, primary_key=True, autoincrement=True)


def _id() -> Column[str]:
    return Column("id", Text, nullable=False, unique=True)


def _text(name: str, default: str | None = "") -> Column[str]:
    return Column(name, Text, nullable=False, server_default=default)


def _number(name: str, default: int | None = 0) -> Column[int]:
    return Column(name, _Big, nullable=False, server_default=None if default is None else text(str(default)))


def _instant(name: str) -> Column[int]:
    return Column(name, _Big)


def _one_of(column: str, *values: str) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(value) for value in values)})", name=column)


def _flag(column: str) -> CheckConstraint:
    return CheckConstraint(f"{column} IN (0, 1)", name=column)


def _ranges(name: str, *columns: str) -> CheckConstraint:
    return CheckConstraint(" AND ".join(f"{column} BETWEEN 0 AND {_MAX_COUNT}" for column in columns), name=name)


def _sqlite_checks(*checks: CheckConstraint) -> tuple[CheckConstraint, ...]:
    return tuple(check.ddl_if(dialect="sqlite") for check in checks)


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


def _make_processes_and_sessions() -> None:
    op.create_table(
        "owners",
        _ordinal(),
        _id(),
        _text("host"),
        _number("pid"),
        _number("started_us"),
        _text("state", "live"),
        _number("beat"),
        _one_of("state", "live", "draining", "gone"),
        Index("ix_owners_alive", "ordinal", **_where("state <> 'gone'")),
    )
    op.create_table(
        "sessions",
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
        _one_of("approval_mode", "prompt", "inbox", "deny"),
        _flag("is_closed"),
        _flag("closes_with_task"),
        _ranges("last_claimed", "last_claimed"),
        Index("ix_sessions_owner", "owner_id", **_where("is_closed = 0")),
        Index("ix_sessions_last_claimed", "last_claimed"),
    )
    op.create_table(
        "responders",
        _ordinal(),
        _id(),
        Column("session_id", Text, ForeignKey("sessions.id"), nullable=False, index=True),
        _text("principal"),
        _text("channel"),
        _number("beat"),
    )
    op.create_table(
        "commands",
        _ordinal(),
        _id(),
        Column("session_id", Text, ForeignKey("sessions.id"), nullable=False),
        _text("kind", None),
        _text("subject"),
        _text("principal"),
        _number("may_approve"),
        _number("created_us"),
        _text("detail", "{}"),
        _text("refusal"),
        _text("refusal_type", "conflict"),
        _number("is_ended"),
        _one_of(
            "kind",
            "pause",
            "resume",
            "cancel",
            "abort",
            "retry",
            "close",
            "update",
            "complete",
            "fail",
            "spawn",
            "dispatch",
        ),
        _one_of("refusal_type", "conflict", "limit_exceeded"),
        _flag("is_ended"),
        _flag("may_approve"),
        Index("ix_commands_open", "session_id", **_where("is_ended = 0")),
    )
    op.create_table(
        "workers",
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
        _text("credential"),
        _one_of("state", "live", "draining", "gone"),
        CheckConstraint("id <> ''", name="id"),
        _ranges("numbers", "pid", "slots", "started_us", "protocol", "beat"),
        Index("ix_workers_credential", "credential"),
        Index("ix_workers_alive", "ordinal", **_where("state <> 'gone'")),
    )


def _make_tasks() -> None:
    op.create_table(
        "tasks",
        _ordinal(),
        _id(),
        Column("session_id", Text, ForeignKey("sessions.id"), nullable=False),
        _text("kind", "plan"),
        _text("title"),
        _text("status", "running"),
        _text("plan", "{}"),
        _text("inputs", "{}"),
        _text("root_run_id", None),
        _number("created_us"),
        _instant("ended_us"),
        _text("reason"),
        _number("is_recorded"),
        _text("trace_parent"),
        _one_of("status", "running", "paused", "completed", "failed", "cancelled"),
        _one_of("kind", "plan", "ask"),
        Index("ix_tasks_session", "session_id", "ordinal"),
        Index("ix_tasks_unrecorded", "ordinal", **_where(f"is_recorded = 0 AND {_TASK_OVER}")),
        Index("ix_tasks_open", "session_id", "ordinal", **_where("status IN ('running', 'paused')")),
        Index("ix_tasks_ended", "ended_us", "id", **_where(f"is_recorded = 1 AND {_TASK_OVER}")),
    )
    op.create_table(
        "steps",
        _ordinal(),
        Column("key", Text, nullable=False, unique=True),
        _text("task_id", None),
        _text("session_id", None),
        _text("step_id", None),
        _text("title"),
        _text("kind", None),
        _number("priority"),
        _text("pool", "default"),
        _text("needs", "[]"),
        _text("definition"),
        _text("model"),
        _text("lane", None),
        _text("claim_mode", "assigned"),
        _number("is_pull_worker"),
        _text("run_id"),
        _number("attempt", 1),
        _number("max_attempts", 1),
        Column("backoff_s", Float, nullable=False, server_default=text("1.0")),
        _text("on_failure", "skip_dependents"),
        _text("map_key"),
        Column("item_index", _Big),
        _number("growths"),
        _number("lost_leases"),
        _text("lost_to"),
        _number("is_settled"),
        _number("is_paused"),
        _number("is_unparked"),
        Column("cancel_reason", Text),
        _text("progress"),
        _text("holder_run_id"),
        _instant("not_before_us"),
        _number("open_deps"),
        _instant("ready_us"),
        _text("worker_id"),
        _number("fence"),
        _number("starts"),
        _instant("started_us"),
        _text("status", "pending"),
        _instant("ended_us"),
        Column("outcome", Text),
        Column("error", Text),
        Column("output", Text),
        _text("spec", "{}"),
        Column("depends_on", Text),
        Column("dependents", Text),
        *_sqlite_checks(
            _one_of(
                "status",
                "pending",
                "ready",
                "running",
                "blocked",
                "expanding",
                "waiting",
                "completed",
                "failed",
                "cancelled",
                "skipped",
            ),
            _one_of("kind", "agent", "python", "map"),
            _one_of("on_failure", "skip_dependents", "fail_task", "keep"),
            _one_of("outcome", "clean", "partial"),
            _flag("is_settled"),
            _flag("is_paused"),
            _flag("is_unparked"),
            _ranges("counters", "open_deps", "fence", "starts", "lost_leases"),
            _ranges("instants", "started_us", "ended_us", "ready_us"),
            CheckConstraint("kind <> 'map' OR status NOT IN ('ready', 'running', 'blocked')", name="map_unclaimed"),
            CheckConstraint("status <> 'running' OR worker_id <> ''", name="lease_holder"),
            CheckConstraint("status NOT IN ('ready', 'running') OR open_deps = 0", name="unlocked"),
        ),
        Index("ix_steps_ready", "lane", text("is_unparked DESC"), text("priority DESC"), "ordinal", **_where(_READY)),
        Index("ix_steps_leased", "worker_id", **_where(_LEASED)),
        Index("ix_steps_holder", "holder_run_id", **_where("holder_run_id <> ''")),
        Index("ix_steps_additional", "holder_run_id", **_where(f"holder_run_id <> '' AND {_LEASED}")),
        Index("ix_steps_blocked", "session_id", **_where("status = 'blocked'")),
        Index("ix_steps_expanding", "session_id", **_where("status = 'expanding'")),
        Index("ix_steps_unsettled", "session_id", **_where(_UNSETTLED)),
        Index("ix_steps_due", "session_id", "not_before_us", **_where(_DUE)),
        Index("ix_steps_children", "map_key", "item_index", **_where("map_key <> ''")),
        Index("ix_steps_untold", "session_id", "task_id", **_where(_UNTOLD)),
        Index("ix_steps_task", "task_id", "status"),
        **_ROOM,
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE steps DROP CONSTRAINT pk_steps")
        op.execute("ALTER TABLE steps REPLICA IDENTITY USING INDEX uq_steps_key")
    op.create_table(
        "concurrency_limits",
        Column("scope", Text, primary_key=True),
        Column("slots", _Big, nullable=False),
        CheckConstraint("slots >= 1", name="slots"),
        Index("ix_concurrency_limits_standing", "scope", **_where("substr(scope, 1, 8) <> 'session:'")),
    )


def _make_runs() -> None:
    op.create_table(
        "runs",
        _ordinal(),
        _id(),
        Column("session_id", Text, nullable=False, index=True),
        _text("agent_id"),
        _text("role", None),
        _text("definition"),
        _text("parent_run_id"),
        _text("parent_agent_id"),
        _text("task_id"),
        _text("step_key"),
        _text("step_title"),
        _text("model"),
        _text("dispatched_by"),
        _number("is_foreign"),
        _text("surface"),
        _text("token"),
        _number("attempt", 1),
        _text("retry_of"),
        _number("created_us"),
        _text("worker_id"),
        _number("fence"),
        _instant("started_us"),
        _number("last_seq"),
        _text("status", None),
        _number("last_node"),
        _instant("tainted_us"),
        _instant("ended_us"),
        Column("end_reason", Text),
        _text("usage", "{}"),
        *_sqlite_checks(
            _one_of("status", "queued", "running", "parked", "completed", "failed", "cancelled"),
            _one_of(
                "end_reason",
                "completed",
                "failed",
                "aborted_tools",
                "cancelled",
                "max_turns",
                "token_limit",
                "cost_limit",
                "time_limit",
                "lease_lost",
                "schema_unsupported",
                "provider_failed",
                "stopped_by_hook",
            ),
            _flag("is_foreign"),
            CheckConstraint("(ended_us IS NULL) = (end_reason IS NULL)", name="end"),
            _ranges("counters", "fence", "last_seq", "last_node"),
            _ranges("instants", "started_us", "ended_us", "tainted_us"),
        ),
        Index("ix_runs_task", "task_id"),
        **_ROOM,
    )
    op.create_table(
        "budgets",
        Column("scope", Text, primary_key=True),
        Column("tokens", _Big),
        Column("microusd", _Big),
        Column("turns", _Big),
        Column("wall_us", _Big),
        _instant("since_us"),
        Column("stopped", Text),
        _ranges("limits", "tokens", "microusd", "turns", "wall_us", "since_us"),
        Index("ix_budgets_tasks", "scope", **_where("substr(scope, 1, 5) = 'task:'")),
    )
    op.create_table(
        "charges",
        Column("run_id", Text, ForeignKey("runs.id"), nullable=False),
        _number("fence", None),
        _number("number", None),
        _text("session_id", None),
        _text("day", None),
        _number("tokens", None),
        Column("microusd", _Big),
        _number("is_open", None),
        Column("turns", _Big),
        PrimaryKeyConstraint("run_id", "fence", "number"),
        _flag("is_open"),
        _ranges("numbers", "fence", "number", "tokens", "microusd", "turns"),
        Index("ix_charges_session", "session_id"),
        Index("ix_charges_day", "day"),
    )
    op.create_table(
        "surfaces",
        Column("digest", Text, primary_key=True),
        _text("body", None),
    )
    op.create_table(
        "events",
        Column("run_id", Text, nullable=False),
        Column("seq", _Big, nullable=False),
        _text("type", None),
        _number("time_us", None),
        _text("data", "{}"),
        _text("preceding"),
        PrimaryKeyConstraint("run_id", "seq"),
        CheckConstraint("seq >= 1", name="seq"),
        _ranges("numbers", "seq", "time_us"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "nodes",
        Column("run_id", Text, nullable=False),
        Column("number", _Big, nullable=False),
        _number("parent", None),
        _text("kind", None),
        _text("payload", "{}"),
        _number("created_us", None),
        _text("preceding"),
        PrimaryKeyConstraint("run_id", "number"),
        _one_of(
            "kind", "system", "user", "assistant", "tool_result", "result", "memory_context", "skill", "compaction"
        ),
        CheckConstraint("number >= 1 AND parent >= 0 AND parent < number", name="number"),
        _ranges("numbers", "number", "created_us"),
    )
    op.create_table(
        "calls",
        _text("run_id", None),
        Column("tool_call_id", Text, nullable=False),
        _number("position"),
        _text("tool", None),
        _text("effect_id"),
        _number("is_write"),
        _text("input_digest"),
        _text("inputs", "{}"),
        _text("facts", "{}"),
        _text("decision_id"),
        _text("status", "started"),
        Column("result", Text),
        PrimaryKeyConstraint("run_id", "tool_call_id"),
        _one_of("status", "started", "ended", "unknown"),
        _flag("is_write"),
        _ranges("position", "position"),
    )
    op.create_table(
        "call_aborts",
        Column("run_id", Text, ForeignKey("runs.id"), nullable=False),
        Column("tool_call_id", Text, nullable=False),
        _text("reason"),
        _number("created_us"),
        PrimaryKeyConstraint("run_id", "tool_call_id"),
    )
    op.create_table(
        "waits",
        Column("parent_run", Text, ForeignKey("runs.id"), nullable=False),
        Column("tool_call_id", Text, nullable=False),
        Column("child_run", Text, ForeignKey("runs.id"), nullable=False),
        PrimaryKeyConstraint("parent_run", "tool_call_id", "child_run"),
    )


def _make_consent() -> None:
    op.create_table(
        "permission_requests",
        _ordinal(),
        _id(),
        Column("run_id", Text, ForeignKey("runs.id"), nullable=False, index=True),
        _text("session_id", None),
        _text("tool_call_id", None),
        _text("state", "pending"),
        _number("created_us"),
        _text("body", None),
        _one_of("state", "pending", "decided", "withdrawn", "expired"),
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
    op.create_table(
        "answers",
        Column("request_id", Text, ForeignKey("permission_requests.id"), primary_key=True),
        Column("choice", Text),
        _text("principal"),
        _text("channel"),
        _text("input_digest"),
        _number("answered_us"),
        _text("reason"),
        _text("metadata", "{}"),
        _text("provenance", "{}"),
        _one_of("choice", "allow_once", "allow_for_session", "deny"),
    )
    op.create_table(
        "decisions",
        Column("request_id", Text, ForeignKey("permission_requests.id"), primary_key=True),
        Column("id", Text, nullable=False, unique=True),
        _text("body", None),
    )
    op.create_table(
        "consumptions",
        Column("decision_id", Text, primary_key=True),
        _text("run_id", None),
        _text("tool_call_id", None),
        _number("consumed_us"),
        _ranges("consumed_us", "consumed_us"),
    )
    op.create_table(
        "signing_keys",
        Column("id", Text, primary_key=True),
        Column("public_key", LargeBinary, nullable=False),
        _number("created_us"),
        Column("is_first", _Big),
        CheckConstraint("length(public_key) = 32", name="public_key"),
        CheckConstraint("is_first = 1", name="is_first"),
        UniqueConstraint("is_first", name="uq_signing_keys_is_first"),
    )
    op.create_table(
        "key_retirements",
        Column("key_id", Text, ForeignKey("signing_keys.id"), nullable=False),
        _number("is_revoked", None),
        _number("retired_us", None),
        _text("principal"),
        _text("reason"),
        _flag("is_revoked"),
        PrimaryKeyConstraint("key_id", "is_revoked", name="pk_key_retirements"),
    )


def _make_audit() -> None:
    op.create_table(
        "audit",
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
    op.create_table(
        "reports",
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


def _make_access() -> None:
    op.create_table(
        "api_tokens",
        _ordinal(),
        _id(),
        _text("principal", None),
        _text("rights", None),
        _text("digest", None),
        _number("created_us"),
        _instant("expires_us"),
        _instant("revoked_us"),
        _instant("sign_in_by_us"),
        CheckConstraint("length(digest) = 64", name="digest"),
    )
    op.create_table(
        "artifacts",
        Column("digest", Text, primary_key=True),
        _number("size_bytes"),
        _text("media_type"),
        _number("created_us"),
    )


def _make_feed() -> None:
    op.create_table(
        "event_consumers",
        Column("name", Text, primary_key=True),
        _text("owner_id", None),
        _number("since_us", None),
    )
    op.create_table(
        "event_cursors",
        Column("consumer", Text, nullable=False),
        Column("run_id", Text, nullable=False),
        _number("seq", None),
        _text("state", None),
        PrimaryKeyConstraint("consumer", "run_id"),
        CheckConstraint("seq >= 1", name="seq"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "metric_totals",
        Column("name", Text, nullable=False),
        Column("labels", Text, nullable=False),
        _number("total", None),
        PrimaryKeyConstraint("name", "labels"),
    )
    op.create_table(
        "notices",
        _ordinal(),
        _id(),
        _text("channel", None),
        _text("event", None),
        _text("session_id"),
        _text("request_id"),
        _number("created_us", None),
        _number("due_us", None),
        _text("facts", None),
        _text("message_id"),
        _text("state", "waiting"),
        _number("attempts"),
        _text("error"),
        _number("ended_us"),
        _one_of("state", "waiting", "sent", "dropped", "dead", "gone"),
        Index("ix_notices_waiting", "channel", "due_us", "id", **_where("state = 'waiting'")),
        Index("ix_notices_unsent", "ordinal", **_where("state IN ('waiting', 'dead', 'gone')")),
        Index("ix_notices_ended", "ended_us"),
    )
