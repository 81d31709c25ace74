"""The logs and the state of runs, gathered during a transaction and written at its end in a few statements.

A run's counters grow in the same transaction as the insert of its nodes and events, so both logs are gapless; a run is
touched once whatever happened to it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, NodeKind
from soong.shared.engine.runs.record import EndReason, NewRun, RunStatus, Usage
from soong.shared.storage.sql.engine.row_mapper import digest_of, pack, plain
from soong.shared.storage.sql.engine.rows import IDENTITIES, NEW_RUNS, RUN_COLUMNS
from soong.shared.storage.sql.engine.statements import Insert, ReadyRows, Statement, batches_of
from soong.shared.storage.sql.engine.tables.work import events as events_table
from soong.shared.storage.sql.engine.tables.work import nodes as nodes_table
from soong.shared.storage.sql.engine.tables.work import runs as runs_table
from soong.shared.storage.sql.engine.tables.work import surfaces as surfaces_table
from soong.shared.storage.sql.engine.transaction import Row, Transaction

INSERT_EVENTS: Final = Insert(
    events_table,
    ("run_id", "type", "time_us", "data", "preceding"),
    more={"back": "bigint"},
    computed={"seq": "(SELECT last_seq FROM runs WHERE id = :run_id) - :back"},
)
"""Insert events; ``back`` counts from the run's last event."""

INSERT_NODES: Final = Insert(
    nodes_table,
    ("run_id", "given_parent", "kind", "payload", "preceding", "back", "created_us"),
    more={"given_parent": "bigint", "back": "bigint"},
    computed={
        "number": "(SELECT last_node FROM runs WHERE id = :run_id) - :back",
        "parent": "coalesce(:given_parent, (SELECT last_node FROM runs WHERE id = :run_id) - :back - 1)",
    },
)
"""Insert nodes; ``back`` counts from the run's last node, and one without a parent hangs under the node before it."""

INSERT_SURFACES: Final = Insert(surfaces_table, ("digest", "body"), then="ON CONFLICT DO NOTHING")
_MADE: Final = ("status", "surface", "last_seq", "last_node", "created_us", "started_us")
INSERT_RUNS: Final = Insert(runs_table, (*RUN_COLUMNS, *NEW_RUNS.written, *_MADE))

_STATE: Final = """
        status = coalesce(c.status, runs.status),
        end_reason = coalesce(c.end_reason, runs.end_reason),
        ended_us = CASE WHEN c.end_reason IS NULL THEN runs.ended_us ELSE :now_us END,
        started_us = CASE WHEN c.status = 'running' THEN coalesce(runs.started_us, :now_us) ELSE runs.started_us END,
        usage = coalesce(c.usage, runs.usage),
        fence = coalesce(c.fence, runs.fence),
        worker_id = coalesce(c.worker_id, runs.worker_id)"""
_CHANGED: Final = "run_id text, status text, end_reason text, usage text, fence bigint, worker_id text"
CHANGE_RUNS: Final = Statement(
    "change runs: move, end and count their logs on, each row once",
    f"""
    UPDATE runs SET {_STATE}, last_seq = last_seq + c.events, last_node = last_node + c.nodes
    FROM @changes c({_CHANGED}, events bigint, nodes bigint) WHERE runs.id = c.run_id
    """,  # noqa: S608  # our own words
)
LAST_SEQ: Final = (
    "greatest(runs.last_seq, coalesce((SELECT written.seq FROM events AS written"
    " WHERE written.run_id = runs.id ORDER BY written.seq DESC LIMIT 1), 0))"
)
"""The end of a run's log on PostgreSQL. A worker that held it may have left more there than it counted."""

LAST_NODE: Final = (
    "greatest(runs.last_node, coalesce((SELECT written.number FROM nodes AS written"
    " WHERE written.run_id = runs.id ORDER BY written.number DESC LIMIT 1), 0))"
)


def logged(now_us: str) -> str:
    """Return what writes the logs of ``counted`` runs on PostgreSQL, each line of which is a row of :func:`packed`."""
    return f"""
    noted AS (
        INSERT INTO events (run_id, seq, type, time_us, data, preceding)
        SELECT counted.id, counted.last_seq - (v.line->>4)::bigint,
               v.line->>0, (v.line->>1)::bigint, v.line->>2, v.line->>3
        FROM counted CROSS JOIN LATERAL jsonb_array_elements(counted.events) AS v(line)
    ), grown AS (
        INSERT INTO nodes (run_id, number, parent, kind, payload, preceding, created_us)
        SELECT counted.id, counted.last_node - (v.line->>4)::bigint,
               coalesce((v.line->>0)::bigint, counted.last_node - (v.line->>4)::bigint - 1),
               v.line->>1, v.line->>2, v.line->>3, {now_us}
        FROM counted CROSS JOIN LATERAL jsonb_array_elements(counted.nodes) AS v(line)
    )
    """  # noqa: S608  # our own words


