"""The successor of an ended step: the one step that waited for it alone, claimed in the update that opens it.

A hop of a chain needs no look at the lanes when nothing else is ready: the next claim would take that step. Whatever
could make it take another, or none, is a condition of the update: another step that is ready, a concurrency limit,
other needs than those of the ended step, which this worker was able to hold. Where one of them fails, the step is
opened, and claimed in its turn, as every other.
"""

from typing import Final

from soong.shared.storage.sql.claims.claim_context import Contexts
from soong.shared.storage.sql.claims.claim_rows import ClaimedStep
from soong.shared.storage.sql.claims.claiming import TURNS, next_turn
from soong.shared.storage.sql.claims.completions import ClaimRequest, CompletionResult, EndedTasks
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
              CASE WHEN starts = 1 THEN ready_us END, title, coalesce(dependents, '') <> ''
    """,
)

AROUND_SUCCESSOR: Final = Statement(
    "around successor: what its task leaves its owner to do (map, failure), and the turns of its session and of all",
    """
    SELECT EXISTS (SELECT 1 FROM steps WHERE task_id = :task_id AND status = 'expanding'),
           EXISTS (SELECT 1 FROM steps
                   WHERE session_id = :session_id AND status = 'failed' AND is_settled = 0 AND task_id = :task_id),
           last_claimed, (SELECT max(last_claimed) FROM sessions)
    FROM sessions WHERE id = :session_id
    """,
)


def claim_successor(
    tx: Transaction, contexts: Contexts, ended: CompletionResult, request: ClaimRequest
) -> tuple[ClaimedStep, EndedTasks] | None:
    """Claim the successor of the one step that has ended; None when there is none, or the next claim takes another.

    Return with it what is left to do in its task.
    """
    if ended.successor is None or ended.successor.key is None or request.claim < 1:
        return None
    key, pool, needs = ended.successor
    told = {"worker_id": request.worker_id, "now_us": request.now_us}
    rows = tx.rows(CLAIM_SUCCESSOR, key=key, pool=pool, needs=needs, **told)
    if not rows:
        return None
    (step,), tasks = contexts.claimed(rows), EndedTasks()
    around = tx.rows(AROUND_SUCCESSOR, task_id=step.task_id, session_id=step.session_id)
    is_expanding, is_unsettled, last_claimed, last_turn = around[0]
    tasks.look(tx, step.task_id, step.session_id, is_expanding, is_unsettled, is_waiting=True)  # at the least for it
    if not 0 < last_claimed == last_turn:  # else another turn would change no order
        tx.change(TURNS, "turns", [(step.session_id, next_turn(last_turn))])
    return step, tasks
