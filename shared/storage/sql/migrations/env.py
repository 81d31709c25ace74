"""Runs migrations on the connection that :mod:`soong.shared.storage.sql.engine.schema` hands in, inside its
transaction.
"""

from alembic import context

from soong.shared.storage.sql.engine.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    # SQLite alters a table by writing it anew.
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
