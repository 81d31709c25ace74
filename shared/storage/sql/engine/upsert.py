"""``INSERT … ON CONFLICT``, which SQLAlchemy spells by dialect."""

from importlib import import_module
from typing import Any

from sqlalchemy import Table

from soong.shared.storage.sql.engine.transaction import Transaction


def upsert(tx: Transaction, table: Table) -> Any:  # Insert of either dialect; they share no class
    """Return an insert into the table that knows ``on_conflict_do_…``.

    Only the dialect in use is loaded: PostgreSQL's brings a module for every driver there is.
    """
    dialect = "postgresql" if tx.is_postgres else "sqlite"
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table)
