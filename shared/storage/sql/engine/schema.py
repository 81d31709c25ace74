"""Which schema a database has, and bringing it to ours."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError, SchemaVersionError
from soong.shared.storage.sql.engine.engine import driver_error, make_engine, our_errors, refuse_network_file_system
from soong.shared.storage.sql.engine.write_ahead_log import write_lock

HEAD: Final = "0001_22f050f3"
"""The revision this program was written for. Its number, and until the first release a digest of what the one migration
makes, which is still edited: a database that an earlier form of it made differs from ours."""

MIGRATIONS: Final = Path(__file__).parents[1] / "migrations"
_NEW_FILE: Final = """
PRAGMA journal_mode=WAL;
BEGIN IMMEDIATE;
CREATE TABLE alembic_version (version_num VARCHAR(32) CONSTRAINT alembic_version_pkc PRIMARY KEY NOT NULL);
{made}
INSERT INTO alembic_version VALUES ('{head}');
COMMIT;
"""
_NOT_ALLOWED: Final = "42501"  # PostgreSQL's insufficient_privilege
_LOCK_ID: Final = 7_266_110_103  # any number, the same for all of ours


def prepare(url: URL, *, migrate: bool) -> None:
    """Make sure the database has our schema, creating or migrating it when ``migrate``.
    Raises: SchemaVersionError, it has another, and it is newer, or ``migrate`` is off, or our role may not migrate;
    InvalidConfigError, the file cannot be made or lies on a network file system; UnavailableError, the database does
    not answer.
    """
    if url.get_backend_name() == "sqlite":
        _prepare_file(Path(url.database or ""), may_create=migrate)
        if _is_current(url) or (migrate and _create(url)):
            return
    with our_errors(), _connection(url) as connection:
        found = current(connection)
        if found == HEAD:
            return
        if _is_development(found) or not migrate or (found is not None and found > HEAD):
            raise SchemaVersionError(_explain(found))
        try:
            upgrade(connection)
        except DBAPIError as error:
            if getattr(driver_error(error), "sqlstate", None) != _NOT_ALLOWED:
                raise
            raise SchemaVersionError(
                f"the database has schema {found or 'none'}, this program's is {HEAD}, and this role may not change "
                "it; run `soong migrate` as the owner of the tables"
            ) from error


def script(database: str) -> str:
    """Return the statements that make everything in an empty database."""
    return (MIGRATIONS / f"{database}.sql").read_text(encoding="utf-8")


def current(connection: Connection) -> str | None:
    """Return the database's revision; None when it has none."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def _is_development(found: str | None) -> bool:
    """Say whether a schema has the number of ours and was made by an earlier form of its migration."""
    return found is not None and found != HEAD and found.partition("_")[0] == HEAD.partition("_")[0]


def _explain(found: str | None) -> str:
    if _is_development(found):
        return (
            f"the database was made by a development version of this program: its schema is {found}, ours {HEAD}, and "
            "no migration leads from one to the other; use another home (SOONG_AGENT_HOME) or another database, and "
            "read this one with the version that made it"
        )
    if found is None:
        return "the database has no schema yet; start the service (`soong up`), which makes it"
    what = "newer" if found > HEAD else "older"
    hint = "upgrade this program" if found > HEAD else "restart the service (`soong up`), which migrates it"
    return f"the database has schema {found}, {what} than this program's {HEAD}; {hint}"


def _prepare_file(path: Path, *, may_create: bool) -> None:
    refuse_network_file_system(path)
    if not may_create:
        if not path.exists():
            raise SchemaVersionError(f"there is no database at {path}; start the service (`soong up`), which makes it")
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Runs' tokens stand in it: nobody else may read it.
        path.touch(mode=0o600)
    except OSError as error:
        raise InvalidConfigError(f"the database file {path} cannot be made: {error.strerror}") from error


def _is_current(url: URL) -> bool:
    """Say whether an SQLite file has our schema, without its lock: a stopped process may hold that."""
    try:
        with closing(_opened(url)) as connection:
            return (HEAD,) in connection.execute("SELECT version_num FROM alembic_version").fetchall()
    except sqlite3.Error:
        return False  # just being made, perhaps; whoever holds the lock is told what is wrong


def _create(url: URL) -> bool:
    """Make everything in an SQLite file that has nothing yet; say whether that was done.

    Alembic would make the same and take half a second of CPU, most of it to be imported. A file that is not empty or
    cannot be written is left to it: it raises the problem.
    """
    lock = write_lock(url)
    try:
        with lock.held() if lock else nullcontext(), closing(_opened(url)) as connection:
            if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None:
                return False
            connection.executescript(_NEW_FILE.format(made=script("sqlite"), head=HEAD))
    except sqlite3.Error:
        return False
    finally:
        if lock is not None:
            lock.close()
    return True


def _opened(url: URL) -> sqlite3.Connection:
    """Open a file that exists, by the driver alone: an engine of its own costs a process that starts 11 ms of CPU."""
    name = f"{Path(url.database or '').as_uri()}?mode=rw"
    return sqlite3.connect(name, uri=True, timeout=timing.PATIENCE_S)


@contextmanager
def _connection(url: URL) -> Iterator[Connection]:
    """A connection for one process at a time: two that start together migrate one after the other."""
    engine = make_engine(url, size=1, is_writer=True)
    lock = write_lock(url)
    try:
        with lock.held() if lock else nullcontext(), engine.connect() as connection, connection.begin():
            if lock is None:
                # A migration holds nobody's steps, and may be busy with itself between two statements.
                connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = '60s'"))
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK_ID})"))
            yield connection
    finally:
        engine.dispose()
        if lock is not None:
            lock.close()


def upgrade(connection: Connection) -> None:
    """Run the migrations that the database has not had yet."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
