"""Consent that waits for people, and who may speak for them: what the rows must say beyond one process.

Columns with a default and tables of their own; on SQLite a table is written anew only where a check changes.
"""

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add nothing yet."""


def downgrade() -> None:
    """Take nothing away yet."""
