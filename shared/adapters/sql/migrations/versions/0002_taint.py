"""What a run has read, and what a person said beside an answer.

Plain columns with a default: no table is written anew, whatever its size.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("runs") as runs:
        runs.add_column(
            sa.Column(
                "is_tainted",
                sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
                server_default=sa.text("0"),
                nullable=False,
            )
        )
    with op.batch_alter_table("answers") as answers:
        answers.add_column(sa.Column("metadata", sa.Text(), server_default="{}", nullable=False))


def downgrade() -> None:
    op.drop_column("answers", "metadata")
    op.drop_column("runs", "is_tainted")
