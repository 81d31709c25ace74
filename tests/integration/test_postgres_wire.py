"""Statements over the wire say what a cursor of psycopg says, fail as it fails, and leave the connection usable."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text

from soong.shared.storage.sql.engine.postgres_wire import MAX_POSTED, MAX_PREPARED, PostgresWire, WiredConnection
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


@pytest.mark.parametrize("value", [*VALUES, datetime(2026, 1, 2, tzinfo=UTC)], ids=repr)
def test_a_value_comes_back_as_a_cursor_brings_it_back(connection: Connection, value: object) -> None:
    raw = raw_of(connection)
    ((expected,),) = raw.execute("SELECT %(value)s", {"value": value}).fetchall()

    for asked, given in (("SELECT %(value)s", {"value": value}), ("SELECT %s", (value,))):
        ((found,),) = raw.wire.execute(asked, given).rows()
        assert (found, type(found)) == (expected, type(expected))


def test_a_batch_is_one_transaction_that_begins_with_it(
    connection: Connection, wire: PostgresWire, postgres_url: str
) -> None:
    with wire.batch():
        added = wire.execute("INSERT INTO kept VALUES (%s, 'a'), (%s, 'b')", (1, 2))
        read = wire.execute(ROWS, ())
    before = seen_elsewhere(postgres_url)
    raw_of(connection).commit()

    assert (added.changed, read.rows(), before) == (2, [(1, "a"), (2, "b")], [])
    assert seen_elsewhere(postgres_url) == [(1, "a"), (2, "b")]


def test_an_answer_is_read_while_its_batch_goes_on(wire: PostgresWire) -> None:
    with wire.batch():
        wire.execute("INSERT INTO kept VALUES (%s, 'a')", (1,))
        first = wire.execute(ROWS, ()).rows()
        wire.execute("INSERT INTO kept VALUES (%s, 'b')", (len(first) + 1,))

    assert wire.execute(ROWS, ()).rows() == [(1, "a"), (2, "b")]


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


def test_what_was_posted_goes_with_what_is_sent_next(
    connection: Connection, wire: PostgresWire, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = 0
    end_batch = PostgresWire._end_batch

    def counted(self: PostgresWire) -> None:
        nonlocal answered
        answered += 1
        end_batch(self)

    monkeypatch.setattr(PostgresWire, "_end_batch", counted)

    wire.post("INSERT INTO kept VALUES (%s, 'a')", (1,))
    with wire.batch():
        wire.post("INSERT INTO kept VALUES (%s, 'b')", (2,))
    assert answered == 0
    assert wire.execute(ROWS, ()).rows() == [(1, "a"), (2, "b")]
    assert answered == 1
    wire.post("DELETE FROM kept WHERE id = %s", (1,))
    raw_of(connection).commit()

    assert answered == 2
    assert seen_elsewhere(postgres_url) == [(2, "b")]


def test_what_is_posted_after_an_answer_was_read_goes_with_the_commit(
    connection: Connection, wire: PostgresWire, postgres_url: str
) -> None:
    with wire.batch():
        read = wire.execute(ROWS, ())
        wire.flush()
        posted = wire.post("INSERT INTO kept VALUES (%s, 'a')", (1,))
        assert read.rows() == []
        more = wire.post("INSERT INTO kept VALUES (%s, 'b')", (2,))
    assert (posted.is_answered, more.is_answered) == (False, False)
    raw_of(connection).commit()
    with wire.batch():
        assert wire.execute(ROWS, ()).rows() == [(1, "a"), (2, "b")]
    raw_of(connection).execute("SELECT 1")  # a cursor: the batch has ended
    raw_of(connection).commit()

    assert seen_elsewhere(postgres_url) == [(1, "a"), (2, "b")]


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


def test_many_that_were_posted_are_answered_now_and_then(connection: Connection, wire: PostgresWire) -> None:
    for number in range(3 * MAX_POSTED):
        wire.post("INSERT INTO kept VALUES (%s, 'a')", (number,))
        assert len(wire._expected) <= MAX_POSTED + 3
    raw_of(connection).commit()

    assert len(wire.execute(ROWS, ()).rows()) == 3 * MAX_POSTED


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


def test_what_was_unused_for_longest_makes_room(wire: PostgresWire) -> None:
    texts = [f"SELECT {number}" for number in range(MAX_PREPARED + 3)]
    for asked in (*texts, texts[0], texts[-1]):
        assert wire.execute(asked, ()).rows() == [(int(asked.split()[1]),)]

    kept = wire.execute("SELECT statement FROM pg_prepared_statements WHERE name LIKE 'soong_%%'", ()).rows()
    assert len(kept) == MAX_PREPARED
    assert {(texts[0],), (texts[-1],)} < set(kept)
    assert (texts[1],) not in kept


def test_more_than_fits_into_the_sockets_goes_both_ways_at_once(wire: PostgresWire) -> None:
    large = "x" * 4_000_000
    with wire.batch():
        answers = [wire.execute("SELECT %s::text", (large,)) for _ in range(8)]

    assert all(answer.rows() == [(large,)] for answer in answers)


def test_cursors_and_the_wire_take_turns_in_a_transaction(connection: Connection, wire: PostgresWire) -> None:
    with connection.begin():
        wire.execute("INSERT INTO kept VALUES (%s, 'a')", (1,))
        connection.execute(text("INSERT INTO kept VALUES (2, 'b')"))
        wire.execute("INSERT INTO kept VALUES (%s, 'c')", (3,))
    with connection.begin() as transaction:
        wire.execute("DELETE FROM kept", ())
        transaction.rollback()

    assert [row[0] for row in wire.execute(ROWS, ()).rows()] == [1, 2, 3]


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
