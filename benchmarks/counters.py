"""What a store's statements cost, counted by the databases themselves: statements, rows, pages.

On PostgreSQL from the statistics of its tables: rows that scans read, and pages of heap and indexes that were asked
for, in memory or not. On SQLite from what its library counts for each connection and prepared statement: steps of its
virtual machine, which stand for rows read, and pages asked of the cache. Python's module hands these out to nobody, so
they are read from the library itself.
"""

import ctypes
import ctypes.util
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import psutil
import psycopg
from sqlalchemy import Engine, event

from soong.shared.storage.sql.engine.postgres_wire import PostgresWire, WiredConnection

_CACHE_HIT: Final = 7  # SQLITE_DBSTATUS_CACHE_HIT
_CACHE_MISS: Final = 8  # SQLITE_DBSTATUS_CACHE_MISS
_FULLSCAN_STEP: Final = 1  # SQLITE_STMTSTATUS_FULLSCAN_STEP
_VM_STEP: Final = 4  # SQLITE_STMTSTATUS_VM_STEP
_RUN: Final = 6  # SQLITE_STMTSTATUS_RUN

_OF_OUR_TABLES: Final = """
    SELECT (SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables)::bigint,
           (SELECT sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read, 0) + coalesce(idx_blks_hit, 0)
                       + coalesce(toast_blks_read, 0) + coalesce(toast_blks_hit, 0)
                       + coalesce(tidx_blks_read, 0) + coalesce(tidx_blks_hit, 0))
            FROM pg_statio_user_tables)::bigint,
           (SELECT sum(seq_tup_read) FROM pg_stat_user_tables)::bigint
"""


class CountersError(RuntimeError):
    """This database, or this Python, cannot be asked."""


class Reading(NamedTuple):
    """Counters from the beginning on. ``scanned`` are rows that were read without an index."""

    statements: int = 0
    rows: int = 0
    pages: int = 0
    scanned: int = 0

    def since(self, before: "Reading") -> "Reading":
        return Reading(*(now - then for now, then in zip(self, before, strict=True)))

    def and_also(self, other: "Reading") -> "Reading":
        return Reading(*(one + another for one, another in zip(self, other, strict=True)))


class Counters(Protocol):
    """Counts for one store."""

    def read(self) -> Reading:
        """Return what has been counted so far; nothing may be under way. Raises: CountersError."""
        ...

    def cpu_s(self) -> float:
        """Return the CPU seconds of this process and of those that the database has for the store's connections."""
        ...


@dataclass(slots=True)
class Watch:
    """The drivers' connections that a store has opened, and how many statements PostgreSQL was sent by them."""

    database: str
    connections: list[Any] = field(default_factory=list)
    sent: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def tell(self) -> None:
        """Count one statement; the connections are used by threads of one process."""
        self.sent = next(self._numbers)


@contextmanager
def watching(database: str) -> Iterator[Watch]:
    """Watch every connection to that database (its name, or its file) which is opened meanwhile, while it lives."""
    watch = Watch(database)

    class ToldCursor(_ToldCursor):
        teller = watch

    class ToldWire(_ToldWire):
        teller = watch

    def remember(connection: Any, _record: object) -> None:
        if _database_of(connection) != database:
            return
        if isinstance(connection, WiredConnection):
            connection.cursor_factory = ToldCursor
            connection.wire = ToldWire(connection)
        watch.connections.append(connection)

    event.listen(Engine, "connect", remember)
    try:
        yield watch
    finally:
        event.remove(Engine, "connect", remember)


def _database_of(connection: Any) -> str:
    if isinstance(connection, psycopg.Connection):
        return connection.info.dbname
    return str(connection.execute("PRAGMA database_list").fetchone()[2])


class _ToldCursor(psycopg.Cursor[Any]):
    """Tells its watch of every statement."""

    teller: Watch

    def execute(self, *given: Any, **named: Any) -> Any:
        self.teller.tell()
        return super().execute(*given, **named)


class _ToldWire(PostgresWire):
    """Tells its watch of every statement."""

    teller: Watch

    def execute(self, *given: Any, **named: Any) -> Any:
        self.teller.tell()
        return super().execute(*given, **named)


