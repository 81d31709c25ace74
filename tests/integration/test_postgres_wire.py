"""Statements over the wire say what a cursor of psycopg says, fail as it fails, and leave the connection usable."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text

from soong.shared.storage.sql.engine.postgres_wire import PostgresWire, WiredConnection
from tests.integration.sql_stores import connected

VALUES = (1, -40_000, 3_000_000_000, 2**70, True, None, 1.5, "naïve 𝄞", "", b"\x00\xff", Decimal("1.20"))
ROWS = "SELECT id, body FROM kept ORDER BY id"


@pytest.fixture
def connection(postgres_url: str) -> Iterator[Connection]:
    with connected(postgres_url) as connection:
        raw_of(connection).execute("CREATE TABLE kept (id bigint PRIMARY KEY, body text)")
        raw_of(connection).commit()
        yield connection


@pytest.fixture
def wire(connection: Connection) -> PostgresWire:
    return raw_of(connection).wire


def raw_of(connection: Connection) -> WiredConnection:
    raw: Any = connection.connection.dbapi_connection
    found: WiredConnection = raw
    return found


def seen_elsewhere(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as other:
        return other.execute(ROWS).fetchall()


@pytest.mark.parametrize("is_read_early", [False, True], ids=["at its end", "as an answer is read"])
def test_the_first_error_of_a_batch_is_raised_and_what_follows_it_is_not_done(
    connection: Connection, wire: PostgresWire, is_read_early: bool
) -> None:
    def go() -> None:
        with wire.batch():
            wire.execute("INSERT INTO kept VALUES (%s, 'a')", (1,))
            wire.execute("INSERT INTO kept VALUES (%s, 'b')", (1,))
            wire.execute("INSERT INTO kept VALUES (%s, 'c')", ("no number",))
            if is_read_early:
                wire.execute(ROWS, ()).rows()

    with pytest.raises(psycopg.errors.UniqueViolation, match="kept_pkey"):
        go()
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        wire.execute(ROWS, ())
    raw_of(connection).rollback()
    assert wire.execute(ROWS, ()).rows() == []


@pytest.mark.parametrize("then", ["the commit", "another statement", "a cursor"])
def test_what_was_posted_and_fails_fails_what_is_done_next_and_is_undone(
    connection: Connection, wire: PostgresWire, postgres_url: str, then: str
) -> None:
    for body in ("a", "b"):
        wire.post("INSERT INTO kept VALUES (1, %s)", (body,))

    next_acts: dict[str, Callable[[], object]] = {
        "the commit": raw_of(connection).commit,
        "another statement": lambda: wire.execute(ROWS, ()),
        "a cursor": lambda: raw_of(connection).execute(ROWS),
    }
    with pytest.raises(psycopg.errors.UniqueViolation, match="kept_pkey"):
        next_acts[then]()
    raw_of(connection).rollback()

    assert seen_elsewhere(postgres_url) == wire.execute(ROWS, ()).rows() == []


def test_what_was_posted_is_taken_back_without_a_word(connection: Connection, wire: PostgresWire) -> None:
    for body in ("a", "b"):
        wire.post("INSERT INTO kept VALUES (1, %s)", (body,))

    raw_of(connection).rollback()

    assert wire.execute(ROWS, ()).rows() == []


def test_an_error_of_the_caller_within_a_batch_leaves_the_connection_usable(
    connection: Connection, wire: PostgresWire
) -> None:
    def go() -> None:
        with wire.batch():
            wire.execute("INSERT INTO kept VALUES (%s, 'a')", (1,))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        go()
    with pytest.raises(psycopg.DataError, match="NUL"):
        wire.execute("INSERT INTO kept VALUES (%s, %s)", (2, "a\0b"))

    assert wire.execute(ROWS, ()).rows() == [(1, "a")]
    raw_of(connection).rollback()
    assert wire.execute(ROWS, ()).rows() == []


def test_a_statement_that_cannot_be_prepared_is_not_taken_for_prepared(
    connection: Connection, wire: PostgresWire
) -> None:
    asked = "SELECT id FROM later WHERE id = %s"
    for _ in range(2):
        with pytest.raises(psycopg.errors.UndefinedTable):
            wire.execute(asked, (1,))
        raw_of(connection).rollback()
    wire.execute("CREATE TABLE later (id bigint)", ())

    assert wire.execute(asked, (1,)).rows() == []


def test_more_than_fits_into_the_sockets_goes_both_ways_at_once(wire: PostgresWire) -> None:
    large = "x" * 4_000_000
    with wire.batch():
        answers = [wire.execute("SELECT %s::text", (large,)) for _ in range(8)]

    assert all(answer.rows() == [(large,)] for answer in answers)


def test_a_reader_waits_for_no_commit_and_sees_one_state_a_transaction(
    connection: Connection, postgres_url: str
) -> None:
    wire = raw_of(connection).wire
    with connected(postgres_url, is_writer=False) as reading:
        for number in range(3):
            with reading.begin():
                before = raw_of(reading).wire.execute(ROWS, ()).rows()
                with connection.begin():
                    wire.execute("INSERT INTO kept VALUES (%s, '')", (number,))
                assert raw_of(reading).wire.execute(ROWS, ()).rows() == before
        with reading.begin():
            assert len(reading.execute(text(ROWS)).all()) == 3
        with reading.begin(), pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            raw_of(reading).wire.execute("DELETE FROM kept", ())


@pytest.mark.parametrize("is_waited_for", [False, True], ids=["found lost later", "while an answer is awaited"])
def test_a_connection_that_is_cut_is_an_operational_error(
    connection: Connection, wire: PostgresWire, postgres_url: str, is_waited_for: bool
) -> None:
    (pid,) = wire.execute("SELECT pg_backend_pid()", ()).rows()[0]
    end = "SELECT pg_terminate_backend(%s)"
    if not is_waited_for:
        with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as other:
            other.execute(end, (pid,))

    with pytest.raises(psycopg.OperationalError):
        wire.execute(end if is_waited_for else ROWS, (pid,) if is_waited_for else ())
    assert raw_of(connection).closed
    for use in (lambda: wire.execute(ROWS, ()), raw_of(connection).commit):
        with pytest.raises(psycopg.OperationalError):
            use()
