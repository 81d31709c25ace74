"""Consent that waits for people, and who may speak for them: what the rows must say beyond one process.

Columns with a default and tables of their own; on SQLite a table is written anew only where a check changes.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


_READY = "status = 'ready' AND is_paused = 0"
_BLOCKED = "status = 'blocked'"


def upgrade() -> None:
    _add_parking()
    _add_claim_modes()
    _replace_command_kinds("'complete', 'fail', 'dispatch'")
    _make_api_tokens()
    _make_key_retirements()
    _make_audit()
    op.add_column("workers", sa.Column("credential", sa.Text(), server_default="", nullable=False))
    op.create_index("ix_workers_credential", "workers", ["credential"])
    where = sa.text("state <> 'gone'")
    op.create_index("ix_owners_alive", "owners", ["ordinal"], sqlite_where=where, postgresql_where=where)
    _index_caps()
    _add_recorded()
    op.add_column("sessions", sa.Column("project_id", sa.Text(), server_default="", nullable=False))
    # Last: where SQLite writes the table anew, indexes come back without their order.
    _index_ready("is_unparked DESC", "priority DESC")


def downgrade() -> None:
    op.drop_column("sessions", "project_id")
    op.drop_index("ix_tasks_unrecorded", table_name="tasks")
    op.drop_column("tasks", "is_recorded")
    op.drop_index("ix_workers_credential", table_name="workers")
    op.drop_column("workers", "credential")
    op.drop_index("ix_caps_standing", table_name="caps")
    op.drop_index("ix_owners_alive", table_name="owners")
    _replace_command_kinds("'complete', 'fail'")
    _drop_claim_modes()
    _drop_parking()
    for table in ("api_tokens", "key_retirements", "audit", "reports"):
        op.drop_table(table)


def _make_key_retirements() -> None:
    """When a public key ended: for what is signed from then on, or for all that was signed with it."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "key_retirements",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("is_revoked", number, nullable=False),
        sa.Column("retired_us", number, nullable=False),
        sa.Column("principal", sa.Text(), server_default="", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.CheckConstraint("is_revoked IN (0, 1)", name=op.f("ck_key_retirements_is_revoked")),
        sa.ForeignKeyConstraint(["key_id"], ["signing_keys.id"], name=op.f("fk_key_retirements_key_id")),
        sa.PrimaryKeyConstraint("key_id", "is_revoked", name=op.f("pk_key_retirements")),
    )


def _make_audit() -> None:
    """The audit log in its chains, and what workers leave for it."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "audit",
        sa.Column("ordinal", number, autoincrement=True, nullable=False),
        sa.Column("chain", sa.Text(), nullable=False),
        sa.Column("number", number, nullable=False),
        sa.Column("time_us", number, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), server_default="", nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("previous", sa.Text(), server_default="", nullable=False),
        sa.Column("beside", sa.Text(), server_default="", nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("ordinal", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_chain", "audit", ["chain", "number"], unique=True)
    op.create_index("ix_audit_session", "audit", ["session_id", "ordinal"])
    op.create_table(
        "reports",
        sa.Column("ordinal", number, autoincrement=True, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("time_us", number, nullable=False),
        sa.Column("is_taken", number, server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint("is_taken IN (0, 1)", name=op.f("ck_reports_is_taken")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_reports_run_id")),
        sa.PrimaryKeyConstraint("ordinal", name=op.f("pk_reports")),
    )
    where = sa.text("is_taken = 0")
    op.create_index("ix_reports_new", "reports", ["ordinal"], sqlite_where=where, postgresql_where=where)


def _make_api_tokens() -> None:
    """Who may use the HTTP API: digests of secrets, and the rights that they carry."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "api_tokens",
        sa.Column("ordinal", number, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("rights", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("created_us", number, server_default=sa.text("0"), nullable=False),
        sa.Column("expires_us", number),
        sa.Column("revoked_us", number),
        sa.CheckConstraint("length(digest) = 64", name=op.f("ck_api_tokens_digest")),
        sa.PrimaryKeyConstraint("ordinal", name=op.f("pk_api_tokens")),
        sa.UniqueConstraint("id", name=op.f("uq_api_tokens_id")),
    )


def _add_parking() -> None:
    """Whether a ready step was parked: such ones are claimed before what has not begun."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    with op.batch_alter_table("steps") as steps:
        steps.add_column(sa.Column("is_unparked", number, server_default=sa.text("0"), nullable=False))
    where = sa.text(_BLOCKED)
    op.create_index("ix_steps_blocked", "steps", ["session_id"], sqlite_where=where, postgresql_where=where)


def _drop_parking() -> None:
    op.drop_index("ix_steps_blocked", table_name="steps")
    _index_ready("priority DESC")
    op.drop_column("steps", "is_unparked")


def _add_claim_modes() -> None:
    """Who may claim a step, whether it stands for a run that claims others, and which run holds it beside its own."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    with op.batch_alter_table("steps") as steps:
        steps.add_column(sa.Column("claim_mode", sa.Text(), server_default="assigned", nullable=False))
        steps.add_column(sa.Column("is_puller", number, server_default=sa.text("0"), nullable=False))
        steps.add_column(sa.Column("holder_run_id", sa.Text(), server_default="", nullable=False))
    where = sa.text("holder_run_id <> ''")
    op.create_index("ix_steps_holder", "steps", ["holder_run_id"], sqlite_where=where, postgresql_where=where)
    where = sa.text("holder_run_id <> '' AND status IN ('claimed', 'running')")
    op.create_index("ix_steps_further", "steps", ["holder_run_id"], sqlite_where=where, postgresql_where=where)


def _replace_command_kinds(last: str) -> None:
    """What a client may ask of a session's owner; the table is small whatever has run."""
    condition = f"kind IN ('pause', 'resume', 'cancel', 'retry', 'close', 'update', {last})"
    with op.batch_alter_table("commands") as commands:
        commands.drop_constraint(op.f("ck_commands_kind"), type_="check")
        commands.create_check_constraint(op.f("ck_commands_kind"), sa.text(condition))


def _drop_claim_modes() -> None:
    op.drop_index("ix_steps_further", table_name="steps")
    op.drop_index("ix_steps_holder", table_name="steps")
    for column in ("holder_run_id", "is_puller", "claim_mode"):
        op.drop_column("steps", column)


def _add_recorded() -> None:
    """Whether a task's run folders are written; those of tasks that are over have been, as well as they could be."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    over = "status IN ('completed', 'failed', 'cancelled')"
    op.add_column("tasks", sa.Column("is_recorded", number, server_default=sa.text("0"), nullable=False))
    op.execute(f"UPDATE tasks SET is_recorded = 1 WHERE {over}")  # noqa: S608  # our own words
    where = sa.text(f"is_recorded = 0 AND {over}")
    op.create_index("ix_tasks_unrecorded", "tasks", ["ordinal"], sqlite_where=where, postgresql_where=where)


def _index_caps() -> None:
    """The caps that are no session's: all that a claim has to read beside those of the sessions that wait."""
    where = sa.text("substr(scope, 1, 8) <> 'session:'")
    op.create_index("ix_caps_standing", "caps", ["scope"], sqlite_where=where, postgresql_where=where)


def _index_ready(*order: str) -> None:
    where = sa.text(_READY)
    op.drop_index("ix_steps_ready", table_name="steps")
    columns: list[str | sa.TextClause] = ["lane", *map(sa.text, order), "ordinal"]
    op.create_index("ix_steps_ready", "steps", columns, sqlite_where=where, postgresql_where=where)
