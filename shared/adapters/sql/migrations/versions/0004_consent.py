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
    _make_api_tokens()


def downgrade() -> None:
    _drop_parking()
    op.drop_table("api_tokens")


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
    _index_ready("is_unparked DESC", "priority DESC")
    where = sa.text(_BLOCKED)
    op.create_index("ix_steps_blocked", "steps", ["session_id"], sqlite_where=where, postgresql_where=where)


def _drop_parking() -> None:
    op.drop_index("ix_steps_blocked", table_name="steps")
    _index_ready("priority DESC")
    op.drop_column("steps", "is_unparked")


def _index_ready(*order: str) -> None:
    where = sa.text(_READY)
    op.drop_index("ix_steps_ready", table_name="steps")
    columns = ["lane", *map(sa.text, order), "ordinal"]
    op.create_index("ix_steps_ready", "steps", columns, sqlite_where=where, postgresql_where=where)
