"""The hot path on PostgreSQL: what SQLite does statement by statement, fused, because each one sent costs more there
than what it does. Two round trips end, unlock and claim; the texts mirror those of :mod:`ending`, :mod:`unlocking`
and :mod:`claiming`, and the contract's tests run over both.
"""

from collections.abc import Mapping
from typing import Any, Final

from shared.adapters.sql.claiming import Look, Turns, lane_of_row, look, most_ready
from shared.adapters.sql.ending import Ended, Wish, end_row, has_owner_work, note_end, owner_work
from shared.adapters.sql.journal import Journal
from shared.adapters.sql.reading import Contexts, Told, results_of_rows
from shared.adapters.sql.statements import Statement
from shared.adapters.sql.transaction import Row, Transaction
from shared.adapters.sql.unlocking import settle_unlocked
from shared.tasks.step import Claim, StepEnd

END_AND_UNLOCK: Final = Statement(
    "end and unlock: end steps while their holder holds them, end their runs, write their logs, count down what waited",
    """
    WITH ended AS (
        UPDATE steps SET
            status = e.status, outcome = e.outcome, output = e.output, error = e.error, ended_us = :now_us,
            is_settled = CASE WHEN e.status = 'failed' AND steps.cancel_reason IS NOT NULL THEN 1 ELSE 0 END,
            cancel_reason = NULL
        FROM @ends e(key text, run_id text, fence bigint, status text, outcome text, output text, error text)
        WHERE steps.key = e.key AND steps.run_id = e.run_id AND steps.fence = e.fence
          AND steps.worker_id = :worker_id AND steps.status IN ('claimed', 'running')
        RETURNING steps.key, steps.run_id, steps.task_id, steps.session_id, steps.status, steps.map_key
    ), fallen AS (
        SELECT w.key, w.number FROM (
            SELECT key, sum(number) AS number FROM (
                SELECT g.child_key AS key, 1 AS number FROM ended JOIN edges AS g ON g.parent_key = ended.key
                WHERE ended.status = 'completed'
                UNION ALL
                SELECT map_key, 1 FROM ended WHERE status = 'completed' AND map_key <> ''
            ) AS each_end GROUP BY key
        ) AS w JOIN steps AS locked ON locked.key = w.key ORDER BY w.key FOR UPDATE OF locked
    ), unlocked AS (
        UPDATE steps SET
            open_deps = open_deps - f.number,
            status = CASE WHEN open_deps > f.number THEN status
                          WHEN status = 'waiting' THEN 'completed'
                          WHEN kind = 'map' THEN 'expanding'
                          ELSE 'ready' END,
            ended_us = CASE WHEN status = 'waiting' AND open_deps = f.number THEN :now_us ELSE ended_us END
        FROM fallen AS f WHERE steps.key = f.key AND steps.status IN ('pending', 'waiting')
        RETURNING steps.key, steps.task_id, steps.status, steps.kind, steps.run_id, steps.open_deps
    ), counted AS (
        UPDATE runs SET
            status = coalesce(c.status, runs.status), end_reason = coalesce(c.end_reason, runs.end_reason),
            ended_us = CASE WHEN c.end_reason IS NULL THEN runs.ended_us ELSE :now_us END,
            usage = coalesce(c.usage, runs.usage),
            last_seq = last_seq + c.events, last_node = last_node + c.nodes
        FROM (
            SELECT given.run_id, given.status, given.end_reason, given.usage, given.events, given.nodes
            FROM @changes given(run_id text, status text, end_reason text, usage text, fence bigint, worker_id text,
                                events bigint, nodes bigint)
            JOIN ended ON ended.run_id = given.run_id
            UNION ALL
            SELECT run_id, NULL, NULL, NULL, 1, 0 FROM unlocked WHERE status = 'ready'
        ) AS c WHERE runs.id = c.run_id
        RETURNING runs.id, runs.last_seq, runs.last_node
    ), noted AS (
        INSERT INTO events (run_id, seq, type, time_us, data)
        SELECT counted.id, counted.last_seq - v.back, v.type, v.time_us, v.data
        FROM @events v(run_id text, back bigint, type text, time_us bigint, data text)
        JOIN counted ON counted.id = v.run_id
        UNION ALL
        SELECT counted.id, counted.last_seq, 'step_ready', :now_us, json_build_object('step', unlocked.key)::text
        FROM unlocked JOIN counted ON counted.id = unlocked.run_id WHERE unlocked.status = 'ready'
    ), grown AS (
        INSERT INTO nodes (run_id, number, parent, kind, payload, created_us)
        SELECT counted.id, counted.last_node - v.back, coalesce(v.parent, counted.last_node - v.back - 1),
               v.kind, v.payload, v.created_us
        FROM @nodes v(run_id text, back bigint, parent bigint, kind text, payload text, created_us bigint)
        JOIN counted ON counted.id = v.run_id
    )
    SELECT 1, key, task_id, session_id, '', '', 0 FROM ended
    UNION ALL
    SELECT 2, key, task_id, status, kind, run_id, open_deps FROM unlocked
    """,
)

