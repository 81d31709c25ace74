"""Engines for the two databases: URLs, pragmas, session settings, and foreign errors turned into ours.

SQLite: write-ahead log, synchronous FULL (a reported commit survives a power cut; a claim alone does not have to, see
:meth:`soong.shared.storage.sql.engine.database.Database.write`), and our own lock around every write transaction
(:mod:`soong.shared.storage.sql.engine.write_ahead_log`).
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import QueuePool

from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError, SoongError, UnavailableError, UsageError
from soong.shared.core.file_systems import MOUNTS, NETWORK_FILE_SYSTEMS, file_system_of
from soong.shared.core.jsontext import EXPECTED, fault
from soong.shared.storage.sql.engine.pooler import CONNECT_PARAMETERS, CREDENTIAL, keep_settings, require_own_process

_PLANNING: Final = {
    # Our statements each have their index. The planner would not use it for a table that was empty a second ago,
    # and would keep that plan while the table grows.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # Planned once: planning the fused statements anew takes longer than executing them.
    "plan_cache_mode": "force_generic_plan",
    # The cost of a plan is its number of rows: all of them are in memory, and a plan made for a table of a few pages
    # must also be the right one when it has grown.
    "random_page_cost": "0",
    "seq_page_cost": "0",
    "cpu_tuple_cost": "1",
    "cpu_index_tuple_cost": "1",
    "cpu_operator_cost": "0.0001",
    "jit": "off",
}
_POSTGRES_SETTINGS: Final = {
    **_PLANNING,
    # The isolation of single-statement transactions.
    "default_transaction_isolation": "read committed",
    # A process that is frozen or cut off in the middle of a transaction must have lost its locks by the time at which
    # others take over what it held (``lease_s``, 20 s).
    "idle_in_transaction_session_timeout": "5s",
    "lock_timeout": "30s",
    "tcp_keepalives_idle": "30",
    # A reported commit is on the disk. Workers share a role, and each can change the role's defaults.
    "synchronous_commit": "on",
    "statement_timeout": "0",
}
_READER_SETTINGS: Final = {**_PLANNING, "default_transaction_read_only": "on", "statement_timeout": "0"}

TOO_SILENT: Final = "25P03"
"""The SQLSTATE of a transaction that PostgreSQL undid because its process sent nothing for longer than
``idle_in_transaction_session_timeout``: it was stopped, or computes for too long between statements."""
UNDONE: Final = frozenset({"40001", "40P01", TOO_SILENT})
"""The SQLSTATEs of a transaction that PostgreSQL undid for the sake of others: a conflict, a deadlock, silence."""


_UNSTORABLE: Final = frozenset({"22021", "22P05"})
"""The SQLSTATEs of text that the encoding lacks."""


_LOST_STATEMENT: Final = frozenset({"26000", "42P05"})
"""The SQLSTATEs of a prepared statement that is unknown, or exists already. On a connection with a server process of
its own neither happens; on a new one it does not happen again."""

_LOST_HINT: Final = "a connection pooler may have begun to share server processes: run `soong doctor`"


def parse_url(url: str) -> URL:
    """Return the URL of one of the two databases, with the driver that we use.
    Raises: InvalidConfigError, another database, or an SQLite file named by a relative path.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidConfigError(f"SOONG_DATABASE_URL is not a database URL: {error}") from error
    match parsed.get_backend_name():
        case "postgresql":
            if "options" in parsed.query:
                raise InvalidConfigError(
                    f"SOONG_DATABASE_URL has options={parsed.query['options']!r}, which poolers drop; "
                    "set them for the role instead: ALTER ROLE … SET …"
                )
            return parsed.set(drivername="postgresql+psycopg")
        case "sqlite":
            if not parsed.database or not Path(parsed.database).is_absolute():
                raise InvalidConfigError(
                    "an SQLite database is a file named by its absolute path: sqlite:////path/soong.db"
                )
            return parsed.set(drivername="sqlite", query={})
        case other:
            raise InvalidConfigError(
                f"databases of kind {other!r} are not supported; use sqlite:////path or postgresql://"
            )


def refuse_network_file_system(path: Path, mounts: Path = MOUNTS) -> None:
    """Raise InvalidConfigError when the file lies where locks and shared memory do not work between hosts."""
    kind = file_system_of(path.parent, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise InvalidConfigError(
            f"{path} lies on a network file system ({kind}), where SQLite loses data; "
            "set SOONG_AGENT_HOME to a local folder or SOONG_DATABASE_URL to a PostgreSQL server"
        )


def make_engine(url: URL, *, size: int, is_writer: bool, credential: str = "") -> Engine:
    """Return an engine with at most ``size`` connections. A reader's transactions change nothing and see one state.

    ``credential`` identifies a worker's process to row checks (PostgreSQL only).
    """
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url, size, is_writer=is_writer)
    return _postgres_engine(url, size, is_writer=is_writer, credential=credential)


