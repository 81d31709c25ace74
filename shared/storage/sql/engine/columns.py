"""Columns, each in one line: name, type, default, and what a worker may write into it.

Tables, their checks, a worker's rights and the row checks of its role are made of these lines. A column that names
nothing else is never a worker's to write. Instants are integer microseconds (``_us``), truth is 0 or 1, documents are
JSON text.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    ScalarSelect,
    Table,
    Text,
    event,
    select,
    text,
)

MAX_COUNT: Final = 2**53 - 1
"""Maximum of counts, and of instants in microseconds (the year 2255): JSON readers and digests take it (RFC 7493)."""
MAX_CHARS: Final = 64 * 1024 * 1024
"""Length of a document: no input, output or message of ours is larger."""
MAX_TEXT_CHARS: Final = 1_000_000
"""Length of an error, a report, a progress."""
MAX_WORD_CHARS: Final = 10_000
"""Length of a name, an id, a digest, or a worker's list of pools or capabilities."""

MAKES: Final = ("INSERT",)
MOVES: Final = ("UPDATE",)
WRITES: Final = (*MAKES, *MOVES)
"""The rights of a worker on a column; none without a mark."""

Big: Final = BigInteger().with_variant(Integer(), "sqlite")

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Verbs = tuple[str, ...]


def ordinal() -> Column[int]:
    return Column("ordinal", Big, primary_key=True, autoincrement=True)


def identifier(worker: Verbs = ()) -> Column[str]:
    return word("id", None, worker=worker, unique=True)


def reference(name: str, to: str, *, worker: Verbs = (), **options: Any) -> Column[str]:
    """A column with the id of a row of another table."""
    return word(name, None, ForeignKey(to), worker=worker, **options)


def key(name: str, *, worker: Verbs = ()) -> Column[str]:
    return word(name, None, worker=worker, primary_key=True)


def word(
    name: str,
    default: str | None = "",
    *constraints: ForeignKey,
    worker: Verbs = (),
    most: int = MAX_WORD_CHARS,
    is_null: bool = False,
    **options: Any,
) -> Column[str]:
    """A column with text; ``most`` is how much of it a worker may write."""
    limit = f"({{0}} IS NULL OR ({_within(most)}))" if is_null else _within(most)
    info = {"form": "word", "worker": worker, "limit": limit}
    default = None if is_null else default
    return Column(name, Text, *constraints, nullable=is_null, server_default=default, info=info, **options)


def choice(
    name: str, words: type[StrEnum], default: str | None = None, *, worker: Verbs = (), is_null: bool = False
) -> Column[str]:
    """A column with one of some words."""
    check = f"{name} IN ({', '.join(repr(str(value)) for value in words)})"
    info = {"form": "choice", "worker": worker, "check": check, "words": words}
    return Column(name, Text, nullable=is_null, server_default=default, info=info)


def flag(name: str, default: int | None = 0, *, worker: Verbs = ()) -> Column[int]:
    return _count(name, default, {"form": "flag", "worker": worker, "check": f"{name} IN (0, 1)"})


def number(
    name: str, default: int | None = 0, *, worker: Verbs = (), is_bounded: bool = False, is_null: bool = False
) -> Column[int]:
    """A column with a count; one that is bounded, or a worker's, holds what readers and arithmetic take."""
    info = {"form": "number", "worker": worker, "is_bounded": is_bounded or bool(worker)}
    return Column(name, Big, info=info) if is_null else _count(name, default, info)


def instant(name: str, *, worker: Verbs = (), is_bounded: bool = False) -> Column[int]:
    """A column with an instant, or null."""
    return number(name, worker=worker, is_bounded=is_bounded, is_null=True)


def document(
    name: str,
    default: str | None = "{}",
    *,
    worker: Verbs = (),
    kind: str = "object",
    most: int = MAX_CHARS,
    is_null: bool = False,
    or_empty: bool = False,
) -> Column[str]:
    """A column with JSON text of a ``kind``, any if that is empty; ``or_empty``: or with nothing, as empty text."""
    # A cast of what is not JSON raises, which refuses the statement as a condition that does not hold does.
    limit = f"{_within(most)} AND json_typeof({{0}}::json) " + (f"= '{kind}'" if kind else "<> ''")
    if is_null or or_empty:
        limit = f"{{0}} IS NULL OR ({limit})" if is_null else f"{{0}} = '' OR ({limit})"
    info = {"form": "document", "worker": worker, "limit": limit, "kind": kind, "most": most}
    return Column(name, Text, nullable=is_null, server_default=None if is_null else default, info=info)


