"""Writes into the logs of held runs, those of many runs in one statement.

The runs of a process write at the same moments: each answer and each end of a call is a write of its own, and on
PostgreSQL a round trip of its own cost more than what it wrote. The writer hands over all that has gathered
(:meth:`soong.shared.storage.sql.engine.database.Database.write_together`); each write counts, or does not, by its own
fence.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from soong.shared.core.errors import LeaseLostError, SoongError
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import NewEvent, NewNode
from soong.shared.engine.runs.status import RunStatus
from soong.shared.engine.runs.store import Appended, CallRow
from soong.shared.storage.sql.engine.audit_log import report
from soong.shared.storage.sql.engine.rows import CALL_COLUMNS, call_values
from soong.shared.storage.sql.engine.run_log_buffer import LAST_NODE, LAST_SEQ, RunLogBuffer, logged
from soong.shared.storage.sql.engine.statements import Statement, packed_batches
from soong.shared.storage.sql.engine.transaction import Row, Transaction
from soong.shared.storage.sql.tasks.taint import TAINT

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
    "append all: the same of many runs, each once, with their nodes, events and last call, fused for PostgreSQL as the "
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
        SELECT (SELECT count(*) FROM calls AS had WHERE had.run_id = counted.id), {_GIVEN}
        FROM counted CROSS JOIN LATERAL jsonb_populate_recordset(NULL::calls, counted.calls) AS c
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


class RunWrite(Value):
    """What is appended to the logs of a run that is running under that fence, with rows of its calls.

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


def write_runs(tx: Transaction, writes: Sequence[RunWrite]) -> list[Appended | SoongError]:
    """Make the writes of many runs; return the outcomes, a LeaseLostError for one that wrote nothing."""
    made: dict[int, Appended | SoongError] = {}
    for wave in _waves(writes):
        made |= {id(write): outcome for write, outcome in zip(wave, _written(tx, wave), strict=True)}
    return [made[id(write)] for write in writes]


def append_held(
    tx: Transaction, run_id: str, fence: int, nodes: Sequence[NewNode], events: Sequence[NewEvent], now_us: int
) -> Appended:
    """Append to the logs of a run that is running under that fence. Raises: LeaseLostError."""
    (outcome,) = _written(tx, [RunWrite(run_id, fence, now_us, nodes, events)])
    if isinstance(outcome, SoongError):
        raise outcome
    return outcome


@contextmanager
def appending(tx: Transaction, writes: Sequence[RunWrite]) -> Iterator[None]:
    """Append to the logs of held runs, in one round trip with what is sent within.

    What is sent within must be undone with the transaction when a lease is lost. Not for writes that ``report``, nor
    for more than one call of each.

    Raises:
        LeaseLostError: of one of them, on PostgreSQL at the end.
    """
    if not tx.is_postgres:
        for outcome in write_runs(tx, writes):
            if isinstance(outcome, SoongError):
                raise outcome
        yield
        return
    with tx.pipeline():
        sent = [
            (wave, [tx.send(APPEND_ALL, writes=given) for given in packed_batches(map(_given, wave))])
            for wave in _waves(writes)
        ]
        yield
    for wave, replies in sent:
        counted = {row[0] for reply in replies for row in reply.rows()}
        for lost in (write for write in wave if write.run_id not in counted):
            raise LeaseLostError(lost.run_id, lost.fence)


def put_call(tx: Transaction, call: CallRow) -> None:
    """Write a call's row."""
    tx.rows(PUT_CALL, **call_values(call))


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


def _written(tx: Transaction, wave: Sequence[RunWrite]) -> list[Appended | SoongError]:
    outcomes = _append_all(tx, wave) if tx.is_postgres else [_append(tx, write) for write in wave]
    for write, outcome in zip(wave, outcomes, strict=True):
        if not isinstance(outcome, Appended):
            continue
        if write.reports:
            report(tx, write.run_id, write.events, write.now_us)
        for call in write.calls[1:] if tx.is_postgres else write.calls:
            put_call(tx, call)
    return outcomes


def _append_all(tx: Transaction, wave: Sequence[RunWrite]) -> list[Appended | SoongError]:
    counted: dict[str, Appended] = {}
    for writes in packed_batches(map(_given, wave)):
        for run_id, *counts in tx.rows(APPEND_ALL, writes=writes):
            counted[run_id] = Appended(*counts)
    return [counted.get(write.run_id) or LeaseLostError(write.run_id, write.fence) for write in wave]


def _given(write: RunWrite) -> Row:
    log = RunLogBuffer(write.now_us)
    log.add(write.run_id, nodes=write.nodes, events=write.events)
    *_, added, events, nodes_added, nodes = log.end_of(write.run_id)
    calls = [call_values(call) for call in write.calls[:1]]
    # The status comes with each write: as a condition on runs alone it would have the planner begin with all of them.
    held = RunStatus.RUNNING.value
    return write.run_id, write.fence, write.now_us, added, events, nodes_added, nodes, calls, write.taints, held


def _append(tx: Transaction, write: RunWrite) -> Appended | SoongError:
    counts = {"events": len(write.events), "nodes": len(write.nodes)}
    counted = tx.rows(APPEND, run_id=write.run_id, fence=write.fence, **counts)
    if not counted:
        return LeaseLostError(write.run_id, write.fence)
    log = RunLogBuffer(write.now_us)
    log.add(write.run_id, nodes=write.nodes, events=write.events)
    log.flush_logs(tx)
    if write.taints:
        tx.rows(TAINT, run_id=write.run_id, now_us=write.now_us)
    return Appended(*counted[0])
