"""More of what a client may ask of a session's owner: to change a task that goes on, and to end one.

Only the table of commands is written anew, on SQLite; it is small whatever has run.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_OLD = "kind IN ('pause', 'resume', 'cancel', 'retry', 'close')"
_NEW = "kind IN ('pause', 'resume', 'cancel', 'retry', 'close', 'update', 'complete', 'fail')"


def upgrade() -> None:
    _replace(_NEW)


def downgrade() -> None:
    _replace(_OLD)


def _replace(condition: str) -> None:
    with op.batch_alter_table("commands") as commands:
        commands.drop_constraint(op.f("ck_commands_kind"), type_="check")
        commands.create_check_constraint(op.f("ck_commands_kind"), sa.text(condition))
