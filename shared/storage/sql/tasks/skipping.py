"""Steps that do not run: those that need a step which will not complete, and the joins that continue without it."""

from collections.abc import Sequence
from typing import Final

from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import EndReason, RunStatus
from soong.shared.engine.tasks.spec import StepGate
from soong.shared.engine.tasks.step import Outcome
from soong.shared.storage.sql.claims.readiness import root_run_of
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.tasks.inserts import open_step

_BELOW: Final = """WITH RECURSIVE below(key) AS (
        SELECT s.task_id || '/' || d.value FROM steps AS s CROSS JOIN EACH OF s.dependents AS d WHERE s.key = :key
        UNION
        SELECT s.task_id || '/' || d.value
        FROM below JOIN steps AS s ON s.key = below.key CROSS JOIN EACH OF s.dependents AS d
        WHERE s.gate <> 'ended'
    )"""
"""The steps below one, up to and with the first joins."""

SKIP_BELOW: Final = Statement(
    "skip below: every step that waits, at whatever distance, for one that will not complete, and needs that",
    f"""
    {_BELOW}
    UPDATE steps SET status = 'skipped', outcome = :outcome, ended_us = :now_us
    WHERE key IN (SELECT key FROM below) AND status || '' = 'pending' AND gate <> 'ended'
    /*pg AND key = ANY(ARRAY(SELECT s.key FROM below JOIN steps AS s ON s.key = below.key
                                 ORDER BY s.key FOR UPDATE OF s)) */
    RETURNING key, run_id
    """,  # noqa: S608  # our own words alone
)

JOINS_BELOW: Final = Statement(
    "joins below: the steps at its edge, which need only that what they wait for has ended; they are locked",
    f"""
    {_BELOW}
    SELECT key FROM steps
    WHERE key IN (SELECT key FROM below) AND gate = 'ended' AND status || '' = 'pending'
    /*pg AND key = ANY(ARRAY(SELECT key FROM below)) */
    """,  # noqa: S608  # our own words alone
)
RECOUNT: Final = Statement(
    "recount: what these steps wait for, where it is fewer than was counted; read after they were locked",
    """
    UPDATE steps SET open_deps = c.number FROM (
        SELECT w.key AS key, sum(CASE WHEN p.status = 'completed' OR (p.status = 'failed' AND p.is_settled = 1
                                           AND (p.on_failure = 'keep' OR w.gate = 'ended'))
                                       OR (p.status IN ('cancelled', 'skipped') AND w.gate = 'ended')
                                      THEN 0 ELSE 1 END) AS number
        FROM steps AS w CROSS JOIN EACH OF w.depends_on AS e JOIN steps AS p ON p.key = w.task_id || '/' || e.value
        WHERE w.key IN @keys GROUP BY w.key
    ) AS c
    WHERE steps.key = c.key AND steps.open_deps > c.number AND steps.status || '' = 'pending'
    RETURNING steps.key, steps.gate, steps.run_id, steps.open_deps
    """,
)


def skip_below(
    tx: Transaction, run_log: RunLogBuffer, task_id: str, step_key: str, now_us: int, *, outcome: Outcome | None = None
) -> None:
    """Skip what needs a step that will not complete, and open what only waited for its end.

    ``outcome`` is that of the skipped: CLEAN when the plan's own conditions decided so.
    """
    rows = sorted(tx.rows(SKIP_BELOW, key=step_key, outcome=outcome and outcome.value, now_us=now_us))
    joins = tx.column(JOINS_BELOW, key=step_key)
    root_run_id = root_run_of(tx, task_id) if rows or joins else ""
    for key, run_id in tx.paced(rows):
        run_log.note(run_id or root_run_id, EventType.STEP_SKIPPED, step=key, because=step_key)
        if run_id:
            run_log.end(run_id, RunStatus.CANCELLED, EndReason.CANCELLED)
    recount(tx, run_log, joins, root_run_id)


def recount(tx: Transaction, run_log: RunLogBuffer, keys: Sequence[str], root_run_id: str) -> int:
    """Count again what pending steps, which are locked, wait for; open those that wait for nothing. Return how many."""
    rows = tx.rows(RECOUNT, keys=keys) if keys else ()
    opened = [(key, StepGate(gate), run_id) for key, gate, run_id, open_deps in rows if not open_deps]
    for key, gate, run_id in opened:
        open_step(tx, run_log, key, gate, run_id or root_run_id)
    return len(opened)