class SqliteFile:
    """An SQLite database by its file. One that was taken away is noticed.

    It would be written on as if nothing had happened, and all of that lost; a new connection would make an empty one,
    which passes for a database that has forgotten everything.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ours = self._found()

    def open(self) -> sqlite3.Connection:
        """Return a connection. Transactions are begun by us; it may move between our threads, one at a time."""
        self.check()
        name = f"{self._path.as_uri()}?mode=rw"
        return sqlite3.connect(
            name,
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=timing.PATIENCE_S,
            cached_statements=512,
        )

    def check(self) -> None:
        """Raises: sqlite3.OperationalError when the file is not the one that it was."""
        found = self._found()
        self._ours = self._ours or found
        if found != self._ours or found is None:
            what = "replaced by another" if found else "removed"
            raise sqlite3.OperationalError(f"the file {self._path} was {what}; put it back, or restart what uses it")

    def _found(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino


def _sqlite_engine(url: URL, size: int, *, is_writer: bool) -> Engine:
    file = SqliteFile(Path(url.database or ""))
    engine = create_engine(url, creator=file.open, poolclass=QueuePool, pool_size=size, max_overflow=0)
    begin = "BEGIN IMMEDIATE" if is_writer else "BEGIN"

    @event.listens_for(engine, "connect")
    def set_pragmas(connection: sqlite3.Connection, _record: object) -> None:
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            "temp_store=MEMORY",
            "cache_size=-16000",
            "secure_delete=OFF",
            "journal_size_limit=67108864",
            f"query_only={'OFF' if is_writer else 'ON'}",
        ):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        file.check()
        pooled: Any = connection.connection.dbapi_connection
        pooled.execute(begin)

    return engine


def _postgres_engine(url: URL, size: int, *, is_writer: bool, credential: str) -> Engine:
    settings = _POSTGRES_SETTINGS if is_writer else _READER_SETTINGS
    if credential and is_writer:
        settings = {**settings, CREDENTIAL: credential}
    engine = create_engine(
        url,
        pool_size=size,
        max_overflow=0,
        isolation_level="READ COMMITTED" if is_writer else "REPEATABLE READ",
        # Prepared statements are the wire's: the driver, when it prepares as well, drops all of them at each rollback.
        connect_args={**CONNECT_PARAMETERS, "prepare_threshold": None},
    )

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: object, _record: object, arguments: Sequence[Any], parameters: dict[str, Any]) -> Any:
        from soong.shared.storage.sql.engine.postgres_wire import WiredConnection

        require_own_process(url)
        connection = WiredConnection.connect(*arguments, **parameters)
        connection.is_reader = not is_writer
        return connection

    @event.listens_for(engine, "connect")
    def set_settings(connection: Any, _record: object) -> None:
        try:
            keep_settings(connection, settings)
        except Exception:
            connection.close()
            raise

    return engine


def discard(connection: Connection | None) -> None:
    """Close a connection and its place in the pool, whatever state it is in."""
    if connection is not None:
        with suppress(Exception):  # it is being thrown away
            connection.invalidate()
            connection.close()


@contextmanager
def our_errors() -> Iterator[None]:
    """Turn what a driver raises about the database's reach into UnavailableError; let everything else through."""
    try:
        yield
    except SoongError:
        raise
    except Exception as error:
        if (ours := as_ours(error)) is None:
            raise
        raise ours from error


def as_ours(error: BaseException) -> SoongError | None:
    """Return our error for what a driver raises about the database's reach, or a text that it takes none of."""
    ours: SoongError | None = None
    if is_unavailable(error):
        ours = UnavailableError(f"the database did not answer: {first_line(error)}")
    elif is_unstorable(error):
        found = driver_error(error)
        shown = fault(str(found.object)) if isinstance(found, UnicodeEncodeError) else first_line(error)
        ours = UsageError(f"the database cannot store a text that it was given: {shown}; expected {EXPECTED}")
    if ours is not None:
        ours.__cause__ = error
    return ours


def is_unavailable(error: BaseException) -> bool:
    """Say whether the database, not the statement, is to blame."""
    found = driver_error(error)
    if getattr(found, "sqlstate", None) in _LOST_STATEMENT:
        return True
    if isinstance(found, sqlite3.OperationalError):
        return not str(found).startswith(("no such", "near "))
    if isinstance(found, sqlite3.DatabaseError):
        return type(found) is sqlite3.DatabaseError
    import psycopg

    gone = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.IdleInTransactionSessionTimeout)
    return isinstance(found, gone)


class StaleReadError(Exception):
    """Raised in a transaction that waited for another and had read, before that one's commit, what it had to see."""

    sqlstate = "40001"
    """A serialization failure, as the server would call it at a higher isolation level (PostgreSQL, appendix A)."""


def is_unstorable(error: BaseException) -> bool:
    """Say whether the database or its driver takes no such text: NUL (PostgreSQL alone), a lone surrogate."""
    found = driver_error(error)
    if isinstance(found, UnicodeEncodeError):
        return True
    return getattr(found, "sqlstate", None) in _UNSTORABLE or (
        type(found).__name__ == "DataError" and "NUL (0x00)" in str(found)
    )


def is_conflict(error: BaseException) -> bool:
    """Say whether the database undid the transaction in favour of another: the same again will do."""
    return getattr(driver_error(error), "sqlstate", None) in UNDONE


def is_too_silent(error: BaseException) -> bool:
    """Say whether the database ended the transaction because this process sent nothing for too long."""
    return getattr(driver_error(error), "sqlstate", None) == TOO_SILENT


def is_refused(error: BaseException) -> bool:
    """Say whether a server's answer to a commit means that it was not done: on PostgreSQL an error that leaves the
    connection open.
    """
    diagnosis = getattr(driver_error(error), "diag", None)
    return getattr(diagnosis, "severity_nonlocalized", None) == "ERROR"


def driver_error(error: BaseException) -> BaseException:
    """Return what the driver raised, without SQLAlchemy's wrapping."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def first_line(error: BaseException) -> str:
    found = driver_error(error)
    text = str(found).strip()
    line = text.splitlines()[0] if text else type(error).__name__
    return f"{line}; {_LOST_HINT}" if getattr(found, "sqlstate", None) in _LOST_STATEMENT else line
