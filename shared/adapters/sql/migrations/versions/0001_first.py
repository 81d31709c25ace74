"""Everything that the first version stores."""

# ruff: noqa: E501, PLR0915  # a list of tables, one after another

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "artifacts",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column(
            "size_bytes",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column("media_type", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "created_us",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_artifacts")),
    )
    op.create_table(
        "caps",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("cap", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.CheckConstraint("cap >= 1", name=op.f("ck_caps_cap")),
        sa.PrimaryKeyConstraint("scope", name=op.f("pk_caps")),
    )
    op.create_table(
        "consumptions",
        sa.Column("decision_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("tool_call_id", sa.Text(), nullable=False),
        sa.Column(
            "consumed_us",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("decision_id", name=op.f("pk_consumptions")),
    )
    op.create_table(
        "edges",
        sa.Column("child_key", sa.Text(), nullable=False),
        sa.Column("parent_key", sa.Text(), nullable=False),
        sa.Column(
            "position",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("child_key", "parent_key", name=op.f("pk_edges")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_edges_parent", "edges", ["parent_key", "child_key"], unique=False)
    op.create_table(
        "events",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("time_us", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("data", sa.Text(), server_default="{}", nullable=False),
        sa.CheckConstraint("seq >= 1", name=op.f("ck_events_seq")),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_events")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "nodes",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("parent", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), server_default="{}", nullable=False),
        sa.Column("created_us", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.CheckConstraint("number >= 1 AND parent >= 0 AND parent < number", name=op.f("ck_nodes_number")),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_nodes")),
    )
    op.create_table(
        "owners",
        sa.Column("ordinal", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "pid", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default=sa.text("0"), nullable=False
        ),
        sa.Column(
            "started_us",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column("state", sa.Text(), server_default="live", nullable=False),
        sa.Column(
            "beat", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default=sa.text("0"), nullable=False
        ),
        sa.CheckConstraint("state IN ('live', 'draining', 'gone')", name=op.f("ck_owners_state")),
        sa.PrimaryKeyConstraint("ordinal", name=op.f("pk_owners")),
        sa.UniqueConstraint("id", name=op.f("uq_owners_id")),
    )
    op.create_table(
        "sessions",
        sa.Column("ordinal", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), server_default="", nullable=False),
        sa.Column("cwd", sa.Text(), server_default="", nullable=False),
        sa.Column("answer_mode", sa.Text(), nullable=False),
        sa.Column(
            "created_us",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column("policy", sa.Text(), server_default="{}", nullable=False),
        sa.Column("principal", sa.Text(), server_default="", nullable=False),
        sa.Column("owner_id", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "owner_epoch",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column(
            "is_closed",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column(
            "last_claimed",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.CheckConstraint("answer_mode IN ('attached', 'inbox', 'none')", name=op.f("ck_sessions_answer_mode")),
        sa.CheckConstraint("is_closed IN (0, 1)", name=op.f("ck_sessions_is_closed")),
        sa.PrimaryKeyConstraint("ordinal", name=op.f("pk_sessions")),
        sa.UniqueConstraint("id", name=op.f("uq_sessions_id")),
    )
    op.create_index("ix_sessions_last_claimed", "sessions", ["last_claimed"], unique=False)
    op.create_index(
        "ix_sessions_owner",
        "sessions",
        ["owner_id"],
        unique=False,
        sqlite_where=sa.text("is_closed = 0"),
        postgresql_where=sa.text("is_closed = 0"),
    )
    op.create_table(
        "signing_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("public_key", sa.LargeBinary(), nullable=False),
        sa.Column(
            "created_us",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.CheckConstraint("length(public_key) = 32", name=op.f("ck_signing_keys_public_key")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signing_keys")),
    )
    op.create_table(
        "surfaces",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_surfaces")),
    )
    op.create_table(
        "workers",
        sa.Column("ordinal", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("node_name", sa.Text(), server_default="", nullable=False),
        sa.Column("host", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "pid", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default=sa.text("0"), nullable=False
        ),
        sa.Column(
            "slots", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default=sa.text("0"), nullable=False
        ),
        sa.Column("pools", sa.Text(), server_default="[]", nullable=False),
        sa.Column("capabilities", sa.Text(), server_default="[]", nullable=False),
        sa.Column(
            "started_us",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column(
            "protocol",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column("state", sa.Text(), server_default="live", nullable=False),
        sa.Column(
            "beat", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default=sa.text("0"), nullable=False
        ),
        sa.CheckConstraint("state IN ('live', 'draining', 'gone')", name=op.f("ck_workers_state")),
        sa.PrimaryKeyConstraint("ordinal", name=op.f("pk_workers")),
        sa.UniqueConstraint("id", name=op.f("uq_workers_id")),
    )
    op.create_index(
        "ix_workers_alive",
        "workers",
        ["ordinal"],
        unique=False,
        sqlite_where=sa.text("state <> 'gone'"),
        postgresql_where=sa.text("state <> 'gone'"),
    )
    op.create_table(
        "commands",
        sa.Column("ordinal", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), server_default="", nullable=False),
        sa.Column("principal", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "created_us",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column("detail", sa.Text(), server_default="{}", nullable=False),
        sa.Column("refusal", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "is_ended",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.CheckConstraint("kind IN ('pause', 'resume', 'cancel', 'retry', 'close')", name=op.f("ck_commands_kind")),
        sa.CheckConstraint("is_ended IN (0, 1)", name=op.f("ck_commands_is_ended")),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_commands_session_id")),
        sa.PrimaryKeyConstraint("ordinal", name=op.f("pk_commands")),
        sa.UniqueConstraint("id", name=op.f("uq_commands_id")),
    )
    op.create_index(
        "ix_commands_open",
        "commands",
        ["session_id"],
        unique=False,
        sqlite_where=sa.text("is_ended = 0"),
        postgresql_where=sa.text("is_ended = 0"),
    )
    op.create_table(
        "responders",
        sa.Column("ordinal", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), server_default="", nullable=False),
        sa.Column("channel", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "beat", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default=sa.text("0"), nullable=False
        ),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_responders_session_id")),
        sa.PrimaryKeyConstraint("ordinal", name=op.f("pk_responders")),
        sa.UniqueConstraint("id", name=op.f("uq_responders_id")),
    )
    op.create_index(op.f("ix_responders_session_id"), "responders", ["session_id"], unique=False)
    op.create_table(
        "runs",
        sa.Column("ordinal", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), server_default="", nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("definition", sa.Text(), server_default="", nullable=False),
        sa.Column("parent_run_id", sa.Text(), server_default="", nullable=False),
        sa.Column("parent_agent_id", sa.Text(), server_default="", nullable=False),
        sa.Column("task_id", sa.Text(), server_default="", nullable=False),
        sa.Column("step_key", sa.Text(), server_default="", nullable=False),
        sa.Column("step_title", sa.Text(), server_default="", nullable=False),
        sa.Column("model", sa.Text(), server_default="", nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("surface", sa.Text(), server_default="", nullable=False),
        sa.Column("token", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "attempt", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default=sa.text("1"), nullable=False
        ),
        sa.Column("retry_of", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "fence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default=sa.text("0"), nullable=False
        ),
        sa.Column("worker_id", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "last_seq",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column(
            "last_node",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column("usage", sa.Text(), server_default="{}", nullable=False),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column(
            "created_us",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column("started_us", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("ended_us", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.CheckConstraint(
            "end_reason IN ('completed', 'failed', 'aborted_tools', 'cancelled', 'max_turns', 'token_limit', 'cost_limit', 'time_limit', 'lease_lost', 'schema_unsupported', 'provider_failed', 'stopped_by_hook')",
            name=op.f("ck_runs_end_reason"),
        ),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'parked', 'completed', 'failed', 'cancelled')", name=op.f("ck_runs_status")
        ),
        sa.CheckConstraint("(ended_us IS NULL) = (end_reason IS NULL)", name=op.f("ck_runs_end")),
        sa.PrimaryKeyConstraint("ordinal", name=op.f("pk_runs")),
        sa.UniqueConstraint("id", name=op.f("uq_runs_id")),
    )
    op.create_index(op.f("ix_runs_session_id"), "runs", ["session_id"], unique=False)
    op.create_index("ix_runs_task", "runs", ["task_id"], unique=False)
    op.create_table(
        "tasks",
        sa.Column("ordinal", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), server_default="", nullable=False),
        sa.Column("status", sa.Text(), server_default="running", nullable=False),
        sa.Column("plan", sa.Text(), server_default="{}", nullable=False),
        sa.Column("inputs", sa.Text(), server_default="{}", nullable=False),
        sa.Column("root_run_id", sa.Text(), nullable=False),
        sa.Column(
            "created_us",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column("ended_us", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.CheckConstraint(
            "status IN ('running', 'paused', 'completed', 'failed', 'cancelled')", name=op.f("ck_tasks_status")
        ),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_tasks_session_id")),
        sa.PrimaryKeyConstraint("ordinal", name=op.f("pk_tasks")),
        sa.UniqueConstraint("id", name=op.f("uq_tasks_id")),
    )
    op.create_index(
        "ix_tasks_open",
        "tasks",
        ["session_id"],
        unique=False,
        sqlite_where=sa.text("status IN ('running', 'paused')"),
        postgresql_where=sa.text("status IN ('running', 'paused')"),
    )
    op.create_index("ix_tasks_session", "tasks", ["session_id", "ordinal"], unique=False)
    op.create_table(
        "calls",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("tool_call_id", sa.Text(), nullable=False),
        sa.Column(
            "position",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("effect_id", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "is_write",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column("input_digest", sa.Text(), server_default="", nullable=False),
        sa.Column("inputs", sa.Text(), server_default="{}", nullable=False),
        sa.Column("facts", sa.Text(), server_default="{}", nullable=False),
        sa.Column("decision_id", sa.Text(), server_default="", nullable=False),
        sa.Column("status", sa.Text(), server_default="started", nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.CheckConstraint("status IN ('started', 'ended', 'unknown')", name=op.f("ck_calls_status")),
        sa.CheckConstraint("is_write IN (0, 1)", name=op.f("ck_calls_is_write")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_calls_run_id")),
        sa.PrimaryKeyConstraint("run_id", "tool_call_id", name=op.f("pk_calls")),
    )
    op.create_table(
        "permission_requests",
        sa.Column("ordinal", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("tool_call_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column(
            "created_us",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column("body", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "state IN ('pending', 'decided', 'withdrawn', 'expired')", name=op.f("ck_permission_requests_state")
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_permission_requests_run_id")),
        sa.PrimaryKeyConstraint("ordinal", name=op.f("pk_permission_requests")),
        sa.UniqueConstraint("id", name=op.f("uq_permission_requests_id")),
    )
    op.create_index(
        "ix_permission_requests_call",
        "permission_requests",
        ["run_id", "tool_call_id"],
        unique=True,
        sqlite_where=sa.text("state IN ('pending', 'decided')"),
        postgresql_where=sa.text("state IN ('pending', 'decided')"),
    )
    op.create_index(
        "ix_permission_requests_pending",
        "permission_requests",
        ["session_id", "ordinal"],
        unique=False,
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(op.f("ix_permission_requests_run_id"), "permission_requests", ["run_id"], unique=False)
    op.create_table(
        "steps",
        sa.Column("ordinal", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("step_id", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), server_default="", nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default="pending", nullable=False),
        sa.Column(
            "open_deps",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column(
            "priority",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column("pool", sa.Text(), server_default="default", nullable=False),
        sa.Column("needs", sa.Text(), server_default="[]", nullable=False),
        sa.Column("definition", sa.Text(), server_default="", nullable=False),
        sa.Column("model", sa.Text(), server_default="", nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "attempt", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default=sa.text("1"), nullable=False
        ),
        sa.Column(
            "max_attempts",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("1"),
            nullable=False,
        ),
        sa.Column("backoff_s", sa.Float(), server_default=sa.text("1.0"), nullable=False),
        sa.Column("on_failure", sa.Text(), server_default="skip_dependents", nullable=False),
        sa.Column(
            "lost_leases",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column(
            "fence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default=sa.text("0"), nullable=False
        ),
        sa.Column(
            "starts", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), server_default=sa.text("0"), nullable=False
        ),
        sa.Column("worker_id", sa.Text(), server_default="", nullable=False),
        sa.Column("map_key", sa.Text(), server_default="", nullable=False),
        sa.Column("item_index", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("progress", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "is_settled",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column(
            "is_paused",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column("cancel_reason", sa.Text(), nullable=True),
        sa.Column("not_before_us", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("started_us", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("ended_us", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("spec", sa.Text(), server_default="{}", nullable=False),
        sa.CheckConstraint(
            "kind <> 'map' OR status NOT IN ('ready', 'claimed', 'running', 'blocked')",
            name=op.f("ck_steps_map_unclaimed"),
        ),
        sa.CheckConstraint("kind IN ('agent', 'python', 'map')", name=op.f("ck_steps_kind")),
        sa.CheckConstraint("on_failure IN ('skip_dependents', 'fail_task', 'keep')", name=op.f("ck_steps_on_failure")),
        sa.CheckConstraint("outcome IN ('clean', 'partial')", name=op.f("ck_steps_outcome")),
        sa.CheckConstraint(
            "status IN ('pending', 'ready', 'claimed', 'running', 'blocked', 'expanding', 'waiting', 'completed', 'failed', 'cancelled', 'skipped')",
            name=op.f("ck_steps_status"),
        ),
        sa.CheckConstraint(
            "status NOT IN ('claimed', 'running') OR worker_id <> ''", name=op.f("ck_steps_lease_holder")
        ),
        sa.CheckConstraint(
            "status NOT IN ('ready', 'claimed', 'running') OR open_deps = 0", name=op.f("ck_steps_unlocked")
        ),
        sa.CheckConstraint("fence >= 0 AND lost_leases >= 0", name=op.f("ck_steps_counters")),
        sa.CheckConstraint("is_paused IN (0, 1)", name=op.f("ck_steps_is_paused")),
        sa.CheckConstraint("is_settled IN (0, 1)", name=op.f("ck_steps_is_settled")),
        sa.CheckConstraint("open_deps >= 0", name=op.f("ck_steps_open_deps")),
        sa.PrimaryKeyConstraint("ordinal", name=op.f("pk_steps")),
        sa.UniqueConstraint("key", name=op.f("uq_steps_key")),
    )
    op.create_index(
        "ix_steps_children",
        "steps",
        ["map_key", "item_index"],
        unique=False,
        sqlite_where=sa.text("map_key <> ''"),
        postgresql_where=sa.text("map_key <> ''"),
    )
    op.create_index(
        "ix_steps_due",
        "steps",
        ["session_id", "not_before_us"],
        unique=False,
        sqlite_where=sa.text("status = 'pending' AND not_before_us IS NOT NULL"),
        postgresql_where=sa.text("status = 'pending' AND not_before_us IS NOT NULL"),
    )
    op.create_index(
        "ix_steps_expanding",
        "steps",
        ["session_id"],
        unique=False,
        sqlite_where=sa.text("status = 'expanding'"),
        postgresql_where=sa.text("status = 'expanding'"),
    )
    op.create_index(
        "ix_steps_leased",
        "steps",
        ["worker_id", "lane"],
        unique=False,
        sqlite_where=sa.text("status IN ('claimed', 'running')"),
        postgresql_where=sa.text("status IN ('claimed', 'running')"),
    )
    op.create_index(
        "ix_steps_ready",
        "steps",
        ["lane", sa.text("priority DESC"), "ordinal"],
        unique=False,
        sqlite_where=sa.text("status = 'ready' AND is_paused = 0"),
        postgresql_where=sa.text("status = 'ready' AND is_paused = 0"),
    )
    op.create_index("ix_steps_task", "steps", ["task_id", "status"], unique=False)
    op.create_index(
        "ix_steps_unsettled",
        "steps",
        ["session_id"],
        unique=False,
        sqlite_where=sa.text("status = 'failed' AND is_settled = 0"),
        postgresql_where=sa.text("status = 'failed' AND is_settled = 0"),
    )
    op.create_table(
        "waits",
        sa.Column("parent_run", sa.Text(), nullable=False),
        sa.Column("tool_call_id", sa.Text(), nullable=False),
        sa.Column("child_run", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["child_run"], ["runs.id"], name=op.f("fk_waits_child_run")),
        sa.ForeignKeyConstraint(["parent_run"], ["runs.id"], name=op.f("fk_waits_parent_run")),
        sa.PrimaryKeyConstraint("parent_run", "tool_call_id", "child_run", name=op.f("pk_waits")),
    )
    op.create_table(
        "answers",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("choice", sa.Text(), nullable=True),
        sa.Column("principal", sa.Text(), server_default="", nullable=False),
        sa.Column("channel", sa.Text(), server_default="", nullable=False),
        sa.Column("input_digest", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "answered_us",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            server_default=sa.text("0"),
            nullable=False,
        ),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.CheckConstraint("choice IN ('allow_once', 'allow_for_session', 'deny')", name=op.f("ck_answers_choice")),
        sa.ForeignKeyConstraint(["request_id"], ["permission_requests.id"], name=op.f("fk_answers_request_id")),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_answers")),
    )
    op.create_table(
        "decisions",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["request_id"], ["permission_requests.id"], name=op.f("fk_decisions_request_id")),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_decisions")),
        sa.UniqueConstraint("id", name=op.f("uq_decisions_id")),
    )
    if op.get_context().dialect.name == "postgresql":
        # A run's row changes with each thing it logs and none of that is indexed: with room on its page the change
        # stays there and touches no index, which is a tenth of the work.
        op.execute("ALTER TABLE runs SET (fillfactor = 50)")
        # Steps that were claimed leave dead entries before the live ones in the index of ready steps, and every claim
        # walks over them: they are cleared away by number and not by a share of all that ever ran.
        op.execute("ALTER TABLE steps SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000)")


def downgrade() -> None:
    op.drop_table("decisions")
    op.drop_table("answers")
    op.drop_table("waits")
    op.drop_index(
        "ix_steps_unsettled",
        table_name="steps",
        sqlite_where=sa.text("status = 'failed' AND is_settled = 0"),
        postgresql_where=sa.text("status = 'failed' AND is_settled = 0"),
    )
    op.drop_index("ix_steps_ready", table_name="steps")
    op.drop_index("ix_steps_task", table_name="steps")
    op.drop_index(
        "ix_steps_leased",
        table_name="steps",
        sqlite_where=sa.text("status IN ('claimed', 'running')"),
        postgresql_where=sa.text("status IN ('claimed', 'running')"),
    )
    op.drop_index(
        "ix_steps_expanding",
        table_name="steps",
        sqlite_where=sa.text("status = 'expanding'"),
        postgresql_where=sa.text("status = 'expanding'"),
    )
    op.drop_index(
        "ix_steps_due",
        table_name="steps",
        sqlite_where=sa.text("status = 'pending' AND not_before_us IS NOT NULL"),
        postgresql_where=sa.text("status = 'pending' AND not_before_us IS NOT NULL"),
    )
    op.drop_index(
        "ix_steps_children",
        table_name="steps",
        sqlite_where=sa.text("map_key <> ''"),
        postgresql_where=sa.text("map_key <> ''"),
    )
    op.drop_table("steps")
    op.drop_index(op.f("ix_permission_requests_run_id"), table_name="permission_requests")
    op.drop_index(
        "ix_permission_requests_pending",
        table_name="permission_requests",
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.drop_index(
        "ix_permission_requests_call",
        table_name="permission_requests",
        sqlite_where=sa.text("state IN ('pending', 'decided')"),
        postgresql_where=sa.text("state IN ('pending', 'decided')"),
    )
    op.drop_table("permission_requests")
    op.drop_table("calls")
    op.drop_index("ix_tasks_session", table_name="tasks")
    op.drop_index(
        "ix_tasks_open",
        table_name="tasks",
        sqlite_where=sa.text("status IN ('running', 'paused')"),
        postgresql_where=sa.text("status IN ('running', 'paused')"),
    )
    op.drop_table("tasks")
    op.drop_index("ix_runs_task", table_name="runs")
    op.drop_index(op.f("ix_runs_session_id"), table_name="runs")
    op.drop_table("runs")
    op.drop_index(op.f("ix_responders_session_id"), table_name="responders")
    op.drop_table("responders")
    op.drop_index(
        "ix_commands_open",
        table_name="commands",
        sqlite_where=sa.text("is_ended = 0"),
        postgresql_where=sa.text("is_ended = 0"),
    )
    op.drop_table("commands")
    op.drop_index(
        "ix_workers_alive",
        table_name="workers",
        sqlite_where=sa.text("state <> 'gone'"),
        postgresql_where=sa.text("state <> 'gone'"),
    )
    op.drop_table("workers")
    op.drop_table("surfaces")
    op.drop_table("signing_keys")
    op.drop_index(
        "ix_sessions_owner",
        table_name="sessions",
        sqlite_where=sa.text("is_closed = 0"),
        postgresql_where=sa.text("is_closed = 0"),
    )
    op.drop_index("ix_sessions_last_claimed", table_name="sessions")
    op.drop_table("sessions")
    op.drop_table("owners")
    op.drop_table("nodes")
    op.drop_table("events")
    op.drop_index("ix_edges_parent", table_name="edges")
    op.drop_table("edges")
    op.drop_table("consumptions")
    op.drop_table("caps")
    op.drop_table("artifacts")