LOOK: Final = Statement(
    "look: whether the worker lives (held), all caps, what the owners of the ended steps' tasks have to do, the lanes",
    """
    WITH RECURSIVE lane(lane) AS (
        SELECT min(lane) FROM steps WHERE status = 'ready' AND is_paused = 0
        UNION ALL
        SELECT (SELECT min(s.lane) FROM steps s WHERE s.status = 'ready' AND s.is_paused = 0 AND s.lane > lane.lane)
        FROM lane WHERE lane.lane IS NOT NULL
    ), live AS (SELECT id FROM workers WHERE id = :worker_id AND state = 'live' FOR SHARE),
    touched AS (SELECT DISTINCT task_id, session_id FROM steps WHERE key IN @keys)
    SELECT 'live', NULL::json FROM live
    UNION ALL
    SELECT 'cap', to_json(scope) FROM caps
    UNION ALL
    SELECT 'task', json_build_array(t.task_id,
        EXISTS (SELECT 1 FROM steps WHERE task_id = t.task_id AND status = 'expanding'),
        EXISTS (SELECT 1 FROM steps
                WHERE session_id = t.session_id AND status = 'failed' AND is_settled = 0 AND task_id = t.task_id),
        EXISTS (SELECT 1 FROM steps WHERE task_id = t.task_id
                AND status IN ('pending', 'ready', 'blocked', 'expanding', 'waiting')))
    FROM touched AS t
    UNION ALL
    SELECT 'lane', json_build_array(l.lane, head.session_id, head.pool, head.needs, head.definition, head.model,
        head.priority, head.ordinal,
        (SELECT count(*) FROM (
            SELECT 1 FROM steps s WHERE s.lane = l.lane AND s.status = 'ready' AND s.is_paused = 0 LIMIT :most
        ) AS ready),
        sessions.last_claimed, (SELECT max(last_claimed) FROM sessions))
    FROM lane AS l
    JOIN steps AS head ON head.ordinal = (
        SELECT s.ordinal FROM steps s WHERE s.lane = l.lane AND s.status = 'ready' AND s.is_paused = 0
        ORDER BY s.priority DESC, s.ordinal LIMIT 1
    )
    JOIN sessions ON sessions.id = head.session_id
    """,
)

TAKE: Final = Statement(
    "take: claim each lane's first steps, start their runs with their events, remember the turns, tell all of it",
    """
    WITH picked AS MATERIALIZED (
        SELECT p.ordinal, wanted.lane FROM @quota wanted(lane text, number bigint) CROSS JOIN LATERAL (
            SELECT ordinal FROM steps WHERE lane = wanted.lane AND status = 'ready' AND is_paused = 0
            ORDER BY priority DESC, ordinal LIMIT wanted.number FOR UPDATE SKIP LOCKED
        ) AS p
    ), claimed AS (
        UPDATE steps SET
            status = 'running', fence = fence + 1, starts = starts + 1, worker_id = :worker_id,
            started_us = coalesce(started_us, :now_us)
        FROM picked WHERE steps.ordinal = picked.ordinal
        RETURNING steps.key, fence, starts, run_id, kind, spec, attempt, task_id, session_id, priority, steps.ordinal,
                  steps.lane
    ), started AS (
        UPDATE runs SET
            status = 'running', fence = claimed.fence, worker_id = :worker_id,
            started_us = coalesce(runs.started_us, :now_us), last_seq = runs.last_seq + 2
        FROM claimed WHERE runs.id = claimed.run_id
        RETURNING runs.id, runs.session_id, agent_id, role, definition, parent_run_id, parent_agent_id, runs.task_id,
                  step_key, step_title, model, token, surface, last_seq
    ), noted AS (
        INSERT INTO events (run_id, seq, type, time_us, data)
        SELECT s.id, s.last_seq - 1, 'step_claimed', :now_us,
               json_build_object('step', c.key, 'fence', c.fence, 'worker', :worker_id::text)::text
        FROM claimed AS c JOIN started AS s ON s.id = c.run_id
        UNION ALL
        SELECT s.id, s.last_seq, CASE WHEN c.starts > 1 THEN 'run_resumed' ELSE 'run_started' END, :now_us,
               json_build_object('step', c.key, 'fence', c.fence)::text
        FROM claimed AS c JOIN started AS s ON s.id = c.run_id
    ), turned AS (
        UPDATE sessions SET last_claimed = t.turn FROM @turns t(id text, turn bigint)
        WHERE sessions.id = t.id AND t.id IN (SELECT session_id FROM claimed)
          AND sessions.ordinal IN (SELECT ordinal FROM sessions WHERE id = t.id FOR NO KEY UPDATE SKIP LOCKED)
    )
    SELECT c.key, c.fence, c.starts, c.run_id, c.kind, c.spec, c.attempt, c.task_id, c.session_id, c.priority,
           c.ordinal, c.lane,
           s.id, s.session_id, s.agent_id, s.role, s.definition, s.parent_run_id, s.parent_agent_id, s.task_id,
           s.step_key, s.step_title, s.model, s.token, s.surface, sessions.project, sessions.cwd, sessions.policy,
           (SELECT json_agg(json_build_array(e.child_key, p.key, p.step_id, p.status, p.kind, p.output, p.outcome)
                            ORDER BY e.position)
            FROM edges AS e JOIN steps AS p ON p.key = e.parent_key WHERE e.child_key = c.key)
    FROM claimed AS c JOIN started AS s ON s.id = c.run_id JOIN sessions ON sessions.id = c.session_id
    """,
)


