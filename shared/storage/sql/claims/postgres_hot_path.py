"""PostgreSQL version of the claim/complete path.

Statements are combined into CTEs because round trips dominate its cost. Two round trips end, unlock and claim; the
texts mirror those of :mod:`completions`, :mod:`readiness` and :mod:`claiming`, and the contract's tests run over both.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.storage.sql.claims.claim_context import Contexts, results_of_rows
from soong.shared.storage.sql.claims.claim_rows import ClaimedStep, ResultRow
from soong.shared.storage.sql.claims.claiming import (
    ClaimScan,
    Turns,
    lanes_of_rows,
    last_first,
    last_turn_of,
    most_ready,
    scan,
)
from soong.shared.storage.sql.claims.completions import (
    ClaimRequest,
    CompletionResult,
    end_row,
    note_end,
)
from soong.shared.storage.sql.claims.readiness import COUNT_DOWN, settle_unlocked
from soong.shared.storage.sql.engine.engine import StaleReadError
from soong.shared.storage.sql.engine.run_log_buffer import LAST_NODE, LAST_SEQ, RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Row, Transaction

_ENDED: Final = 1
_UNLOCKED: Final = 2
"""What a row of ``END_AND_UNLOCK`` is of."""
_STEP: Final = len(ClaimedStep._fields)
"""How many columns of ``TAKE`` are the step's; its lane, what it waited for and its run follow."""

# Planned once and kept (see engine), so each has one sensible plan only: no join between two parts of a statement
# (a row carries what later parts need), the tables reached by one index each, and conditions that would tempt the
# planner to another index written so that they cannot ("status || ''"). What waits is changed in the order of its keys,
# one look by key for each: joins are loops here, so no lock of its own is needed for the order.
ENDED_STEPS: Final = """
    holder AS MATERIALIZED (
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
                  steps.growths <> seen.growths AS has_grown, steps.dependents, steps.pool, steps.needs
    )
"""
"""Ends steps while their holder holds them; ``holder`` is held before they are."""

LOGGED_ENDS: Final = f"""
    counted AS (
        UPDATE runs SET
            status = c.run_status, end_reason = coalesce(c.end_reason, runs.end_reason),
            ended_us = CASE WHEN c.end_reason IS NULL THEN runs.ended_us ELSE :now_us END,
            usage = coalesce(c.usage, runs.usage),
            last_seq = {LAST_SEQ} + c.added,
            last_node = {LAST_NODE} + c.nodes_added
        FROM ended AS c WHERE runs.id = c.run_id
        RETURNING runs.id, runs.last_seq, runs.last_node, c.events, c.nodes
    ), noted AS (
        INSERT INTO events (run_id, seq, type, time_us, data, preceding)
        SELECT counted.id, counted.last_seq - (v.line->>0)::bigint,
               v.line->>1, (v.line->>2)::bigint, v.line->>3, v.line->>4
        FROM counted CROSS JOIN LATERAL jsonb_array_elements(counted.events) AS v(line)
    ), grown AS (
        INSERT INTO nodes (run_id, number, parent, kind, payload, preceding, created_us)
        SELECT counted.id, counted.last_node - (v.line->>0)::bigint,
               coalesce((v.line->>1)::bigint, counted.last_node - (v.line->>0)::bigint - 1),
               v.line->>2, v.line->>3, v.line->>4, :now_us
        FROM counted CROSS JOIN LATERAL jsonb_array_elements(counted.nodes) AS v(line)
    )
"""  # noqa: S608  # our own words, here and below
"""Ends their runs and writes their logs."""