@dataclass(frozen=True, slots=True)
class PostgresCounters:
    """Of the database at ``url``, a plain one of the driver's."""

    url: str
    watch: Watch

    def read(self) -> Reading:
        for connection in self.watch.connections:
            if not connection.closed:
                # A server process hands its figures in when it is idle, and at once only if it is asked to.
                connection.wire.settle()
                psycopg.Cursor(connection).execute("SELECT pg_stat_force_next_flush()")
                connection.rollback()
        with psycopg.connect(self.url, autocommit=True) as reader:
            row = reader.execute(_OF_OUR_TABLES).fetchone()
        if row is None or row[0] is None:
            raise CountersError("the server keeps no statistics: track_counts is off")
        return Reading(self.watch.sent, *map(int, row))

    def cpu_s(self) -> float:
        servers = [connection.info.backend_pid for connection in self.watch.connections if not connection.closed]
        return time.process_time() + sum(map(_cpu_s, servers))


def sqlite_library() -> ctypes.CDLL:
    """Return the library that Python's module uses. Raises: CountersError when it is built into the module."""
    name = ctypes.util.find_library("sqlite3")
    if name is None:
        raise CountersError("there is no SQLite library beside Python's own module")
    library = ctypes.CDLL(name)
    library.sqlite3_libversion.restype = ctypes.c_char_p
    if library.sqlite3_libversion().decode() != sqlite3.sqlite_version or not _is_loaded(name):
        raise CountersError(f"Python's SQLite {sqlite3.sqlite_version} is another one than {name}")
    library.sqlite3_next_stmt.restype = ctypes.c_void_p
    library.sqlite3_next_stmt.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    library.sqlite3_stmt_status.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    library.sqlite3_sql.restype = ctypes.c_char_p
    library.sqlite3_sql.argtypes = (ctypes.c_void_p,)
    pointer = ctypes.POINTER(ctypes.c_int)
    library.sqlite3_db_status.argtypes = (ctypes.c_void_p, ctypes.c_int, pointer, pointer, ctypes.c_int)
    return library


def _is_loaded(name: str) -> bool:
    """Say whether Python's module is linked against that library: its file names it among those it needs."""
    import _sqlite3

    path = getattr(_sqlite3, "__file__", "")
    if not path:
        return False
    return name.encode() in Path(path).read_bytes()


@dataclass(frozen=True, slots=True)
class SqliteCounters:
    """Of the watched connections and of every statement that they have prepared, but for those that open a connection.

    Each reading thread has a connection of its own; when the pool starts one more is a matter of time, not of an act.
    """

    watch: Watch
    library: ctypes.CDLL = field(default_factory=sqlite_library)

    def read(self) -> Reading:
        total = Reading()
        for connection in self.watch.connections:
            handle = _handle(connection)
            if handle:
                total = total.and_also(self._of(handle))
        return total

    def cpu_s(self) -> float:
        return time.process_time()

    def _of(self, handle: int) -> Reading:
        statements = rows = scanned = 0
        for statement in self._statements(handle):
            statements += self.library.sqlite3_stmt_status(statement, _RUN, 0)
            rows += self.library.sqlite3_stmt_status(statement, _VM_STEP, 0)
            scanned += self.library.sqlite3_stmt_status(statement, _FULLSCAN_STEP, 0)
        pages = self._pages(handle, _CACHE_HIT) + self._pages(handle, _CACHE_MISS)
        return Reading(statements, rows, pages, scanned)

    def _statements(self, handle: int) -> Iterator[int]:
        statement = self.library.sqlite3_next_stmt(handle, None)
        while statement:
            if not self.library.sqlite3_sql(statement).startswith(b"PRAGMA"):
                yield statement
            statement = self.library.sqlite3_next_stmt(handle, statement)

    def _pages(self, handle: int, what: int) -> int:
        now, highest = ctypes.c_int(), ctypes.c_int()
        if self.library.sqlite3_db_status(handle, what, ctypes.byref(now), ctypes.byref(highest), 0):
            raise CountersError("SQLite does not know its cache's counters")
        return now.value


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process of one thread by the scheduler's own, finer figure."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except (OSError, IndexError):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)


def _handle(connection: sqlite3.Connection) -> int:
    """Return the library's own name of a connection, the first field of Python's object; 0 when it is closed."""
    return ctypes.c_void_p.from_address(id(connection) + object.__basicsize__).value or 0