def end_and_look(
    tx: Transaction, journal: Journal, ends: Mapping[str, StepEnd], wish: Wish
) -> tuple[Ended, frozenset[str], Look]:
    """Write the ends, unlock, and look at what the claim is decided on: one round trip.

    Return what the ends did, the sessions whose owner has something to do, and the look.
    """
    told = Journal(wish.now_us)
    for end in ends.values():
        note_end(told, end)
    with tx.pipeline():
        ended_reply = None
        if ends:
            ended_reply = tx.send(
                END_AND_UNLOCK,
                ends=[end_row(end) for end in ends.values()],
                changes=told.change_rows(),
                events=told.event_rows(),
                nodes=told.node_rows(),
                worker_id=wish.worker_id,
                now_us=wish.now_us,
            )
        look_reply = tx.send(LOOK, worker_id=wish.worker_id, keys=list(ends), most=most_ready(wish))
        ended_rows = ended_reply.rows() if ended_reply is not None else ()
        seen = look_reply.rows()
    ended = Ended()
    for _, key, task_id, session_id, *_ in (row for row in ended_rows if row[0] == 1):
        ended.written.add(key)
        ended.sessions[task_id] = session_id
    opened = [row[1:] for row in ended_rows if row[0] == 2]
    ended.ready, has_completed_maps = settle_unlocked(tx, journal, opened, wish.now_us)
    if has_completed_maps:
        # More has opened since that look.
        return ended, owner_work(tx, ended), look(tx, wish)
    owners = frozenset(
        ended.sessions[fields[0]]
        for kind, fields in seen
        if kind == "task" and fields[0] in ended.sessions and has_owner_work(tx, *fields)
    )
    return ended, owners, _look(seen)


def _look(rows: Any) -> Look:
    lanes = [fields for kind, fields in rows if kind == "lane"]
    return Look(
        is_live=any(kind == "live" for kind, _ in rows),
        lanes=[lane_of_row(fields) for fields in lanes],
        capped=frozenset(fields for kind, fields in rows if kind == "cap"),
        last_turn=int(lanes[0][10] or 0) if lanes else 0,
    )


def take(tx: Transaction, contexts: Contexts, _: Journal, wish: Wish, turns: Turns) -> dict[str, list[Claim]]:
    """Claim each lane's first steps, all in one statement."""
    rows = tx.rows(
        TAKE,
        quota=sorted(turns.quota().items()),
        turns=sorted(turns.turn.items()),
        worker_id=wish.worker_id,
        now_us=wish.now_us,
    )
    taken: dict[str, list[Claim]] = {}
    if not rows:
        return taken
    told = contexts.told(tx, [row[12:28] for row in rows])
    results = results_of_rows(tx, [tuple(found) for row in rows for found in row[28] or ()])
    for row in sorted(rows, key=lambda row: (row[9], -row[10])):
        key, fence, starts, run_id, kind, spec, attempt, task_id = row[:8]
        claim = told.claim(
            key, fence, run_id, kind, spec, attempt, task_id, results.get(key, {}), is_resumed=starts > 1
        )
        taken.setdefault(row[11], []).append(claim)
    return taken
