"""Detection of a connection pooler that shares server processes of PostgreSQL between connections.

Prepared statements, advisory locks, session settings and a worker's credential belong to a server process. Each
connection of ours therefore needs one of its own until it ends. A direct connection has that, and so has one through a
pooler in session mode. In transaction and statement mode a pooler gives each transaction any free server process.
"""

import selectors
import time
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from typing import Any, Final

from sqlalchemy import URL

from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError, UnsupportedPoolerError

CREDENTIAL: Final = "soong.worker"
"""The connection's setting with the secret of a worker's process; the row of each of its incarnations has the digest.
All workers share a role, so this distinguishes them."""


CONNECT_PARAMETERS: Final[Mapping[str, Any]] = {
    "connect_timeout": 10,
    "application_name": "soong",
    "options": "",  # those of the environment (PGOPTIONS), too, do not reach every server process
}
"""The driver's parameters for each connection."""

_ROUNDS: Final = 2
_PROCESS: Final = "SELECT pg_backend_pid()"
_PROTOCOL_VIOLATION: Final = "08P01"
"""PgBouncer's SQLSTATE for everything that it refuses by itself."""

_SET: Final = """
    SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS asked(name, value)
"""
_READ: Final = "SELECT name, coalesce(current_setting(name, true), '') FROM unnest(%s::text[]) AS asked(name)"

_KEPT_BY_THE_SYSTEM: Final = frozenset({"tcp_keepalives_idle"})
"""Settings that read as 0 on a unix socket."""


@cache
def require_own_process(url: URL) -> None:
    """Make sure that connections to ``url`` have a server process each. Asked once per process and URL.

    Two connections run transactions in turn. A pooler that shares shows one server process to both, or several to one:
    whichever free process it takes first (the last used, the longest unused, any), and also when it has only one. The
    probe leaves nothing in the server processes: other programs may use them next.
    Raises: UnsupportedPoolerError, a server process is shared; UnavailableError, the server does not answer within
    ``EXCHANGE_LIMIT_S``; psycopg.OperationalError, no connection can be made.
    """
    with closing(_Probe(url)) as first, closing(_Probe(url)) as second:
        for _ in range(_ROUNDS):
            for probe, statements in (
                (first, _PROCESS),
                (first, _PROCESS),
                (second, f"BEGIN; {_PROCESS}"),
                (first, _PROCESS),
                (second, f"COMMIT; {_PROCESS}"),
            ):
                probe.ask(statements)
                _compare(first.seen, second.seen)


def keep_settings(connection: Any, settings: Mapping[str, str]) -> None:
    """Set session settings on a new connection of psycopg, and read them back in another transaction.

    They are not startup ``options``: poolers refuse or drop those. A value is sent as a parameter, so that the
    credential of a worker is in no statement text, which other connections of its role can read (pg_stat_activity).
    Raises: UnsupportedPoolerError, a setting is lost.
    """
    names = list(settings)
    connection.autocommit = True
    connection.execute(_SET, (names, list(settings.values())), prepare=False)
    found = dict(connection.execute(_READ, (names,), prepare=False).fetchall())
    connection.autocommit = False
    for name in settings.keys() - _KEPT_BY_THE_SYSTEM:
        if found[name] != settings[name]:
            values = "" if name == CREDENTIAL else f" ({found[name]!r} instead of {settings[name]!r})"
            raise UnsupportedPoolerError(f"drops the session setting {name}{values}")


class _Probe:
    """One connection, and the server processes that were ``seen`` on it. Statements are sent as plain text."""

    def __init__(self, url: URL) -> None:
        import psycopg

        _, parameters = url.get_dialect()().create_connect_args(url)
        self._connection = psycopg.connect(**{**parameters, **CONNECT_PARAMETERS})
        self._pg = self._connection.pgconn
        self._pg.nonblocking = 0
        self.seen: set[int] = set()

    def ask(self, statements: str) -> None:
        """Run statements of which the last one selects the id of the server process."""
        from psycopg.pq import DiagnosticField

        self._pg.send_query(statements.encode())
        until_s = time.monotonic() + timing.EXCHANGE_LIMIT_S
        while True:
            self._await_answer(until_s)
            result = self._pg.get_result()
            if result is None:
                return
            if result.error_message:
                state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
                self._refuse(state, result.error_message.decode(errors="replace"))
            if result.ntuples:
                self.seen.add(int(result.get_value(0, 0) or b"0"))

    def close(self) -> None:
        self._connection.close()

    def _await_answer(self, until_s: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._pg.socket, selectors.EVENT_READ)
            while self._pg.is_busy():
                if not selector.select(max(0.0, until_s - time.monotonic())):
                    raise UnavailableError(
                        "the database answered only one of two connections within "
                        f"{timing.EXCHANGE_LIMIT_S:.0f} s; it is overloaded, "
                        "or a connection pooler in front of it has too few server connections"
                    )
                self._pg.consume_input()

    def _refuse(self, state: str, message: str) -> None:
        import psycopg

        if state == _PROTOCOL_VIOLATION:
            raise UnsupportedPoolerError(f"refuses a transaction ({' '.join(message.split())!r})")
        raise psycopg.OperationalError(message)


def _compare(first: set[int], second: set[int]) -> None:
    for seen in (first, second):
        if len(seen) > 1:
            listed = ", ".join(map(str, sorted(seen)))
            raise UnsupportedPoolerError(f"runs one connection in several server processes ({listed})")
    if shared := first & second:
        raise UnsupportedPoolerError(f"runs two connections in one server process ({shared.pop()})")
