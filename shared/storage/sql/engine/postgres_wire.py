"""Our statements over libpq's pipeline: by psycopg's binding (``psycopg.pq``), without its cursors.

With a cursor a statement costs the client 40 us of CPU time, six times the cost of sending it and reading its answer,
and BEGIN costs a round trip. Here a statement is prepared once a connection, and BEGIN goes with the first statement of
a transaction, and COMMIT with its last ones when no caller waits for their answers. psycopg's own dumpers and loaders
convert the values, so that types and errors are the same both ways.

Source: PostgreSQL documentation, libpq, pipeline mode. Imported where there is a PostgreSQL only.
"""

import re
import select
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from soong.shared.storage.sql.engine.statements import row_class

MAX_PREPARED: Final = 500
"""Statements that a connection keeps prepared; one more takes the place of the one that was unused for longest."""

MAX_POSTED: Final = 100
"""Statements that nobody waits for after which their answers are read: neither side's buffers fill up."""

_PLACE: Final = re.compile(r"%\((\w+)\)s|%s")
_FAILED: Final = frozenset({ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED})

_Key = tuple[bytes, tuple[int, ...]]
"""A statement's text and the types of its values."""


class WiredConnection(psycopg.Connection[Any]):
    """A connection of psycopg that has a :class:`PostgresWire` as well; one of the two is in use at a time.

    ``is_reader``: its transactions change nothing, so that nobody has to wait for a commit.
    """

    is_reader = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.wire = PostgresWire(self)

    def cursor(self, *given: Any, **named: Any) -> Any:
        self.wire.settle()
        return super().cursor(*given, **named)

    def commit(self) -> None:
        self.wire.commit(is_awaited=not self.is_reader)

    def rollback(self) -> None:
        self.wire.drop()
        super().rollback()


class SentStatement:
    """The server's answer to one statement; reading it waits for the server."""

    __slots__ = ("_result", "_text", "_wire", "prepares")

    def __init__(self, wire: "PostgresWire", text: str = "", prepares: _Key | None = None) -> None:
        self._wire = wire
        self._text = text
        self._result: PGresult | None = None
        self.prepares = prepares

    @property
    def is_answered(self) -> bool:
        return self._result is not None

    def take(self, result: PGresult) -> None:
        self._result = result

    def rows(self) -> Sequence[tuple[Any, ...]]:
        """Return all rows. Raises: psycopg.Error."""
        return self._wire.load(self._text, self._received())

    @property
    def changed(self) -> int:
        """How many rows were changed or read. Raises: psycopg.Error."""
        return self._received().command_tuples or 0

    def _received(self) -> PGresult:
        if self._result is None:
            self._wire.receive(self)
        assert self._result is not None  # ``receive`` raises unless it is there
        return self._result


