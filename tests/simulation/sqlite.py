"""The SQL store in a simulation: the product's statements on a real SQLite file, one transaction after another and
without a thread, so that a seed decides their order too.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, make_url, select, text

from soong.shared.core.errors import SoongError
from soong.shared.engine.sessions.session import HeartbeatWriter
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.engine import make_engine, parse_url
from soong.shared.storage.sql.engine.log_rows import events_of, nodes_of
from soong.shared.storage.sql.engine.rows import COMMANDS, SESSIONS, TASKS, run_of, worker_of
from soong.shared.storage.sql.engine.schema import prepare
from soong.shared.storage.sql.engine.tables.service import commands, sessions, workers
from soong.shared.storage.sql.engine.tables.work import nodes, runs, tasks
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.engine.write_ahead_log import Flush
from soong.shared.storage.sql.store import BEAT, SqlStore
from soong.shared.storage.sql.tasks.runs import EVENTS_OF, WHOLE_RUNS
from soong.shared.storage.sql.tasks.tasks import read_steps, steps_where
from tests.model.memory.rows import Rows
from tests.waiting import others_run

T = TypeVar("T")


class InlineDatabase:
    """One connection on which every transaction is done where it is asked for."""

    is_postgres = False
    credential = ""

    def __init__(self, url: str) -> None:
        self.url = make_url(url)
        self._engine = make_engine(self.url, size=1, is_writer=True)
        self._connection: Connection = self._engine.connect()
        # What is tried here is the order of transactions, not what a power cut leaves.
        self.raw = cast(sqlite3.Connection, self._connection.connection.dbapi_connection)
        self.raw.execute("PRAGMA synchronous=OFF").close()

    def do(self, function: Callable[[Transaction], T]) -> T:
        """Run a function in a transaction; without effect when it raises."""
        with self._connection.begin():
            return function(Transaction(self._connection))

    async def write(self, function: Callable[[Transaction], T], *, flush: Flush = Flush.BEFORE_RETURN) -> T:
        del flush
        await others_run()
        return self.do(function)

    async def read(self, function: Callable[[Transaction], T]) -> T:
        await others_run()
        return self.do(function)

    async def write_together(
        self,
        write: Callable[[Transaction, Sequence[Any]], Sequence[Any]],
        item: Any,
        *,
        flush: Flush = Flush.BEFORE_RETURN,
    ) -> Any:
        del flush
        await others_run()
        (outcome,) = self.do(lambda tx: write(tx, (item,)))
        if isinstance(outcome, SoongError):
            raise outcome
        return outcome

    def close(self) -> None:
        self._connection.close()
        self._engine.dispose()


class _InlineHeartbeatWriter:
    def __init__(self, database: InlineDatabase) -> None:
        self._database = database

    def beat(self, worker_id: str, left_over: str = "") -> bool:
        return self._database.do(lambda tx: tx.count(BEAT, worker_id=worker_id, left_over=left_over)) > 0

    def close(self) -> None: ...


@contextmanager
def sqlite_stores() -> Iterator[Callable[[], "InlineStore"]]:
    """Return what opens an empty store each time it is called; all of them are closed and deleted in the end."""
    folder = Path(tempfile.mkdtemp(prefix="soong-sim-"))
    template = folder / "template.db"
    prepare(parse_url(f"sqlite:///{template}"), migrate=True)
    opened: list[InlineStore] = []

    def open_one() -> InlineStore:
        path = folder / f"{len(opened)}.db"
        shutil.copyfile(template, path)
        opened.append(InlineStore(path))
        return opened[-1]

    try:
        yield open_one
    finally:
        for store in opened:
            store.put_away()
        shutil.rmtree(folder, ignore_errors=True)


class InlineStore(SqlStore):
    """The SQL store with its rows in the auditor's form."""

    def __init__(self, path: Path) -> None:
        self._inline = InlineDatabase(f"sqlite:///{path}")
        super().__init__(cast(Database, self._inline))
        self._seen = -1
        self._rows = Rows()

    def heartbeat_writer(self) -> HeartbeatWriter:
        return _InlineHeartbeatWriter(self._inline)

    async def close(self) -> None:
        """The file outlives its users."""

    def put_away(self) -> None:
        self._inline.close()

    @property
    def rows(self) -> Rows:
        """All rows as they are now; read again only after something was changed."""
        if self._inline.raw.total_changes != self._seen:
            before = self._rows
            self._rows = self._inline.do(lambda tx: _read_rows(tx, before))
            self._seen = self._inline.raw.total_changes
        return self._rows


_ALL_STEPS = steps_where("all steps", "steps.ordinal >= 0")
_RUNS = WHOLE_RUNS.order_by(runs.c.ordinal)


def _read_rows(tx: Transaction, before: Rows) -> Rows:
    found = read_steps(tx, _ALL_STEPS)
    made = Rows(
        sessions={row.id: SESSIONS.read(row) for row in tx.execute(select(sessions))},
        workers={row.id: worker_of(row, 0) for row in tx.execute(select(workers))},
        tasks={row.id: TASKS.read(row) for row in tx.execute(select(tasks))},
        steps={step.key: step for step in found},
        settled=_keys(tx, "SELECT key FROM steps WHERE is_settled = 1"),
        runs={row.id: run_of(row) for row in tx.execute(_RUNS)},
        concurrency_limits=dict(tx.connection.execute(text("SELECT scope, slots FROM concurrency_limits")).all()),
        commands={row.id: COMMANDS.read(row) for row in tx.execute(select(commands))},
        ended_commands=_keys(tx, "SELECT id FROM commands WHERE is_ended = 1"),
    )
    for step in found:
        for needed in dict.fromkeys(step.depends_on):
            made.dependents[needed] = (*made.dependents.get(needed, ()), step.key)
    _read_logs(tx, made, before)
    return made


def _read_logs(tx: Transaction, made: Rows, before: Rows) -> None:
    """Read what runs have written since: logs only grow."""
    made.events.update(before.events)
    made.nodes.update(before.nodes)
    for run_id, run in made.runs.items():
        known = made.events.get(run_id, ())
        if run.last_seq != len(known):
            made.events[run_id] = (*known, *events_of(tx.rows(EVENTS_OF, run_ids=[run_id]), len(known)))
        written = made.nodes.get(run_id, ())
        if run.last_node != len(written):
            more = select(nodes).where(nodes.c.run_id == run_id, nodes.c.number > len(written))
            rows = tx.execute(more.order_by(nodes.c.number)).all()
            made.nodes[run_id] = (*written, *nodes_of(rows, len(written)))


def _keys(tx: Transaction, statement: str) -> set[str]:
    return set(tx.connection.execute(text(statement)).scalars())
