"""The successor of an ended step: the one step that waited for it alone, claimed in the update that opens it.

A hop of a chain needs no look at the lanes when nothing else is ready: the next claim would take that step. Whatever
could make it take another, or none, is a condition of the update: another step that is ready, a concurrency limit,
other needs than those of the ended step, which this worker was able to hold. Where one of them fails, the step is
opened, and claimed in its turn, as every other.
"""

from typing import Final

from soong.shared.storage.sql.claims.claim_rows import ClaimedStep
from soong.shared.storage.sql.claims.claiming import TURNS, next_turn
from soong.shared.storage.sql.claims.completions import ClaimRequest, CompletionResult
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Transaction

CLAIM_SUCCESSOR: Final = Statement(
    "claim successor: open a step that waits for one more end, and claim it, if the next claim would take it",
    """
    UPDATE steps SET
        open_deps = 0, ready_us = :now_us,
        status = 'running', fence = fence + 1, starts = starts + 1, worker_id = :worker_id,
        started_us = coalesce(started_us, :now_us)
    WHERE key = :key AND status || '' = 'pending' AND open_deps = 1 AND kind <> 'map' AND is_paused = 0
      AND claim_mode = 'assigned' AND pool = :pool AND needs = :needs
      AND (SELECT min(lane) FROM steps WHERE status = 'ready' AND is_paused = 0) IS NULL
      AND EXISTS (SELECT 1 FROM workers WHERE id = :worker_id AND state = 'live')
      AND NOT EXISTS (SELECT 1 FROM concurrency_limits WHERE substr(scope, 1, 8) <> 'session:')
      AND NOT EXISTS (SELECT 1 FROM concurrency_limits WHERE scope = 'session:' || steps.session_id)
    RETURNING key, fence, starts, run_id, kind, spec, attempt, task_id, session_id, priority, ordinal, is_unparked,
              CASE WHEN starts = 1 THEN ready_us END, title
    """,
)

TURN_OF_SESSION: Final = Statement(
    "turn of session: its last turn, and the last of all sessions",
    "SELECT last_claimed, (SELECT max(last_claimed) FROM sessions) FROM sessions WHERE id = :session_id",
)


def claim_successor(tx: Transaction, ended: CompletionResult, request: ClaimRequest) -> ClaimedStep | None:
    """Claim the successor of the one step that has ended; None when there is none, or the next claim takes another."""
    if ended.successor is None or ended.successor.key is None or request.claim < 1:
        return None
    key, pool, needs = ended.successor
    told = {"worker_id": request.worker_id, "now_us": request.now_us}
    rows = tx.rows(CLAIM_SUCCESSOR, key=key, pool=pool, needs=needs, **told)
    if not rows:
        return None
    step = ClaimedStep._make(rows[0])
    last_claimed, last_turn = tx.rows(TURN_OF_SESSION, session_id=step.session_id)[0]
    if not 0 < last_claimed == last_turn:  # else another turn would change no order
        tx.change(TURNS, "turns", [(step.session_id, next_turn(last_turn))])
    return step
