"""Runs that wait for consent without a slot: how they give it up, and how a closed question lets them continue.

A transaction that locks several of these locks them in one order: the questions of a run, its step, its row.
"""

from collections.abc import Sequence
from typing import Final

from soong.shared.engine.runs.events import EventType
from soong.shared.engine.tasks.step import Lease
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Row, Transaction

LOCK_PARKING: Final = Statement(
    "lock parking: the runs of a session park one after another, so that their limit is counted by one at a time; says "
    "whether this one is parked already, and the answer was lost",
    """
    SELECT session_id, CASE WHEN status = 'blocked' AND fence = :fence THEN 1 ELSE 0 END
        /*pg , pg_advisory_xact_lock(hashtextextended(session_id, 8)) */ FROM steps
    WHERE key = :key AND run_id = :run_id
    """,
)
PARKED: Final = Statement(
    "parked: how many steps of a session are, counted to its limit; read after the lock",
    """
    SELECT count(*) FROM (
        SELECT 1 FROM steps WHERE session_id = :session_id AND status = 'blocked' LIMIT :most
    ) AS parked
    """,
)
STILL_OPEN: Final = Statement(
    "still open: those of a run's questions that nobody has closed; held, so that nobody does before it has parked",
    """
    SELECT id FROM permission_requests WHERE id IN @ids AND run_id = :run_id AND state = 'pending'
    ORDER BY id /*pg FOR SHARE */
    """,
)
PARK: Final = Statement(
    "park: its holder gives a step up that waits for consent; not one that was asked to stop, whose task is paused, or "
    "whose run holds another step too, which would wait with it",
    """
    UPDATE steps SET status = 'blocked', worker_id = '', is_unparked = 0
    WHERE key = :key AND run_id = :run_id AND fence = :fence AND worker_id || '' = :worker_id
      AND status || '' = 'running' AND cancel_reason IS NULL AND is_paused = 0
      AND NOT EXISTS (SELECT 1 FROM steps AS additional WHERE additional.holder_run_id = :run_id
                      AND additional.holder_run_id <> '' AND additional.status = 'running')
    RETURNING key
    """,
)
UNPARK: Final = Statement(
    "unpark: the step of a run whose question is closed is ready again, if it was parked",
    """
    UPDATE steps SET status = 'ready', is_unparked = 1
    WHERE key = (SELECT step_key FROM runs WHERE id = :run_id) AND run_id = :run_id AND status || '' = 'blocked'
    RETURNING key
    """,
)
WITHDRAW_OF: Final = Statement(
    "withdraw of: the open questions of runs of a task that do not continue",
    """
    UPDATE permission_requests SET state = 'withdrawn'
    WHERE session_id = (SELECT session_id FROM tasks WHERE id = :task_id) AND state = 'pending' AND run_id IN @run_ids
    RETURNING id, run_id, tool_call_id
    """,
)


def park(
    tx: Transaction, worker_id: str, held: Lease, request_ids: Sequence[str], *, max_parked: int, now_us: int
) -> bool:
    """See :meth:`soong.shared.engine.tasks.claims.ClaimStore.park`."""
    lease = {"key": held.step_key, "run_id": held.run_id, "fence": held.fence}
    found = tx.rows(LOCK_PARKING, **lease)
    if not found:
        return False
    session_id, is_parked, *_ = found[0]
    if is_parked:
        return True
    if tx.value(PARKED, session_id=session_id, most=max_parked) >= max_parked:
        return False
    asked = sorted(set(request_ids))
    if len(tx.rows(STILL_OPEN, ids=asked, run_id=held.run_id)) < len(asked):
        return False
    if not tx.rows(PARK, **lease, worker_id=worker_id):
        return False
    run_log = RunLogBuffer(now_us)
    run_log.park(held.run_id)
    run_log.note(held.run_id, EventType.STEP_BLOCKED, step=held.step_key, fence=held.fence)
    run_log.note(held.run_id, EventType.RUN_PARKED, step=held.step_key, fence=held.fence, requests=asked)
    run_log.flush(tx)
    return True


def unpark(tx: Transaction, run_log: RunLogBuffer, run_id: str, request_id: str) -> bool:
    """Let the run of a question that was just closed continue, if it was parked; say whether it was."""
    rows = tx.rows(UNPARK, run_id=run_id)
    for (key,) in rows:
        run_log.release(run_id)
        run_log.note(run_id, EventType.STEP_UNPARKED, step=key, request=request_id)
    return bool(rows)


def withdraw_of(tx: Transaction, run_log: RunLogBuffer, task_id: str, run_ids: Sequence[str], reason: str) -> None:
    """Withdraw the questions of runs of a task that end while they are parked."""
    if run_ids:
        note_withdrawn(run_log, tx.rows(WITHDRAW_OF, task_id=task_id, run_ids=sorted(run_ids)), reason)


def note_withdrawn(run_log: RunLogBuffer, rows: Sequence[Row], reason: str) -> None:
    """Tell each run, of (request, run, tool call), that its question was taken back."""
    for request_id, run_id, call_id in sorted(rows):
        data = {"request_id": request_id, "tool_call_id": call_id, "reason": reason}
        run_log.note(run_id, EventType.PERMISSION_WITHDRAWN, **data)
