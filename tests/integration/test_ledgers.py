"""The benchmark counts what a database committed, from outside."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg

from benchmarks.ledger import PostgresLedger, SqliteLedger


def test_the_sqlite_ledger_counts_writing_transactions_only(tmp_path: Path) -> None:
    database = tmp_path / "soong.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE entry (number INTEGER)")
        ledger = SqliteLedger(database)
        before = ledger.transactions()

        for number in range(7):
            connection.execute("INSERT INTO entry VALUES (?)", (number,))
            connection.execute("SELECT count(*) FROM entry").fetchone()

        after = ledger.transactions()
    assert before is not None
    assert after is not None
    assert after - before == 7


def test_the_postgres_ledger_counts_writing_transactions_only(postgres_url: str) -> None:
    url = postgres_url.replace("+psycopg", "")
    ledger = PostgresLedger(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE entry (number INTEGER)")
        before = ledger.transactions()

        for number in range(7):
            connection.execute("INSERT INTO entry VALUES (%s)", (number,))
            connection.execute("SELECT count(*) FROM entry").fetchone()

        after = ledger.transactions()
    assert before is not None
    assert after is not None
    # The server's own housekeeping may fall between the two readings.
    assert 7 <= after - before <= 9
