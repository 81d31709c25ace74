"""Runs migrations on the connection that :mod:`shared.adapters.sql.schema` hands in, inside its transaction."""

from alembic import context

from shared.adapters.sql.tables import metadata

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