class PostgresWire:
    """One connection's batches of statements. For one thread at a time, like the connection itself.

    A batch ends synchronised, also one that failed: whatever comes next on the connection can begin at once.
    """

    def __init__(self, connection: WiredConnection) -> None:
        self.connection = connection
        self._pg = connection.pgconn
        self._values = Transformer(connection)
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)
        self._prepared: dict[_Key, bytes] = {}
        self._numbered = 0
        self._expected: deque[SentStatement | None] = deque()
        """Statements without an answer yet; None is the end of a batch."""
        self._is_open = False
        """A batch is under way."""
        self._awaited: SentStatement | None = None
        """The last one of that batch for whose answer somebody waits."""
        self._is_posted = False
        """Statements have been sent without a waiter, and the next ones belong to the same batch."""
        self._is_begun = False

    def execute(self, text: str, values: Mapping[str, Any] | Sequence[Any]) -> SentStatement:
        """Send a statement; outside a :meth:`batch` also wait for its answer.
        Raises: psycopg.Error, with the classes and the SQLSTATE of psycopg's cursors.
        """
        if self._is_open:
            self._awaited = self._send(text, values)
            return self._awaited
        with self.batch():
            self._awaited = self._send(text, values)
            return self._awaited

    def post(self, text: str, values: Mapping[str, Any] | Sequence[Any]) -> SentStatement:
        """Send a statement whose answer nobody waits for. If it fails, what is done next in its transaction, at the
        latest the commit, raises its error.
        """
        if self._is_open:
            return self._send(text, values)
        with self.batch():
            return self._send(text, values)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Send what is executed within without waiting for answers. Its end waits for all of them, unless all of it
        has been posted.

        An awaited answer may also be read within; the rest then counts as posted.

        Raises:
            psycopg.Error: the first statement that failed; those after it were not executed.
        """
        if self._is_open:
            yield
            return
        with self._opened():
            yield
            is_read = self._awaited is None or self._awaited.is_answered
            if is_read and 0 < len(self._expected) < MAX_POSTED:
                self._is_posted = True
            elif self._awaited is not None or self._expected:
                self._end_sending()
                while self._expected:
                    self._take_next()
                self._pg.exit_pipeline_mode()

    def commit(self, *, is_awaited: bool) -> None:
        """Commit, if a transaction has begun. Without waiting, the next operation raises an error.
        Raises: psycopg.Error, a posted statement, or the commit, failed.
        """
        if self._is_posted:
            self._commit()
            return
        if self._expected and not is_awaited:
            return  # the last commit is under way, and nothing has begun since
        self.settle()
        if self._pg.transaction_status == TransactionStatus.IDLE:
            return
        if is_awaited:
            self._commit()
            return
        self._begin_batch()
        self._is_open = False
        self._put(b"COMMIT")
        self._end_sending()
        self._pg.flush()

    def settle(self) -> None:
        """Wait for all answers and leave pipeline mode, for psycopg. Raises: psycopg.Error."""
        if self._is_posted:
            with self.batch():
                self._awaited = SentStatement(self)  # the end of the batch
        elif self._expected:
            self._drain()

    def drop(self) -> None:
        """Leave pipeline mode for a rollback, whatever the statements that were sent answer. Raises: psycopg.Error."""
        if self._expected:
            self._drain()

    def flush(self) -> None:
        """Have the server execute and answer what was sent, while more is sent. Raises: psycopg.Error."""
        self._pg.send_flush_request()
        self._pg.flush()

    def receive(self, wanted: SentStatement) -> None:
        """Read answers up to a wanted one. Raises: psycopg.Error."""
        self._pg.send_flush_request()
        while self._take_next() is not wanted:
            pass

    def load(self, text: str, result: PGresult) -> Sequence[tuple[Any, ...]]:
        """Return the rows of a statement as psycopg's loaders read them."""
        self._values.set_pgresult(result)
        names = (result.fname(place) or b"" for place in range(result.nfields))
        made: Any = row_class(text, lambda: (name.decode() for name in names))
        return self._values.load_rows(0, result.ntuples, made)

    def _commit(self) -> None:
        with self.batch():
            self._awaited = self._put(b"COMMIT")

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Begin a batch. If an error ends it, what is still to be answered is passed over."""
        self._begin_batch()
        try:
            yield
        except BaseException:
            # The caller gets the error of its batch. If the connection is lost, its next use raises that.
            with suppress(psycopg.Error):
                self._drain()
            raise
        finally:
            self._is_open = False

    def _begin_batch(self) -> None:
        self._awaited = None
        if self._is_posted:
            self._is_posted = False
        elif self._expected:
            self._is_begun = False  # a commit is under way
        else:
            self._is_begun = self.connection.autocommit or bool(self._pg.transaction_status)
            self._pg.enter_pipeline_mode()
        self._is_open = True

    def _end_sending(self) -> None:
        self._pg.pipeline_sync()
        self._expected.append(None)

    def _drain(self) -> None:
        """Read what is still to come, whatever it says; raise only when the connection is lost."""
        self._is_open = self._is_posted = False
        try:
            if not self._expected or self._expected[-1] is not None:
                self._end_sending()
            while self._expected:
                try:
                    self._take_next()
                except psycopg.Error:
                    if self._pg.status != ConnStatus.OK:
                        raise
            self._pg.exit_pipeline_mode()
        except psycopg.Error:
            self._expected.clear()
            raise

    def _send(self, text: str, values: Mapping[str, Any] | Sequence[Any]) -> SentStatement:
        sql, names = _numbered(text)
        given = [values[name] for name in names] if isinstance(values, Mapping) else values
        dumped = self._values.dump_sequence(given, [PyFormat.AUTO] * len(given))
        types, formats = tuple(self._values.types or ()), self._values.formats
        if not self._is_begun:
            self._put(_BEGIN[self.connection.isolation_level])
            self._is_begun = True
        self._pg.send_query_prepared(self._name_of((sql, types)), dumped, formats)
        answer = SentStatement(self, text)
        self._expected.append(answer)
        return answer

    def _put(self, command: bytes) -> SentStatement:
        self._pg.send_query_params(command, None)
        answer = SentStatement(self)
        self._expected.append(answer)
        return answer

    def _name_of(self, key: _Key) -> bytes:
        name = self._prepared.pop(key, None)
        if name is None:
            if len(self._prepared) >= MAX_PREPARED:
                self._put(b"DEALLOCATE " + self._prepared.pop(next(iter(self._prepared))))
            self._numbered += 1
            name = b"soong_%d" % self._numbered
            self._pg.send_prepare(name, *key)
            self._expected.append(SentStatement(self, prepares=key))
        self._prepared[key] = name  # at the end: the first of them is the one that was unused for longest
        return name

    def _take_next(self) -> SentStatement | None:
        """Return the next that was answered, None for the end of a batch. Raises: psycopg.Error."""
        result = self._next_result()
        answer = self._expected.popleft()
        if result.status in _FAILED:
            if answer is not None and answer.prepares is not None:
                self._prepared.pop(answer.prepares, None)
            raise error_from_result(result)
        if answer is not None:
            answer.take(result)
        return answer

    def _next_result(self) -> PGresult:
        pg = self._pg
        while True:
            is_sending = pg.flush()
            while pg.is_busy():
                if is_sending:
                    self._poll.modify(pg.socket, select.POLLIN | select.POLLOUT)
                ready = self._poll.poll()
                if is_sending:
                    self._poll.modify(pg.socket, select.POLLIN)
                    is_sending = pg.flush()
                if any(event != select.POLLOUT for _, event in ready):
                    pg.consume_input()
            result = pg.get_result()
            if result is not None:
                return result


_BEGIN: Final = {None: b"BEGIN"} | {
    level: f"BEGIN ISOLATION LEVEL {level.name.replace('_', ' ')}".encode() for level in psycopg.IsolationLevel
}


@lru_cache(maxsize=4096)
def _numbered(text: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement with ``$1`` … for ``%(name)s`` and ``%s``, and the names in that order."""
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        name = match[1] or f"#{len(numbers)}"
        return f"${numbers.setdefault(name, len(numbers) + 1)}"

    return _PLACE.sub(number, text).encode(), tuple(numbers)
