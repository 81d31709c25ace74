"""How much a database has committed and written, read from outside without writing to it."""

import struct
from pathlib import Path
from typing import LiteralString, Protocol

import psycopg

# SQLite's wal-index begins with version, padding, and a counter that every transaction raises, in native byte order.
_CHANGE_OFFSET = 8


class Ledger(Protocol):
    """Counts what a store commits and writes ahead; None where the database does not say."""

    def transactions(self) -> int | None: ...

    def log_bytes(self) -> int | None: ...


class SqliteLedger:
    """Reads the change counter of a database in WAL mode; None while nobody has it open."""

    def __init__(self, database: Path) -> None:
        self._index = database.with_name(f"{database.name}-shm")

    def transactions(self) -> int | None:
        try:
            with self._index.open("rb") as index:
                index.seek(_CHANGE_OFFSET)
                counter: int = struct.unpack("=I", index.read(4))[0]
        except (FileNotFoundError, struct.error):
            return None
        return counter

    def log_bytes(self) -> int | None:
        return None


class PostgresLedger:
    """Reads the next transaction id of the server, which only writing transactions raise, and the end of its log."""

    def __init__(self, url: str) -> None:
        self._url = url

    def transactions(self) -> int | None:
        return self._number("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")

    def log_bytes(self) -> int | None:
        return self._number("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")

    def _number(self, question: LiteralString) -> int | None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            row = connection.execute(question).fetchone()
        return None if row is None else int(row[0])