CHANGE_AND_LOG: Final = Statement(
    "change and log: the same with nodes and events, in one statement on PostgreSQL: whether a worker may write in a "
    "run's logs is decided on what the run was before",
    f"""
    WITH counted AS (
        UPDATE runs SET {_STATE}, last_seq = {LAST_SEQ} + c.added, last_node = {LAST_NODE} + c.nodes_added
        FROM @changes c({_CHANGED}, added bigint, events jsonb, nodes_added bigint, nodes jsonb)
        WHERE runs.id = c.run_id
        RETURNING runs.id, runs.last_seq, runs.last_node, c.events, c.nodes
    ), {logged(":now_us")}
    SELECT count(*) FROM counted
    """,  # noqa: S608  # our own words
)
ROW_ENTRIES: Final = 64
ROW_CHARS: Final = 64 * 1024
"""Most events or nodes in one row, and about how long they may be: a page of a log reads full rows."""

UNUSED: Final = Usage()

END_EVENT: Final[Mapping[RunStatus, EventType]] = {
    RunStatus.COMPLETED: EventType.RUN_COMPLETED,
    RunStatus.FAILED: EventType.RUN_FAILED,
    RunStatus.CANCELLED: EventType.RUN_CANCELLED,
}


@dataclass(slots=True)
class _RunEntries:
    """The gathered entries of one run."""

    events: list[Row] = field(default_factory=list)
    nodes: list[Row] = field(default_factory=list)
    status: str | None = None
    end_reason: str | None = None
    usage: str | None = None
    fence: int | None = None
    worker_id: str | None = None
    new: NewRun | None = None

    @property
    def logs(self) -> tuple[int, list[Row], int, list[Row]]:
        """Return how many events there are and their rows, and the same of nodes."""
        return len(self.events), packed(self.events), len(self.nodes), packed(self.nodes)