def table(name: str, *items: Any, is_hot: bool = False, options: dict[str, Any] | None = None) -> Table:
    """Make a table with the checks of its columns.

    ``is_hot``: every step changes its rows. On PostgreSQL the row checks of the database roles then have its checks
    (:func:`checks_of`, docs/decisions/0046): PostgreSQL reads and compiles those of a table again for each execution, a
    quarter of the time of a chain's hop. SQLite compiles them with the statement.
    """
    columns = [item for item in items if isinstance(item, Column)]
    checks = [CheckConstraint(its.info["check"], name=its.name) for its in columns if its.info.get("check")]
    bounded = [its.name for its in columns if its.info.get("is_bounded")]
    if bounded:
        ranges = " AND ".join(f"{its} BETWEEN 0 AND {MAX_COUNT}" for its in bounded)
        checks.append(CheckConstraint(ranges, name="numbers"))
    checks += [item for item in items if isinstance(item, CheckConstraint)]
    rest = [item for item in items if not isinstance(item, CheckConstraint)]
    if is_hot:
        checks = [check.ddl_if(dialect="sqlite") for check in checks]
    return Table(name, metadata, *rest, *checks, **(options or {}))


def written_by_worker(table: Table, verb: str) -> list[str]:
    """Return the columns that a worker's role may insert or update."""
    return [column.name for column in table.columns if verb in column.info.get("worker", ())]


def type_of(table: Table, name: str) -> str:
    """Return PostgreSQL's type of a column."""
    return "bigint" if isinstance(table.columns[name].type, BigInteger) else "text"


def limits_of(table: Table, verb: str) -> str:
    """Return PostgreSQL's condition that what a worker writes is what readers take; empty where checks say it all.

    Readers do not rely on it (:mod:`soong.shared.storage.sql.engine.row_mapper`).
    """
    columns = (table.columns[name] for name in written_by_worker(table, verb))
    limits = [column.info.get("limit", "").format(f"{table.name}.{column.name}") for column in columns]
    return " AND ".join(f"({limit})" for limit in limits if limit)


def ordinal_of(table: Table, id: str) -> ScalarSelect[int]:
    """Return the place of the row of that id, from which a page of a list continues, whatever was inserted since."""
    return select(table.c.ordinal).where(table.c.id == id).scalar_subquery()


def checks_of(table: Table) -> str:
    """Return all checks of a table as one condition, which is not false for what they accept."""
    texts = sorted(f"({one.sqltext})" for one in table.constraints if isinstance(one, CheckConstraint))
    return f"({' AND '.join(texts)}) IS NOT FALSE"


def partial(name: str, *columns: Any, where: str, is_unique: bool = False) -> Index:
    """Make an index of the rows that meet a condition."""
    only = {"sqlite_where": text(where), "postgresql_where": text(where)}
    return Index(name, *columns, unique=is_unique, **by_dialect(**only))


def by_dialect(**options: object) -> dict[str, Any]:
    """Return options of a table or an index that :func:`add_dialect_options` gives to SQLAlchemy.

    Given at once they would load both dialects with the modules of every driver, in each process.
    """
    return {"info": {"by_dialect": options}}


def known_by(constraint: str, table: str) -> dict[str, Any]:
    """Return what a table's ``info`` gets so that PostgreSQL identifies its rows by a unique constraint alone.

    Its ordinal, the row id of SQLite, then has no index there, which would get an entry for each version of a row.
    """
    dropped = f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS pk_{table}"
    return {"on_postgres": (dropped, f"ALTER TABLE {table} REPLICA IDENTITY USING INDEX {constraint}")}


def add_dialect_options(metadata: MetaData) -> None:
    """Complete the tables for the code that creates or compares them: programs only query what a migration made."""
    for table in metadata.tables.values():
        items: Iterable[Table | Index] = (table, *table.indexes)
        for item in items:
            for name, value in item.info.get("by_dialect", {}).items():
                item.dialect_kwargs[name] = value
        if "on_postgres" in table.info:
            event.listen(table, "after_create", _change_on_postgres)


def _change_on_postgres(table: Table, connection: Connection, **_: object) -> None:
    if connection.dialect.name == "postgresql":
        for statement in table.info["on_postgres"]:
            connection.exec_driver_sql(statement)


def _count(name: str, default: int | None, info: dict[str, Any]) -> Column[int]:
    server_default = None if default is None else text(str(default))
    return Column(name, Big, nullable=False, server_default=server_default, info=info)


def _within(most: int) -> str:
    return f"octet_length({{0}}) <= {most}"