END_AND_UNLOCK: Final = Statement(
    "end and unlock: end steps while their holder holds them, end their runs, write their logs, count down what "
    "waited; the worker is held before its steps are, as by the owner that declares it gone",
    f"""
    WITH {ENDED_STEPS}, fallen AS MATERIALIZED (
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
                          WHEN kind = 'map' THEN 'expanding'
                          ELSE 'ready' END,
            ended_us = CASE WHEN status = 'waiting' AND open_deps = f.number THEN :now_us ELSE ended_us END,
            ready_us = CASE WHEN open_deps = f.number THEN :now_us ELSE ready_us END
        FROM fallen AS f WHERE steps.key = f.key AND steps.status || '' IN ('pending', 'waiting')
        RETURNING steps.key, steps.task_id, steps.status, steps.kind, steps.run_id, steps.open_deps
    ), {LOGGED_ENDS}
    SELECT {_ENDED}, key, task_id, session_id, '', '', has_grown::int FROM ended
    UNION ALL
    SELECT {_UNLOCKED}, key, task_id, status, kind, run_id, open_deps FROM unlocked
    """,  # noqa: S608
)

LOOK: Final = Statement(
    "scan: whether the worker lives (held), limits, the lanes",
    """
    WITH RECURSIVE lane(lane) AS (
        SELECT min(lane) FROM steps WHERE status = 'ready' AND is_paused = 0
        UNION ALL
        SELECT (SELECT min(s.lane) FROM steps s WHERE s.status = 'ready' AND s.is_paused = 0 AND s.lane > lane.lane)
        FROM lane WHERE lane.lane IS NOT NULL
    ), live AS (SELECT id FROM workers WHERE id = :worker_id AND state = 'live' FOR SHARE)
    SELECT 'live', NULL::json FROM live
    UNION ALL
    SELECT 'limit', to_json(scope) FROM concurrency_limits WHERE substr(scope, 1, 8) <> 'session:'
    UNION ALL
    SELECT 'limit', to_json(concurrency_limits.scope) FROM lane AS l CROSS JOIN LATERAL (
        SELECT s.session_id FROM steps s WHERE s.lane = l.lane AND s.status = 'ready' AND s.is_paused = 0
        ORDER BY s.is_unparked DESC, s.priority DESC, s.ordinal LIMIT 1
    ) AS head JOIN concurrency_limits ON concurrency_limits.scope = 'session:' || head.session_id
    UNION ALL
    SELECT 'lane', json_build_array(l.lane, head.session_id, head.pool, head.needs, head.definition, head.model,
        head.is_unparked, head.priority, head.ordinal,
        (SELECT count(*) FROM (
            SELECT 1 FROM steps s WHERE s.lane = l.lane AND s.status = 'ready' AND s.is_paused = 0
            ORDER BY s.is_unparked DESC, s.priority DESC, s.ordinal LIMIT :most
        ) AS ready),
        sessions.last_claimed, (SELECT max(last_claimed) FROM sessions), head.claim_mode)
    FROM lane AS l
    JOIN steps AS head ON head.key = (
        SELECT s.key FROM steps s WHERE s.lane = l.lane AND s.status = 'ready' AND s.is_paused = 0
        ORDER BY s.is_unparked DESC, s.priority DESC, s.ordinal LIMIT 1
    )
    JOIN sessions ON sessions.id = head.session_id
    """,
)

HAS_ONE_DEPENDENT: Final = """
    steps.map_key = '' AND CASE WHEN octet_length(steps.dependents) < 200
                                THEN json_array_length(steps.dependents::json) = 1 ELSE false END
"""
"""Whether one step alone waits for a step, if that can be said by little reading."""

STARTED_RUNS: Final = f"""
    started AS (
        UPDATE runs SET
            status = 'running', fence = c.fence, worker_id = :worker_id,
            started_us = coalesce(runs.started_us, :now_us),
            last_seq = {LAST_SEQ} + CASE WHEN c.ready_us IS NULL THEN 2 ELSE 3 END
        FROM claimed AS c WHERE runs.id = c.run_id
        RETURNING c.key, c.fence, c.starts, c.run_id, c.kind, c.spec, c.attempt, c.task_id, c.session_id, c.priority,
                  c.ordinal, c.lane, c.is_unparked, c.ready_us, c.title, c.depends_on, c.is_followed,
                  agent_id, role, definition, parent_run_id, parent_agent_id, step_title, model, token, surface,
                  dispatched_by, is_foreign, last_seq, last_node
    ), begun AS (
        INSERT INTO events (run_id, seq, type, time_us, data, preceding)
        SELECT run_id, last_seq, CASE WHEN starts > 1 THEN 'run_resumed' ELSE 'run_started' END, :now_us,
               concat('{{"fence":', fence, '}}'),
               concat('[', '["step_ready",' || ready_us || ',{{}}],', '["step_claimed",', :now_us::bigint,
                      ',{{"fence":', fence, ',"worker":', to_json(:worker_id::text), '}}]]')
        FROM started
    )
"""  # noqa: S608
"""Starts the runs of ``claimed`` steps, with their events."""