@dataclass(slots=True)
class RunLogBuffer:
    """Gathers; nothing is written before :meth:`flush`. Runs are changed in the order of their ids (locks)."""

    now_us: int
    _entries: defaultdict[str, _RunEntries] = field(default_factory=lambda: defaultdict(_RunEntries))

    def create(self, run: NewRun, status: RunStatus) -> None:
        """Insert a run, with its first event."""
        entry = self._entries[run.identity.run_id]
        entry.new, entry.status = run, status.value
        self.note(run.identity.run_id, EventType.RUN_CREATED, attempt=run.attempt)
        if run.nodes:
            self.add(run.identity.run_id, nodes=run.nodes)

    def note(self, run_id: str, type_: EventType, at_us: int | None = None, /, **data: Json) -> None:
        """Add one event of the store's own, of this moment or of an earlier one."""
        self._entries[run_id].events.append((type_.value, self.now_us if at_us is None else at_us, pack(data)))

    def add(self, run_id: str, *, nodes: Sequence[NewNode] = (), events: Sequence[NewEvent] = ()) -> None:
        """Add a caller's nodes and events."""
        entry = self._entries[run_id]
        entry.nodes.extend((node.parent, node.kind.value, pack(node.payload)) for node in nodes)
        entry.events.extend((str(e.type), e.time_us or self.now_us, pack(e.data)) for e in events)

    def start(self, run_id: str, fence: int, worker_id: str) -> None:
        entry = self._entries[run_id]
        entry.status, entry.fence, entry.worker_id = RunStatus.RUNNING.value, fence, worker_id

    def release(self, run_id: str) -> None:
        """Put a run whose lease ended, or that was parked, back in the queue."""
        entry = self._entries[run_id]
        entry.status, entry.worker_id = RunStatus.QUEUED.value, ""

    def park(self, run_id: str) -> None:
        """Let a run wait without a worker."""
        entry = self._entries[run_id]
        entry.status, entry.worker_id = RunStatus.PARKED.value, ""

    def end(self, run_id: str, status: RunStatus, reason: EndReason, usage: Usage | None = None) -> None:
        """End a run, with its event."""
        entry = self._entries[run_id]
        entry.status, entry.end_reason = status.value, reason.value
        # A run that used nothing leaves its row's usage as it is: empty.
        entry.usage = None if usage is None or usage == UNUSED else pack(usage.as_json())
        self.note(run_id, END_EVENT[status], end_reason=reason.value)

    def flush(self, tx: Transaction) -> None:
        """Write what was gathered."""
        if not self._entries:
            return
        surfaces, runs = self._new_runs()
        tx.insert(INSERT_SURFACES, surfaces)
        tx.insert(INSERT_RUNS, runs)
        standing = sorted((run_id, entry) for run_id, entry in self._entries.items() if entry.new is None)
        if tx.is_postgres:
            self._change_and_log(tx, standing)
        else:
            counted = [
                (run_id, e.status, e.end_reason, e.usage, e.fence, e.worker_id, len(e.events), len(e.nodes))
                for run_id, e in standing
            ]
            tx.change(CHANGE_RUNS, counted, now_us=self.now_us)
        self.flush_logs(tx)

    def ready(self, *, is_postgres: bool) -> tuple[ReadyRows, ...]:
        """Return what was gathered for runs that are all new, in the order in which it is to be inserted."""
        surfaces, runs = self._new_runs()
        tables: tuple[tuple[Insert, Iterable[Row]], ...] = (
            (INSERT_SURFACES, surfaces),
            (INSERT_RUNS, runs),
            *self.logs(),
        )
        return tuple((insert, list(batches_of(rows, is_postgres=is_postgres))) for insert, rows in tables)

    def _change_and_log(self, tx: Transaction, standing: Sequence[tuple[str, _RunEntries]]) -> None:
        """Change and log the existing runs; one that is let go stays as it is until its log is written."""
        rows, freed = [], []
        for run_id, entry in standing:
            del self._entries[run_id]
            state = (entry.status, entry.end_reason, entry.usage, entry.fence, entry.worker_id)
            is_let_go = entry.worker_id == ""
            rows.append((run_id, *((None, *state[1:4], None) if is_let_go else state), *entry.logs))
            freed += [(run_id, *state, 0, 0)] if is_let_go else []
        tx.change(CHANGE_AND_LOG, rows, now_us=self.now_us)
        tx.change(CHANGE_RUNS, freed, now_us=self.now_us)

    def _new_runs(self) -> tuple[list[tuple[str, str]], list[tuple[object, ...]]]:
        """Return the rows of surfaces and of runs."""
        surfaces: dict[str, str] = {}
        packed: dict[int, str] = {}
        rows: list[tuple[object, ...]] = []
        for run, entry in [(entry.new, entry) for entry in self._entries.values() if entry.new is not None]:
            # Runs of one plan share surfaces by identity: each is written out once.
            if id(run.surface) not in packed:
                body = pack(run.surface)
                packed[id(run.surface)] = digest_of(body)
                surfaces[packed[id(run.surface)]] = body
            row: dict[str, object] = {
                **IDENTITIES.values(run.identity),
                **NEW_RUNS.values(run),
                "id": run.identity.run_id,
                "dispatched_by": plain(run.identity.origin.principal),
                "is_foreign": int(run.identity.origin.is_foreign),
                "status": entry.status,
                "surface": packed[id(run.surface)],
                "last_seq": len(entry.events),
                "last_node": len(entry.nodes),
                "created_us": self.now_us,
                "started_us": self.now_us if entry.status == RunStatus.RUNNING else None,
            }
            rows.append(INSERT_RUNS.row(row))
        return sorted(surfaces.items()), rows

    def flush_logs(self, tx: Transaction) -> None:
        """Insert the gathered nodes and events only: the runs have been counted on."""
        for insert, rows in self.logs():
            tx.insert(insert, rows)
        self._entries.clear()

    def end_of(self, run_id: str) -> tuple[str | None, str | None, str | None, int, list[Row], int, list[Row]]:
        """Return (status, end reason, usage, number of events, their rows, number of nodes, their rows) of one run."""
        e = self._entries[run_id]
        return e.status, e.end_reason, e.usage, *e.logs

    def logs(self) -> tuple[tuple[Insert, Iterator[Row]], tuple[Insert, Iterator[Row]]]:
        """Return the rows of the gathered events and nodes, each made when it is asked for."""
        entries = self._entries.items()
        return (
            (INSERT_EVENTS, ((run_id, *row) for run_id, e in entries for row in packed(e.events))),
            (INSERT_NODES, ((run_id, *row, self.now_us) for run_id, e in entries for row in packed(e.nodes))),
        )


def packed(entries: Sequence[Row]) -> list[Row]:
    """Return the rows of what one write adds to a log: (first, second, document, preceding, place from the end).

    ``entries`` are (type, time, data) of events, or (parent, kind, payload) of nodes. Each row holds those before its
    own in ``preceding``; a result ends its row.
    """
    rows: list[Row] = []
    texts: list[str] = []
    size = 0
    left = len(entries)
    for first, second, document in entries:
        left -= 1
        is_last = second == NodeKind.RESULT or size + len(document) > ROW_CHARS or len(texts) + 1 == ROW_ENTRIES
        if left and not is_last:
            texts.append(f"[{pack(first)},{pack(second)},{document}]")
            size += len(document)
            continue
        rows.append((first, second, document, f"[{','.join(texts)}]" if texts else "", left))
        texts, size = [], 0
    return rows
