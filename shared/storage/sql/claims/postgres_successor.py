"""PostgreSQL version of claiming the successor of an ended step: one round trip ends, opens and claims.

The texts mirror those of :mod:`successor`, and the contract's tests run over both. A worker with a database role of its
own may not claim what nobody has opened (:mod:`soong.shared.storage.sql.roles.row_rules`): it opens and claims.
"""

from typing import Final

from soong.shared.core.jsontext import MAX_SAFE_INTEGER
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.storage.sql.claims.claim_context import Contexts
from soong.shared.storage.sql.claims.completions import ClaimRequest, CompletionResult
from soong.shared.storage.sql.claims.postgres_hot_path import (
    ENDED_STEPS,
    HAS_ONE_DEPENDENT,
    LOGGED_ENDS,
    STARTED_RUNS,
    TOLD_CLAIMS,
    logged_end_row,
    note_ended,
    told_claims,
)
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Transaction

END_AND_CLAIM: Final = Statement(
    "end and claim: end a step and its run, open the one that waits for it alone, claim that if the next claim would",
    f"""
    WITH {ENDED_STEPS}, claimed AS (
        UPDATE steps SET
            open_deps = 0, ready_us = :now_us,
            status = 'running', fence = fence + 1, starts = starts + 1, worker_id = :worker_id,
            started_us = coalesce(started_us, :now_us)
        FROM (
            SELECT task_id || '/' || (dependents::json->>0) AS key, pool, needs, session_id
            FROM ended CROSS JOIN holder
            WHERE status = 'completed' AND map_key = '' AND NOT has_grown AND json_array_length(dependents::json) = 1
              AND holder.state = 'live' AND has_table_privilege('tasks', 'UPDATE')
        ) AS successor
        WHERE steps.key = successor.key AND steps.status || '' = 'pending' AND open_deps = 1 AND kind <> 'map'
          AND is_paused = 0 AND claim_mode = 'assigned'
          AND steps.pool || '' = successor.pool AND steps.needs || '' = successor.needs
          AND (SELECT min(lane) FROM steps WHERE status = 'ready' AND is_paused = 0) IS NULL
          AND NOT EXISTS (SELECT 1 FROM concurrency_limits WHERE substr(scope, 1, 8) <> 'session:')
          AND NOT EXISTS (SELECT 1 FROM concurrency_limits WHERE scope = 'session:' || successor.session_id)
        RETURNING steps.key, fence, starts, run_id, kind, spec, attempt, task_id, steps.session_id, priority,
                  steps.ordinal, steps.lane, is_unparked, CASE WHEN starts = 1 THEN ready_us END AS ready_us, title,
                  steps.depends_on, {HAS_ONE_DEPENDENT} AS is_followed
    ), {LOGGED_ENDS}, {STARTED_RUNS}, turned AS (
        UPDATE sessions SET last_claimed = t.last_turn + 1
        FROM (
            SELECT session_id AS id,
                   (SELECT least(max(last_claimed), {MAX_SAFE_INTEGER - 1}) FROM sessions) AS last_turn
            FROM claimed
        ) AS t
        WHERE sessions.ordinal = (SELECT ordinal FROM sessions
                                  WHERE id = t.id AND NOT (last_claimed > 0 AND last_claimed = t.last_turn)
                                  FOR NO KEY UPDATE SKIP LOCKED)
    )
    SELECT ended.key, ended.task_id, ended.session_id, ended.has_grown,
           {TOLD_CLAIMS}
    FROM ended LEFT JOIN (started AS s JOIN sessions ON sessions.id = s.session_id) ON true
    """,  # noqa: S608  # our own words
)


def end_and_claim(
    tx: Transaction, contexts: Contexts, end: StepEnd, request: ClaimRequest
) -> tuple[CompletionResult, Claim | None]:
    """Write an end and claim its step's successor; without a claim, what waited for it is still to be opened."""
    ended = CompletionResult()
    rows = tx.rows(
        END_AND_CLAIM,
        ends=[logged_end_row(end, request.now_us)],
        worker_id=request.worker_id,
        now_us=request.now_us,
    )
    claim = None
    for key, task_id, session_id, has_grown, *told in rows:
        note_ended(ended, key, task_id, session_id, has_grown=has_grown)
        ended.completed.append(key)
        if told[0] is not None:
            ((_, claim),) = told_claims(tx, contexts, [tuple(told)], end)
    contexts.successors.note_try(end, has_claimed=claim is not None)
    return ended, claim