TOLD_CLAIMS: Final = """
    s.key, s.fence, s.starts, s.run_id, s.kind, s.spec, s.attempt, s.task_id, s.session_id, s.priority,
           s.ordinal, s.is_unparked, s.ready_us, s.title, s.lane,
           (SELECT json_agg(json_build_array(s.key, p.key, p.step_id, p.status, p.kind, p.output, p.outcome)
                            ORDER BY e.key)
            FROM EACH OF s.depends_on AS e JOIN steps AS p ON p.key = s.task_id || '/' || e.value),
           s.run_id, s.session_id, s.agent_id, s.role, s.definition, s.parent_run_id, s.parent_agent_id, s.task_id,
           s.key, s.step_title, s.model, s.token, s.surface, sessions.project, sessions.cwd, sessions.policy,
           s.dispatched_by, s.is_foreign, s.last_node, s.is_followed
"""
"""The columns of a claim, of ``started AS s`` and its session."""

TAKE: Final = Statement(
    "take: claim each lane's first steps, start their runs with their events, remember the turns, tell all of it",
    f"""
    WITH picked AS MATERIALIZED (
        SELECT p.key, wanted.lane FROM @quota wanted(lane text, number bigint) CROSS JOIN LATERAL (
            SELECT key FROM steps WHERE lane = wanted.lane AND status = 'ready' AND is_paused = 0
            ORDER BY is_unparked DESC, priority DESC, ordinal LIMIT wanted.number FOR UPDATE SKIP LOCKED
        ) AS p
    ), claimed AS (
        UPDATE steps SET
            status = 'running', fence = fence + 1, starts = starts + 1, worker_id = :worker_id,
            started_us = coalesce(started_us, :now_us)
        FROM picked WHERE steps.key = picked.key
        RETURNING steps.key, fence, starts, run_id, kind, spec, attempt, task_id, session_id, priority, steps.ordinal,
                  steps.lane, is_unparked, CASE WHEN starts = 1 THEN ready_us END AS ready_us, title, steps.depends_on,
                  {HAS_ONE_DEPENDENT} AS is_followed
    ), {STARTED_RUNS}, turned AS (
        UPDATE sessions SET last_claimed = t.turn FROM @turns t(id text, turn bigint)
        WHERE sessions.ordinal = (SELECT ordinal FROM sessions WHERE id = t.id FOR NO KEY UPDATE SKIP LOCKED)
    )
    SELECT {TOLD_CLAIMS}
    FROM started AS s JOIN sessions ON sessions.id = s.session_id
    """,  # noqa: S608
)


def end_and_scan(
    tx: Transaction, ends: Mapping[str, StepEnd], request: ClaimRequest
) -> tuple[CompletionResult, ClaimScan]:
    """Write the ends, unlock, and look at what the claim is decided on: one round trip."""
    with tx.pipeline():
        ended_reply = None
        if ends:
            rows = [logged_end_row(end, request.now_us) for end in ends.values()]
            ended_reply = tx.send(END_AND_UNLOCK, ends=rows, worker_id=request.worker_id, now_us=request.now_us)
        look_reply = tx.send(LOOK, worker_id=request.worker_id, most=most_ready(request))
    # Read after the pipeline has ended: its end is a round trip, and reading within it would be another.
    ended_rows = ended_reply.rows() if ended_reply is not None else ()
    ended = CompletionResult()
    for key, task_id, session_id, *_, has_grown in (fields for kind, *fields in ended_rows if kind == _ENDED):
        note_ended(ended, key, task_id, session_id, has_grown=has_grown)
    opened = [tuple(fields) for kind, *fields in ended_rows if kind == _UNLOCKED]
    return ended, _settled(tx, ended, opened, look_reply.rows(), request)


