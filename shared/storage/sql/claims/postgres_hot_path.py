"""PostgreSQL version of the claim/complete path.

Statements are combined into CTEs because round trips dominate its cost. Two round trips end, unlock and claim, and one
where the step that became ready is the only one, as in a chain; the texts mirror those of
:mod:`readiness` and :mod:`claiming`, and the contract's tests run over both.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Final

from soong.shared.core.jsontext import MAX_SAFE_INTEGER
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.storage.sql.claims.claim_context import Contexts, results_of
from soong.shared.storage.sql.claims.claiming import (
    READY_LANES,
    ClaimScan,
    Turns,
    lanes_of,
    last_first,
    most_ready,
    scan,
)
from soong.shared.storage.sql.claims.readiness import ClaimRequest, CompletionResult, end_row, note_end, settle_unlocked
from soong.shared.storage.sql.engine.engine import StaleReadError
from soong.shared.storage.sql.engine.rows import RUN_COLUMNS
from soong.shared.storage.sql.engine.run_log_buffer import LAST_NODE, LAST_SEQ, RunLogBuffer, logged
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Reply, Row, Transaction

# Planned once and kept (see engine), so each has one sensible plan only: no join between two parts of a statement (a
# row carries what later parts need), the tables reached by one index each, and conditions that would tempt the planner
# to another index written so that they cannot ("status || ''"). Waiting rows are changed in the order of their keys,
# one look by key for each: joins are loops here, so the order needs no lock of its own.
END_AND_UNLOCK: Final = Statement(
    "end and unlock: end steps while their holder holds them, end their runs, write their logs, count down what "
    "waited; the worker is held before its steps are, as by the owner that declares it gone",
    f"""
    WITH holder AS MATERIALIZED (
        SELECT id, state FROM workers WHERE id = :worker_id FOR SHARE
    ), e AS MATERIALIZED (
        SELECT * FROM @ends given(key text, run_id text, fence bigint, status text, outcome text, output text,
                                  error text, run_status text, end_reason text, usage text, added bigint,
                                  events jsonb, nodes_added bigint, nodes jsonb)
    ), ended AS (
        UPDATE steps SET
            status = e.status, outcome = e.outcome, output = e.output, error = e.error, ended_us = :now_us,
            is_settled = CASE WHEN e.status = 'failed' AND steps.cancel_reason IS NOT NULL THEN 1 ELSE 0 END,
            cancel_reason = NULL
        FROM e JOIN steps AS seen ON seen.key = e.key CROSS JOIN holder
        WHERE steps.key = ANY(ARRAY(SELECT key FROM e)) AND steps.key = e.key
          AND steps.run_id = e.run_id AND steps.fence = e.fence
          AND steps.worker_id || '' = holder.id AND steps.status || '' = 'running'
        RETURNING steps.key, steps.run_id, steps.task_id, steps.session_id, steps.status, steps.map_key,
                  e.run_status, e.end_reason, e.usage, e.added, e.events, e.nodes_added, e.nodes,
                  steps.growths <> seen.growths AS has_grown, steps.dependents
    ), fallen AS MATERIALIZED (
        SELECT key, sum(number) AS number FROM (
            SELECT ended.task_id || '/' || d.value AS key, 1 AS number
            FROM ended CROSS JOIN EACH OF ended.dependents AS d WHERE ended.status = 'completed'
            UNION ALL
            SELECT map_key, 1 FROM ended WHERE status = 'completed' AND map_key <> ''
        ) AS each_end GROUP BY key ORDER BY key
    ), unlocked AS (
        UPDATE steps SET
            open_deps = open_deps - f.number,
            status = CASE WHEN open_deps > f.number THEN status
                          WHEN status = 'waiting' THEN 'completed'
                          WHEN gate <> 'workers' THEN 'expanding'
                          ELSE 'ready' END,
            ended_us = CASE WHEN status = 'waiting' AND open_deps = f.number THEN :now_us ELSE ended_us END,
            ready_us = CASE WHEN open_deps = f.number THEN :now_us ELSE ready_us END
        FROM fallen AS f WHERE steps.key = f.key AND steps.status || '' IN ('pending', 'waiting')
        RETURNING steps.key, steps.task_id, steps.status
    ), counted AS (
        UPDATE runs SET
            status = c.run_status, end_reason = coalesce(c.end_reason, runs.end_reason),
            ended_us = CASE WHEN c.end_reason IS NULL THEN runs.ended_us ELSE :now_us END,
            usage = coalesce(c.usage, runs.usage),
            last_seq = {LAST_SEQ} + c.added,
            last_node = {LAST_NODE} + c.nodes_added
        FROM ended AS c WHERE runs.id = c.run_id
        RETURNING runs.id, runs.last_seq, runs.last_node, c.events, c.nodes
    ), {logged(":now_us")}
    SELECT key, task_id, session_id, has_grown, NULL AS status FROM ended
    UNION ALL
    SELECT key, task_id, NULL, NULL, status FROM unlocked
    """,  # noqa: S608
)

LOOK: Final = Statement(
    "scan: whether the worker lives (held), limits, the lanes",
    f"""
    WITH open_lane AS MATERIALIZED ({READY_LANES}), live AS (
        SELECT id FROM workers WHERE id = :worker_id AND state = 'live' FOR SHARE
    )
    SELECT 'live' AS kind, NULL::json AS found FROM live
    UNION ALL
    SELECT 'limit', to_json(scope) FROM concurrency_limits WHERE substr(scope, 1, 8) <> 'session:'
    UNION ALL
    SELECT 'limit', to_json(concurrency_limits.scope)
    FROM open_lane JOIN concurrency_limits ON concurrency_limits.scope = 'session:' || open_lane.session_id
    UNION ALL
    SELECT 'lane', to_json(open_lane) FROM open_lane
    """,  # noqa: S608
)

TAKE: Final = Statement(
    "take: claim each lane's first steps, or the step that is ready alone; start their runs with their events, "
    "remember the turns, return all of it",
    f"""
    WITH live AS MATERIALIZED (
        SELECT id FROM workers WHERE id = :worker_id AND state = 'live' FOR SHARE
    ), alone AS MATERIALIZED (
        SELECT step.lane, step.session_id FROM live CROSS JOIN steps AS step
        WHERE :alone ::bigint = 1 AND step.key = (
            SELECT min(key) FROM (
                SELECT key FROM steps WHERE status = 'ready' AND is_paused = 0
                ORDER BY lane, is_unparked DESC, priority DESC, ordinal LIMIT 2
            ) AS ready HAVING count(*) = 1
        ) AND step.claim_mode = 'assigned' AND step.pool IN @pools
          AND NOT EXISTS (SELECT 1 FROM EACH OF step.needs AS n WHERE NOT (n.value IN @capabilities))
          AND NOT EXISTS (SELECT 1 FROM concurrency_limits WHERE substr(scope, 1, 8) <> 'session:')
          AND NOT EXISTS (SELECT 1 FROM concurrency_limits WHERE scope = 'session:' || step.session_id)
    ), picked AS MATERIALIZED (
        SELECT p.key, wanted.lane FROM (
            SELECT lane, number FROM @quota given(lane text, number bigint)
            UNION ALL
            SELECT lane, 1 FROM alone
        ) AS wanted CROSS JOIN LATERAL (
            SELECT key FROM steps WHERE lane = wanted.lane AND status = 'ready' AND is_paused = 0
            ORDER BY is_unparked DESC, priority DESC, ordinal LIMIT wanted.number FOR UPDATE SKIP LOCKED
        ) AS p
    ), claimed AS (
        UPDATE steps SET
            status = 'running', fence = fence + 1, starts = starts + 1, worker_id = :worker_id,
            started_us = coalesce(started_us, :now_us)
        FROM picked WHERE steps.key = picked.key
        RETURNING steps.key, fence, starts, run_id, spec, attempt, task_id, session_id, priority, steps.ordinal,
                  steps.lane, is_unparked, CASE WHEN starts = 1 THEN ready_us END AS ready_us, steps.depends_on
    ), started AS (
        UPDATE runs SET
            status = 'running', fence = c.fence, worker_id = :worker_id,
            started_us = coalesce(runs.started_us, :now_us),
            last_seq = {LAST_SEQ} + CASE WHEN c.ready_us IS NULL THEN 2 ELSE 3 END
        FROM claimed AS c WHERE runs.id = c.run_id
        RETURNING c.key, c.fence, c.starts, c.run_id, c.spec, c.attempt, c.priority, c.ordinal, c.lane,
                  c.is_unparked, c.ready_us, c.depends_on,
                  {", ".join(f"runs.{name}" for name in RUN_COLUMNS)}, token, surface, last_seq, last_node
    ), begun AS (
        INSERT INTO events (run_id, seq, type, time_us, data, preceding)
        SELECT run_id, last_seq, CASE WHEN starts > 1 THEN 'run_resumed' ELSE 'run_started' END, :now_us,
               concat('{{"fence":', fence, '}}'),
               concat('[', '["step_ready",' || ready_us || ',{{}}],', '["step_claimed",', :now_us::bigint,
                      ',{{"fence":', fence, ',"worker":', to_json(:worker_id::text), '}}]]')
        FROM started
    ), turned AS (
        UPDATE sessions SET last_claimed = t.turn FROM (
            SELECT id, turn FROM @turns given(id text, turn bigint)
            UNION ALL
            SELECT session_id, least((SELECT max(last_claimed) FROM sessions), {MAX_SAFE_INTEGER - 1}) + 1 FROM alone
        ) AS t
        WHERE sessions.ordinal = (
            SELECT ordinal FROM sessions
            WHERE id = t.id AND (:alone ::bigint = 0 OR last_claimed = 0 OR last_claimed <> t.turn - 1)
            FOR NO KEY UPDATE SKIP LOCKED
        )
    )
    SELECT s.*, sessions.project, sessions.cwd, sessions.policy,
           (SELECT json_agg(json_build_object('child_key', s.key, 'key', p.key, 'step_id', p.step_id,
                                              'status', p.status, 'kind', p.kind, 'output', p.output,
                                              'outcome', p.outcome) ORDER BY e.key)
            FROM EACH OF s.depends_on AS e JOIN steps AS p ON p.key = s.task_id || '/' || e.value) AS dependencies
    FROM started AS s JOIN sessions ON sessions.id = s.session_id
    """,  # noqa: S608
)


def end_and_claim(
    tx: Transaction, contexts: Contexts, ends: Mapping[str, StepEnd], request: ClaimRequest
) -> tuple[CompletionResult, list[Claim], ClaimScan]:
    """Write the ends, unlock, claim the step that is ready alone, and look at what more may be claimed: one round trip.

    A hop of a chain needs no more. Each reason for the next claim to take another step, or none, is a condition: a
    second step that is ready, a concurrency limit.
    """
    with tx.pipeline():
        ended_reply = taken_reply = None
        if ends:
            rows = [_logged_end_row(end, request.now_us) for end in ends.values()]
            ended_reply = tx.send(END_AND_UNLOCK, ends=rows, worker_id=request.worker_id, now_us=request.now_us)
        if request.claim > 0:
            taken_reply = _send_take(tx, request)
        look_reply = tx.send(LOOK, worker_id=request.worker_id, most=most_ready(request))
    # Read after the pipeline has ended: its end is a round trip, and reading within it would be another.
    ended, opened = CompletionResult(), []
    for row in ended_reply() if ended_reply is not None else ():
        if row.status is not None:
            opened.append(row)
            continue
        if row.has_grown:
            raise StaleReadError(f"steps were made to depend on {row.key!r} while its end was being written")
        ended.written.add(row.key)
        ended.sessions[row.task_id] = row.session_id
    taken = _claims(tx, contexts, taken_reply()) if taken_reply is not None else []
    ended.unlocked, has_completed_maps = settle_unlocked(tx, opened, request.now_us)
    # The lanes are read again if completed maps have opened more.
    seen = scan(tx, request) if has_completed_maps else _scan(look_reply())
    return ended, [claim for _, claim in taken], seen


def _logged_end_row(end: StepEnd, now_us: int) -> tuple[object, ...]:
    """Return an end with all that it writes to its run."""
    run_log = RunLogBuffer(now_us)
    note_end(run_log, end)
    return (*end_row(end), *run_log.end_of(end.run_id))


def _scan(rows: Sequence[Row]) -> ClaimScan:
    lanes, last_turn = lanes_of([SimpleNamespace(**row.found) for row in rows if row.kind == "lane"])
    return ClaimScan(
        is_live=any(row.kind == "live" for row in rows),
        lanes=lanes,
        limited=frozenset(row.found for row in rows if row.kind == "limit"),
        last_turn=last_turn,
    )


def take(
    tx: Transaction, contexts: Contexts, _: RunLogBuffer, request: ClaimRequest, turns: Turns
) -> dict[str, list[Claim]]:
    """Claim each lane's first steps, all in one statement."""
    taken: dict[str, list[Claim]] = {}
    for lane, claim in _claims(tx, contexts, _send_take(tx, request, turns)()):
        taken.setdefault(lane, []).append(claim)
    return taken


def _send_take(tx: Transaction, request: ClaimRequest, turns: Turns | None = None) -> Reply:
    """Claim what the turns say; without turns, the step that is ready alone."""
    return tx.send(
        TAKE,
        quota=sorted(Counter(turns.order).items()) if turns else [],
        turns=sorted(turns.turn.items()) if turns else [],
        alone=int(turns is None),
        pools=list(request.pools),
        capabilities=list(request.capabilities),
        worker_id=request.worker_id,
        now_us=request.now_us,
    )


def _claims(tx: Transaction, contexts: Contexts, rows: Sequence[Row]) -> list[tuple[str, Claim]]:
    """Return claims with their lanes, the next one last, given rows of ``TAKE``."""
    if not rows:
        return []
    dependencies = [SimpleNamespace(**one) for row in rows for one in row.dependencies or ()]
    context, results = contexts.of_runs(tx, rows), results_of(tx, dependencies)
    return [(row.lane, context.claim(row, results.get(row.key, {}))) for row in sorted(rows, key=last_first)]
