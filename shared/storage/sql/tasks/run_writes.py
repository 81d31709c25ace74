"""Writes into the logs of held runs, those of many runs in one statement, and the taint that they spread (PER-21).

The runs of a process write at the same moments: each answer and each end of a call is a write of its own, and on
PostgreSQL a round trip of its own cost more than what it wrote. The writer hands over all that has gathered
(:meth:`soong.shared.storage.sql.engine.database.Database.write_together`); each write counts, or does not, by its own
fence.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from soong.shared.agents.project_definitions import is_of_project
from soong.shared.core.errors import LeaseLostError, NotFoundError, SoongError
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import NewEvent, NewNode
from soong.shared.engine.runs.record import RunStatus
from soong.shared.engine.runs.store import Appended, CallRow
from soong.shared.engine.tasks.spec import StepKind
from soong.shared.storage.sql.engine.owned_writes import report
from soong.shared.storage.sql.engine.rows import CALL_COLUMNS, call_values
from soong.shared.storage.sql.engine.run_log_buffer import LAST_NODE, LAST_SEQ, RunLogBuffer, logged
from soong.shared.storage.sql.engine.statements import Statement, packed_batches
from soong.shared.storage.sql.engine.transaction import Row, Transaction

Outcome: TypeAlias = Appended | SoongError
"""The ends of the logs after a write, or a LeaseLostError."""

_KEY: Final = ("run_id", "tool_call_id")
APPEND: Final = Statement(
    "append: count a held run's logs on; no row means that the lease is lost",
    """
    UPDATE runs SET last_seq = last_seq + :events, last_node = last_node + :nodes
    WHERE id = :run_id AND fence = :fence AND status = 'running' RETURNING last_seq, last_node
    """,
)

_COLUMNS: Final = ", ".join(CALL_COLUMNS)
_GIVEN: Final = ", ".join(f"c.{name}" for name in CALL_COLUMNS)
_REPLACED: Final = ", ".join(f"{name} = excluded.{name}" for name in CALL_COLUMNS if name not in _KEY)
_REPLACE: Final = f"ON CONFLICT (run_id, tool_call_id) DO UPDATE SET {_REPLACED}"

APPEND_ALL: Final = Statement(
    "append all: the same of many runs, each once, with their nodes, events and calls, fused for PostgreSQL as the "
    "worker's hot path is; a run without a row has lost its lease, and nothing of it is written",
    f"""
    WITH counted AS (
        UPDATE runs SET
            last_seq = {LAST_SEQ} + given.added,
            last_node = {LAST_NODE} + given.nodes_added,
            tainted_us = coalesce(runs.tainted_us, CASE WHEN given.taints = 'true' THEN given.now_us END)
        FROM (
            SELECT v.line->>0 AS run_id, (v.line->>1)::bigint AS fence, (v.line->>2)::bigint AS now_us,
                   (v.line->>3)::bigint AS added, v.line->4 AS events,
                   (v.line->>5)::bigint AS nodes_added, v.line->6 AS nodes, v.line->7 AS calls,
                   v.line->>8 AS taints, v.line->>9 AS status
            FROM jsonb_array_elements(:writes ::jsonb) AS v(line)
        ) AS given
        WHERE runs.id = given.run_id AND runs.fence = given.fence AND runs.status = given.status
        RETURNING runs.id, runs.last_seq, runs.last_node,
                  given.now_us, given.events, given.nodes, given.calls
    ), {logged("counted.now_us")}, put AS (
        INSERT INTO calls (position, {_COLUMNS})
        SELECT (SELECT count(*) FROM calls AS had WHERE had.run_id = counted.id) + v.place - 1, {_GIVEN}
        FROM counted CROSS JOIN LATERAL jsonb_array_elements(counted.calls) WITH ORDINALITY AS v(line, place)
        CROSS JOIN LATERAL jsonb_populate_record(NULL::calls, v.line) AS c
        {_REPLACE}
    )
    SELECT id, last_seq, last_node FROM counted
    """,  # noqa: S608  # our own words
)

PUT_CALL: Final = Statement(
    "put call: write the ledger row as it is now; a call that continues, or is run again, has one row",
    f"""
    INSERT INTO calls (position, {_COLUMNS})
    VALUES ((SELECT count(*) FROM calls WHERE run_id = :run_id), {", ".join(f":{name}" for name in CALL_COLUMNS)})
    {_REPLACE}
    """,  # noqa: S608  # our own words
)

BELOW: Final = Statement(
    "below: the run and all that it and they started, whose results it reads; a child starts none",
    """
    WITH RECURSIVE below (id, session_id, role, step_key, is_over, tainted_us, definition) AS (
        SELECT id, session_id, role, step_key, CASE WHEN end_reason IS NULL THEN 0 ELSE 1 END, tainted_us, definition
        FROM runs WHERE id = :run_id
        UNION ALL
        SELECT child.id, child.session_id, child.role, child.step_key,
               CASE WHEN child.end_reason IS NULL THEN 0 ELSE 1 END, child.tainted_us, child.definition
        FROM below JOIN runs AS child ON child.session_id = below.session_id AND child.parent_run_id = below.id
        WHERE below.role NOT IN ('sub', 'fork', 'worker')
    )
    SELECT id, step_key, is_over, CASE WHEN tainted_us IS NULL THEN 0 ELSE 1 END,
           (SELECT kind FROM steps WHERE steps.key = below.step_key), definition
    FROM below
    """,
)
AGENTS_ABOVE: Final = Statement(
    "agents above: the agents whose instructions the run follows; the root run of a plan is held by nobody",
    """
    WITH RECURSIVE above (id, fence, parent_run_id) AS (
        SELECT parent.id, parent.fence, parent.parent_run_id
        FROM runs AS own JOIN runs AS parent ON parent.id = own.parent_run_id WHERE own.id = :run_id
        UNION ALL
        SELECT parent.id, parent.fence, parent.parent_run_id
        FROM above JOIN runs AS parent ON parent.id = above.parent_run_id
    )
    SELECT id FROM above WHERE fence > 0
    """,
)
TAINT: Final = Statement(
    "taint: a run that is held has read what strangers wrote; once is enough",
    "UPDATE runs SET tainted_us = :now_us WHERE id = :run_id AND tainted_us IS NULL",
)
FEEDING: Final = Statement(
    "feeding: the steps whose results these take in: dependencies, those of an item's map step, a map step's items",
    """
    SELECT source.key, source.kind, (SELECT 1 FROM runs WHERE runs.id = source.run_id AND runs.tainted_us IS NOT NULL),
           (SELECT definition FROM runs WHERE runs.id = source.run_id)
    FROM steps AS source
    WHERE source.key IN (
        SELECT s.task_id || '/' || e.value FROM steps AS s CROSS JOIN EACH OF s.depends_on AS e WHERE s.key IN @keys
        UNION
        SELECT m.task_id || '/' || e.value
        FROM steps AS item JOIN steps AS m ON m.key = item.map_key CROSS JOIN EACH OF m.depends_on AS e
        WHERE item.key IN @keys
        UNION
        SELECT key FROM steps WHERE map_key IN @keys AND map_key <> ''
    )
    """,
)


class RunWrite(Value):
    """Entries for the logs of a run that is running under that fence, with rows of its calls.

    ``taints``: the run has read what strangers wrote (PER-21). ``reports``: its events go into the audit log, as far
    as they belong there.
    """

    run_id: str
    fence: int
    now_us: int
    nodes: Sequence[NewNode] = ()
    events: Sequence[NewEvent] = ()
    calls: Sequence[CallRow] = ()
    taints: bool = False
    reports: bool = False


def write_runs(tx: Transaction, writes: Sequence[RunWrite]) -> list[Outcome]:
    """Make the writes of many runs; return the outcomes, a LeaseLostError for one that wrote nothing."""
    with tx.pipeline():
        outcomes = send_writes(tx, writes)
    made = outcomes()
    for write, outcome in zip(writes, made, strict=True):
        if write.reports and isinstance(outcome, Appended):
            report(tx, write.run_id, write.events, write.now_us)
    return made


def send_writes(tx: Transaction, writes: Sequence[RunWrite]) -> Callable[[], list[Outcome]]:
    """Make writes that report nothing; the outcomes are read after the statements that share their round trip."""
    if not tx.is_postgres:
        made = [_append(tx, write) for write in writes]
        return lambda: made
    sent = [
        (wave, [tx.send(APPEND_ALL, writes=given) for given in packed_batches(map(_given, wave))])
        for wave in _waves(writes)
    ]

    def outcomes() -> list[Outcome]:
        found: dict[int, Outcome] = {}
        for wave, replies in sent:
            counted = {run_id: Appended(*counts) for reply in replies for run_id, *counts in reply()}
            found |= {id(one): counted.get(one.run_id) or LeaseLostError(one.run_id, one.fence) for one in wave}
        return [found[id(write)] for write in writes]

    return outcomes


def append_held(tx: Transaction, *writes: RunWrite) -> None:
    """Write into the logs of runs that are running under their fences. Raises: LeaseLostError."""
    check_held(write_runs(tx, writes))


def check_held(outcomes: Sequence[Outcome]) -> None:
    """Raises: LeaseLostError, of the first write that was not made."""
    for outcome in outcomes:
        if isinstance(outcome, SoongError):
            raise outcome


def _waves(writes: Sequence[RunWrite]) -> Iterator[list[RunWrite]]:
    """Yield the writes in parts that name each run once, its earlier writes in earlier parts.

    Each part is in the order of its runs' ids, in which all that changes runs takes its locks.
    """
    rest = list(writes)
    while rest:
        wave: dict[str, RunWrite] = {}
        later = [write for write in rest if wave.setdefault(write.run_id, write) is not write]
        yield [wave[run_id] for run_id in sorted(wave)]
        rest = later


def _given(write: RunWrite) -> Row:
    log = RunLogBuffer(write.now_us)
    log.add(write.run_id, nodes=write.nodes, events=write.events)
    *_, added, events, nodes_added, nodes = log.end_of(write.run_id)
    calls = [call_values(call) for call in write.calls]
    # The status comes with each write: as a condition on runs alone it would have the planner begin with all of them.
    held = RunStatus.RUNNING.value
    return write.run_id, write.fence, write.now_us, added, events, nodes_added, nodes, calls, write.taints, held


def _append(tx: Transaction, write: RunWrite) -> Outcome:
    counts = {"events": len(write.events), "nodes": len(write.nodes)}
    counted = tx.first(APPEND, run_id=write.run_id, fence=write.fence, **counts)
    if counted is None:
        return LeaseLostError(write.run_id, write.fence)
    log = RunLogBuffer(write.now_us)
    log.add(write.run_id, nodes=write.nodes, events=write.events)
    log.flush_logs(tx)
    if write.taints:
        tx.rows(TAINT, run_id=write.run_id, now_us=write.now_us)
    for call in write.calls:
        tx.rows(PUT_CALL, **call_values(call))
    return Appended(*counted)


def is_tainted(tx: Transaction, run_id: str) -> bool:
    """Say whether the run, what it started, whose agent it is, or anything that fed them has read untrusted content.

    A function's step counts as such: its reads are not recorded. An agent passes on to those that it starts what it has
    read itself, and the results that it may have read: those of its children that have ended.
    Raises: NotFoundError.
    """
    below = tx.rows(BELOW, run_id=run_id)
    if not below:
        raise NotFoundError("run", run_id)
    if any(_is_source(row, run_id) for row in below):
        return True
    for agent in tx.column(AGENTS_ABOVE, run_id=run_id):
        results = (row for row in tx.rows(BELOW, run_id=agent) if row[0] == agent or row[2])
        if any(_is_source(row, agent) for row in results):
            return True
    return _is_fed(tx, {step_key for _, step_key, *_ in below} - {""})


def _is_source(row: Row, asker: str) -> bool:
    """Say whether a run of ``BELOW`` has read untrusted content, or is a function's whose result the asker reads."""
    run_id, _, is_over, tainted, kind, definition = row
    is_read = run_id != asker and bool(is_over)
    return (
        bool(tainted)
        or is_of_project(definition)
        or (is_read and kind is not None and StepKind(kind).traits.is_untrusted)
    )


def _is_fed(tx: Transaction, keys: set[str]) -> bool:
    """Say whether what these steps take in comes from a step that has read untrusted content."""
    seen: set[str] = set()
    while keys:
        seen |= keys
        sources = tx.rows(FEEDING, keys=sorted(keys))
        if any(
            tainted or is_of_project(definition or "") or StepKind(kind).traits.is_untrusted
            for _, kind, tainted, definition in sources
        ):
            return True
        keys = {key for key, *_ in sources} - seen
    return False