def open_and_scan(tx: Transaction, ended: CompletionResult, request: ClaimRequest) -> ClaimScan:
    """Unlock after ends that have been written and have opened nothing yet, and look in the same round trip."""
    with tx.pipeline():
        opened = tx.send(COUNT_DOWN, ended=ended.completed, now_us=request.now_us)
        seen = tx.send(LOOK, worker_id=request.worker_id, most=most_ready(request))
    return _settled(tx, ended, opened.rows(), seen.rows(), request)


def note_ended(ended: CompletionResult, key: str, task_id: str, session_id: str, *, has_grown: bool) -> None:
    """Note an end that was written. Raises: StaleReadError when it missed what was made to depend on its step."""
    if has_grown:
        raise StaleReadError(f"steps were made to depend on {key!r} while its end was being written")
    ended.written.add(key)
    ended.sessions[task_id] = session_id


def _settled(
    tx: Transaction, ended: CompletionResult, opened: Sequence[Row], seen: Sequence[Row], request: ClaimRequest
) -> ClaimScan:
    """Complete ``ended`` by what was opened; return the look, taken again where completed maps have opened more."""
    ended.unlocked, has_completed_maps = settle_unlocked(tx, opened, request.now_us)
    return scan(tx, request) if has_completed_maps else _scan(seen)


def logged_end_row(end: StepEnd, now_us: int) -> tuple[object, ...]:
    """Return an end with all that it writes to its run."""
    told = RunLogBuffer(now_us)
    note_end(told, end)
    return (*end_row(end), *told.end_of(end.run_id))


def _scan(rows: Any) -> ClaimScan:
    lanes = [fields for kind, fields in rows if kind == "lane"]
    return ClaimScan(
        is_live=any(kind == "live" for kind, _ in rows),
        lanes=lanes_of_rows(lanes),
        limited=frozenset(fields for kind, fields in rows if kind == "limit"),
        last_turn=last_turn_of(lanes),
    )


def take(
    tx: Transaction, contexts: Contexts, _: RunLogBuffer, request: ClaimRequest, turns: Turns
) -> dict[str, list[Claim]]:
    """Claim each lane's first steps, all in one statement."""
    rows = tx.rows(
        TAKE,
        quota=sorted(turns.quota().items()),
        turns=sorted(turns.turn.items()),
        worker_id=request.worker_id,
        now_us=request.now_us,
    )
    taken: dict[str, list[Claim]] = {}
    for lane, claim in told_claims(tx, contexts, rows):
        taken.setdefault(lane, []).append(claim)
    return taken


def told_claims(
    tx: Transaction, contexts: Contexts, rows: Sequence[Row], end: StepEnd | None = None
) -> list[tuple[str, Claim]]:
    """Return claims with their lanes, the next one last, given rows of ``TOLD_CLAIMS``.

    ``end`` was written by the same statement, which does not see it itself.
    """
    if not rows:
        return []
    claimed: list[tuple[ClaimedStep, str]] = []
    runs: list[Row] = []
    dependencies: list[Row] = []
    for row in rows:
        lane, told_of, *run, is_followed = row[_STEP:]
        claimed.append((ClaimedStep._make(row[:_STEP]), lane))
        runs.append(tuple(run))
        dependencies += told_of or ()
        contexts.successors.note(run[0], is_followed=is_followed)
    if end is not None:
        dependencies = [_as_ended(ResultRow._make(row), end) for row in dependencies]
    context, results = contexts.told(tx, runs), results_of_rows(tx, dependencies)
    return [
        (lane, context.claim(step, results.get(step.key, {})))
        for step, lane in sorted(claimed, key=lambda one: last_first(one[0]))
    ]


def _as_ended(row: ResultRow, end: StepEnd) -> ResultRow:
    if row.key != end.step_key:
        return row
    _, _, _, status, outcome, output, _ = end_row(end)
    return row._replace(status=str(status), outcome=str(outcome), output=None if output is None else str(output))
