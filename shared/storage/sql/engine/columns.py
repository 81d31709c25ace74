"""Columns and constraints that many tables have. Instants are integer microseconds (``_us``), truth is 0 or 1."""

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    event,
    text,
)

MAX_COUNT: Final = 2**53 - 1
"""Of counts, and of instants in microseconds (the year 2255): what JSON readers and digests take (RFC 7493)."""

_BY_DIALECT: Final = "by_dialect"
_ON_POSTGRES: Final = "on_postgres"

Big = BigInteger().with_variant(Integer(), "sqlite")


def ordinal_column() -> Column[int]:
    return Column("ordinal", Big, primary_key=True, autoincrement=True)


def id_column() -> Column[str]:
    return Column("id", Text, nullable=False, unique=True)


def text_column(name: str, default: str | None = "") -> Column[str]:
    return Column(name, Text, nullable=False, server_default=default)


def number_column(name: str, default: int | None = 0) -> Column[int]:
    return Column(name, Big, nullable=False, server_default=None if default is None else text(str(default)))


def instant_column(name: str) -> Column[int]:
    return Column(name, Big)


def one_of(column: str, values: Iterable[str]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(str(value)) for value in values)})", name=column)


def flag(column: str) -> CheckConstraint:
    return CheckConstraint(f"{column} IN (0, 1)", name=column)


def ranges(name: str, *columns: str) -> CheckConstraint:
    """Check that counts and instants are such as readers take and arithmetic does not overflow."""
    return CheckConstraint(" AND ".join(f"{column} BETWEEN 0 AND {MAX_COUNT}" for column in columns), name=name)


def sqlite_checks(*checks: CheckConstraint) -> tuple[CheckConstraint, ...]:
    """Leave checks of a table that every step changes to SQLite, which compiles them with the statement.

    PostgreSQL reads and compiles their text again for each execution, a quarter of the time of a chain's hop. There the
    row checks of the database roles have them (:func:`checks_of`, docs/decisions/0046).
    """
    return tuple(check.ddl_if(dialect="sqlite") for check in checks)


def checks_of(table: Table) -> str:
    """Return all checks of a table as one condition, which is not false for what they accept."""
    texts = sorted(f"({one.sqltext})" for one in table.constraints if isinstance(one, CheckConstraint))
    return f"({' AND '.join(texts)}) IS NOT FALSE"


def where(condition: str) -> dict[str, Any]:
    """Make an index partial."""
    return by_dialect(sqlite_where=text(condition), postgresql_where=text(condition))


def by_dialect(**options: object) -> dict[str, Any]:
    """Return options of a table or an index that :func:`add_dialect_options` gives to SQLAlchemy.

    Given at once they would load both dialects with the modules of every driver, in each process.
    """
    return {"info": {_BY_DIALECT: options}}


def known_by(constraint: str, table: str) -> dict[str, Any]:
    """Return what a table's ``info`` gets so that PostgreSQL identifies its rows by a unique constraint alone.

    Its ordinal, the row id of SQLite, then has no index there, which would get an entry for each version of a row.
    """
    dropped = f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS pk_{table}"
    return {_ON_POSTGRES: (dropped, f"ALTER TABLE {table} REPLICA IDENTITY USING INDEX {constraint}")}


def add_dialect_options(metadata: MetaData) -> None:
    """Complete the tables for the code that creates or compares them: programs only query what a migration made."""
    for table in metadata.tables.values():
        items: tuple[Table | Index, ...] = (table, *table.indexes)
        for item in items:
            for name, value in item.info.get(_BY_DIALECT, {}).items():
                item.dialect_kwargs[name] = value
        if _ON_POSTGRES in table.info:
            event.listen(table, "after_create", _change_on_postgres)


def _change_on_postgres(table: Table, connection: Connection, **_: object) -> None:
    if connection.dialect.name == "postgresql":
        for statement in table.info[_ON_POSTGRES]:
            connection.exec_driver_sql(statement)
