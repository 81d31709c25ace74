"""PostgreSQL version of claiming the only step that is ready, as a new short task has it: one round trip in all.

The general claim looks at the lanes, takes, and reads what the tasks of the steps were given: three round trips and a
commit. Where one step alone is ready, no limit concerns it and this worker may hold it, one statement takes
it and tells all of it; sent alone it is a transaction of its own. Else it changes nothing, and the general claim
follows.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from soong.shared.core.jsontext import MAX_SAFE_INTEGER
from soong.shared.engine.tasks.step import Claim
from soong.shared.storage.sql.claims.claim_context import Contexts
from soong.shared.storage.sql.claims.claim_rows import ClaimedStep
from soong.shared.storage.sql.claims.completions import ClaimRequest
from soong.shared.storage.sql.claims.postgres_hot_path import HAS_ONE_DEPENDENT, STARTED_RUNS, TOLD_CLAIMS, told_claims
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import LeftUndoneError, Row, Transaction

_TASK_ID: Final = ClaimedStep._fields.index("task_id")

TAKE_ONLY: Final = Statement(
    "take only: claim the one step that is ready, if no other is and no limit concerns it; tell all of it",
    f"""
    WITH live AS MATERIALIZED (
        SELECT id FROM workers WHERE id = :worker_id AND state = 'live' FOR SHARE
    ), first AS MATERIALIZED (
        SELECT min(lane) AS lane FROM steps WHERE status = 'ready' AND is_paused = 0
    ), picked AS MATERIALIZED (
        SELECT p.key, p.lane FROM live CROSS JOIN first CROSS JOIN LATERAL (
            SELECT key, lane, pool, needs, claim_mode, session_id FROM steps
            WHERE steps.lane = first.lane AND status = 'ready' AND is_paused = 0
            ORDER BY is_unparked DESC, priority DESC, ordinal LIMIT 1 FOR UPDATE SKIP LOCKED
        ) AS p
        WHERE p.claim_mode = 'assigned' AND p.pool IN @pools
          AND NOT EXISTS (SELECT 1 FROM EACH OF p.needs AS n WHERE NOT n.value IN @capabilities)
          AND (SELECT min(s.lane) FROM steps s
               WHERE s.status = 'ready' AND s.is_paused = 0 AND s.lane > first.lane) IS NULL
          AND (SELECT count(*) FROM (
                  SELECT 1 FROM steps s WHERE s.lane = first.lane AND s.status = 'ready' AND s.is_paused = 0
                  ORDER BY s.is_unparked DESC, s.priority DESC, s.ordinal LIMIT 2
              ) AS ready) = 1
          AND NOT EXISTS (SELECT 1 FROM concurrency_limits WHERE substr(scope, 1, 8) <> 'session:')
          AND NOT EXISTS (SELECT 1 FROM concurrency_limits WHERE scope = 'session:' || p.session_id)
    ), claimed AS (
        UPDATE steps SET
            status = 'running', fence = fence + 1, starts = starts + 1, worker_id = :worker_id,
            started_us = coalesce(started_us, :now_us)
        FROM picked WHERE steps.key = picked.key
        RETURNING steps.key, fence, starts, run_id, kind, spec, attempt, task_id, session_id, priority, steps.ordinal,
                  steps.lane, is_unparked, CASE WHEN starts = 1 THEN ready_us END AS ready_us, title, steps.depends_on,
                  {HAS_ONE_DEPENDENT} AS is_followed
    ), {STARTED_RUNS}, turned AS (
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
    SELECT (SELECT inputs FROM tasks WHERE id = s.task_id), (SELECT title FROM tasks WHERE id = s.task_id),
           {TOLD_CLAIMS}
    FROM started AS s JOIN sessions ON sessions.id = s.session_id
    """,  # noqa: S608  # our own words
)


def take_only(tx: Transaction, contexts: Contexts, request: ClaimRequest) -> Claim | None:
    """Claim the only step that is ready; None where there is none or several, or the general claim may say more."""
    able = {"pools": list(request.pools), "capabilities": list(request.capabilities)}
    told = {"worker_id": request.worker_id, "now_us": request.now_us, **able}
    rows: Sequence[Row] = ()
    if tx.is_alone:
        with suppress(LeftUndoneError):  # by a malformed row, which the general claim meets, too
            with tx.alone():
                sent = tx.send(TAKE_ONLY, **told)
            rows = sent.rows()
    else:
        rows = tx.rows(TAKE_ONLY, **told)
    contexts.successors.note_only(is_only=bool(rows))
    if not rows:
        return None
    inputs, title, *row = rows[0]
    contexts.know_task(str(row[_TASK_ID]), inputs, title)
    ((_, claim),) = told_claims(tx, contexts, [tuple(row)])
    return claim
