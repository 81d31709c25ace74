"""Everything that the first version stores, in one script for each database (``python -P -m tests.schema_scripts``)."""

from alembic import op

from soong.shared.storage.sql.engine.schema import HEAD, script

revision = HEAD
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    connection = op.get_bind()
    for statement in script(connection.dialect.name).split(";\n"):
        if statement.strip():
            connection.exec_driver_sql(statement)
