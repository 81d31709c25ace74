"""Claiming: which steps a worker gets, decided on rows.

Ready steps are in **lanes**: steps of one lane have session, pool, needs, definition and model in common, so
whether a worker may take them and which concurrency limits they count in is decided once a lane. A claim lists the
lanes that have ready work, shares itself out among their sessions in turn, and takes each lane's first steps.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from soong.shared.core.jsontext import MAX_SAFE_INTEGER
from soong.shared.core.value import Value
from soong.shared.engine.tasks.spec import ClaimMode
from soong.shared.storage.sql.claims.readiness import ClaimRequest
from soong.shared.storage.sql.engine.row_mapper import unpack
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Row, Transaction

LIVE_WORKER: Final = Statement(
    "live worker: one that is not may claim nothing; held, so that it cannot be declared gone while it claims",
    "SELECT 1 FROM workers WHERE id = :worker_id AND state = 'live' /*pg FOR SHARE */",
)

# Rows are counted in the order of their index: for any order PostgreSQL, from 18 on, at times skips through the index
# of tasks for all that is ready, task by task.
READY_LANES: Final = """
    WITH RECURSIVE lane(lane) AS (
        SELECT min(lane) FROM steps WHERE status = 'ready' AND is_paused = 0
        UNION ALL
        SELECT (SELECT min(s.lane) FROM steps s WHERE s.status = 'ready' AND s.is_paused = 0 AND s.lane > lane.lane)
        FROM lane WHERE lane.lane IS NOT NULL
    )
    SELECT l.lane AS key, head.session_id, head.pool, head.needs, head.definition, head.model,
           head.is_unparked, head.priority, head.ordinal,
           (SELECT count(*) FROM (
               SELECT 1 FROM steps s WHERE s.lane = l.lane AND s.status = 'ready' AND s.is_paused = 0
               ORDER BY s.is_unparked DESC, s.priority DESC, s.ordinal LIMIT :most
           ) AS counted) AS ready,
           sessions.last_claimed, (SELECT max(last_claimed) FROM sessions) AS last_turn, head.claim_mode
    FROM lane AS l
    JOIN steps AS head ON head.key = (
        SELECT s.key FROM steps s WHERE s.lane = l.lane AND s.status = 'ready' AND s.is_paused = 0
        ORDER BY s.is_unparked DESC, s.priority DESC, s.ordinal LIMIT 1
    )
    JOIN sessions ON sessions.id = head.session_id
"""
LANES: Final = Statement(
    "lanes: every lane with ready work, its first step, how much there is (to a limit), and its session's last turn",
    READY_LANES,
)

HEADS: Final = Statement(
    "heads: the next steps of a lane, to compare them with those of the session's other lanes",
    """
    SELECT is_unparked, priority, ordinal FROM steps WHERE lane = :lane AND status = 'ready' AND is_paused = 0
    ORDER BY is_unparked DESC, priority DESC, ordinal LIMIT :number
    """,
)

LIMITS: Final = Statement(
    "concurrency limits that may concern lanes: the deployment's, and those of the lanes' own sessions alone",
    """
    SELECT scope, slots * (1 - is_paused) FROM concurrency_limits WHERE substr(scope, 1, 8) <> 'session:'
    UNION ALL SELECT scope, slots * (1 - is_paused) FROM concurrency_limits WHERE scope IN @scopes
    """,
)

LOCK_LIMITS: Final = Statement(
    "lock concurrency limits: one claim at a time for each scope, locked in one order by all",
    """
    SELECT scope, slots * (1 - is_paused) FROM concurrency_limits WHERE scope IN @scopes
    ORDER BY CASE substr(scope, 1, 5) WHEN 'sessi' THEN 1 WHEN 'defin' THEN 2 WHEN 'model' THEN 3 ELSE 4 END, scope
    /*pg FOR UPDATE */
    """,
)

LIVE_LEASES: Final = Statement(
    "live leases: counted after the limits are locked, by lane; a step that a run holds in addition to its own is not "
    "counted again in what both have in common: it is not another agent at work",
    """
    SELECT head.session_id, head.definition, head.model, head.pool, leased.number
    FROM (
        SELECT lane, count(*) AS number, min(key) AS key FROM steps
        WHERE status = 'running' GROUP BY lane
    ) AS leased JOIN steps AS head ON head.key = leased.key
    UNION ALL
    SELECT s.session_id, CASE WHEN s.definition = own.definition THEN s.definition ELSE '' END,
           CASE WHEN s.model = own.model THEN s.model ELSE '' END,
           CASE WHEN s.pool = own.pool THEN s.pool ELSE '' END, -1
    FROM steps AS s JOIN runs AS holder ON holder.id = s.holder_run_id JOIN steps AS own ON own.key = holder.step_key
    WHERE s.holder_run_id <> '' AND s.status = 'running' AND own.status || '' = 'running'
    """,
)

HELD_BY_ALL: Final = Statement(
    "held by all: how many steps are held, and how many of these by one worker",
    """
    SELECT count(*), coalesce(sum(CASE WHEN worker_id = :worker_id THEN 1 ELSE 0 END), 0) FROM steps
    WHERE status = 'running'
    """,
)

CLAIM_LANE: Final = Statement(
    "claim lane: take its first ready steps; each gets a fence that was never given out",
    """
    UPDATE steps SET
        status = 'running', fence = fence + 1, starts = starts + 1, worker_id = :worker_id,
        started_us = coalesce(started_us, :now_us)
    WHERE key IN (
        SELECT key FROM steps WHERE lane = :lane AND status = 'ready' AND is_paused = 0
        ORDER BY is_unparked DESC, priority DESC, ordinal LIMIT :number /*pg FOR UPDATE SKIP LOCKED */
    )
    RETURNING key, fence, starts, run_id, spec, attempt, task_id, session_id, priority, ordinal, is_unparked,
              CASE WHEN starts = 1 THEN ready_us END AS ready_us
    """,
)

TAKE_TURNS: Final = Statement(
    "take turns: remember when each session was last served; one that another worker serves just now is left to it",
    """
    UPDATE sessions SET last_claimed = t.turn FROM @changes t(id text, turn bigint) WHERE sessions.id = t.id
    /*pg AND sessions.ordinal IN (SELECT ordinal FROM sessions WHERE id = t.id FOR NO KEY UPDATE SKIP LOCKED) */
    """,
)

QueuePosition: TypeAlias = tuple[int, int, int]
"""The place of a ready step in its session, the lowest is next: parked steps, then by priority, then by age."""


@dataclass(slots=True)
class ReadyGroup:
    """A lane with ready work. ``heads`` are the places of its next steps in line, as far as they are known."""

    key: str
    session_id: str
    scopes: tuple[str, ...]
    ready: int
    last_claimed: int
    heads: list[QueuePosition]
    pool: str = "default"
    needs: tuple[str, ...] = ()
    claim_mode: ClaimMode = ClaimMode.ASSIGNED
    taken: int = 0

    @property
    def head(self) -> QueuePosition:
        """The step that the lane would give next; the last known one stands for those after it."""
        return self.heads[min(self.taken, len(self.heads) - 1)]


@dataclass(slots=True)
class Turns:
    """The shares of one claim. ``order`` names a lane for each step, ``is_left``: more could be claimed."""

    order: list[str] = field(default_factory=list)
    turn: dict[str, int] = field(default_factory=dict)
    is_left: bool = False


class ClaimScan(Value):
    """The inputs of a claim decision: the worker's liveness, lanes with ready work, limited scopes, the last turn."""

    is_live: bool
    lanes: Sequence[ReadyGroup]
    limited: frozenset[str]
    last_turn: int


def scan(tx: Transaction, request: ClaimRequest) -> ClaimScan:
    """Look at the rows that a claim is decided on; the worker cannot be declared gone until we have committed."""
    is_live = bool(tx.rows(LIVE_WORKER, worker_id=request.worker_id))
    lanes, last_turn = lanes_of(tx.rows(LANES, most=most_ready(request)))
    return ClaimScan(is_live, lanes, frozenset(concurrency_limits_of(tx, lanes)), last_turn)


def concurrency_limits_of(tx: Transaction, lanes: Sequence[ReadyGroup]) -> dict[str, int]:
    """Return the limits, by scope, that may concern these lanes."""
    sessions = sorted({f"session:{lane.session_id}" for lane in lanes})
    return dict(tx.rows(LIMITS, scopes=sessions)) if lanes else {}


def most_ready(request: ClaimRequest) -> int:
    """Return how far ready steps of a lane have to be counted."""
    return max(request.claim, 0) * max(request.live_workers, 1) + 1


def lanes_of(rows: Sequence[Row], modes: Collection[ClaimMode] = (ClaimMode.ASSIGNED,)) -> tuple[list[ReadyGroup], int]:
    """Return the lanes in rows of ``LANES``, and the last turn of all sessions, which each row carries.

    A claim loop leaves those lanes alone that are pulled.
    """
    lanes = [
        ReadyGroup(
            key=row.key,
            session_id=row.session_id,
            scopes=scopes_of(row.session_id, row.definition, row.model, row.pool),
            ready=row.ready,
            last_claimed=row.last_claimed,
            heads=[(-row.is_unparked, -row.priority, row.ordinal)],
            pool=row.pool,
            needs=tuple(unpack(row.needs)),
            claim_mode=ClaimMode(row.claim_mode),
        )
        for row in rows
        if ClaimMode(row.claim_mode) in modes
    ]
    return lanes, (rows[0].last_turn or 0) if rows else 0


def last_first(step: Row) -> tuple[int, int, int]:
    """Order a lane's claimed steps so that the next one can be popped."""
    return step.is_unparked, step.priority, -step.ordinal


def scopes_of(session_id: str, definition: str, model: str, pool: str) -> tuple[str, ...]:
    """Return the concurrency limit scopes that a lease of such a step counts in."""
    named = (("session", session_id), ("definition", definition), ("model", model), ("pool", pool))
    return tuple(f"{kind}:{name}" for kind, name in named if name)


def lock_room(tx: Transaction, lanes: Sequence[ReadyGroup], limited: frozenset[str]) -> dict[str, int]:
    """Return how many more leases each limited scope of these lanes allows; its limit stays locked until commit."""
    scopes = limited.intersection(scope for lane in lanes for scope in lane.scopes) if limited else ()
    if not scopes:
        return {}
    return room_left(dict(tx.rows(LOCK_LIMITS, scopes=sorted(scopes))), tx.rows(LIVE_LEASES))


def room_left(concurrency_limits: Mapping[str, int], leases: Sequence[Row]) -> dict[str, int]:
    """Return what the live leases leave of each concurrency limit."""
    room = dict(concurrency_limits)
    for session_id, definition, model, pool, number in leases:
        for scope in scopes_of(session_id, definition, model, pool):
            if scope in room:
                room[scope] -= number
    return room


def share_of(tx: Transaction, request: ClaimRequest, ready: int, most: int) -> int:
    """Return how many of the ``ready`` steps the worker may claim, at most ``most``, so that it does not take all.

    As many as each living worker would get; more where it holds less than the others do.
    """
    workers = max(request.live_workers, 1)
    share = -(-ready // workers)
    if share < min(ready, most):
        held, own = tx.rows(HELD_BY_ALL, worker_id=request.worker_id)[0]
        share = max(share, -(-(ready + held) // workers) - own)
    return min(share, ready, most)


def know_heads(tx: Transaction, lanes: Sequence[ReadyGroup], want: int) -> None:
    """Read the next steps of lanes that share a session with another: only there do they have to be compared."""
    counts: dict[str, int] = {}
    for lane in lanes:
        counts[lane.session_id] = counts.get(lane.session_id, 0) + 1
    for lane in lanes:
        if counts[lane.session_id] > 1 and min(want, lane.ready) > 1:
            rows = tx.rows(HEADS, lane=lane.key, number=want)
            lane.heads = [(-is_unparked, -priority, ordinal) for is_unparked, priority, ordinal in rows] or lane.heads


def share_out(lanes: Sequence[ReadyGroup], want: int, room: dict[str, int], last_turn: int) -> Turns:
    """Share ``want`` claims out: the session served longest ago first, one step each in turn; within it what was
    parked, then by priority, then age; never beyond ``room``. ``turn`` holds the turns that have to be remembered.
    """
    turns = Turns()
    last_turn_before = last_turn
    queue = [(lane.last_claimed, lane.head, place) for place, lane in enumerate(lanes)]
    heapify(queue)
    while queue and len(turns.order) < want:
        turn, head, place = heappop(queue)
        lane = lanes[place]
        now = turns.turn.get(lane.session_id, turn)
        if now != turn:
            # Another lane of the session has been served since: this one's turn comes later.
            heappush(queue, (now, head, place))
        elif _fits(lane, room):
            last_turn = next_turn(last_turn)
            lane.taken += 1
            turns.order.append(lane.key)
            turns.turn[lane.session_id] = last_turn
            for scope in room.keys() & lane.scopes:
                room[scope] -= 1
            if lane.taken < lane.ready:
                heappush(queue, (last_turn, lane.head, place))
    turns.is_left = any(_fits(lanes[place], room) for *_, place in queue)
    served = {(lane.session_id, lane.last_claimed) for lane in lanes}
    if last_turn_before > 0 and len(served) == 1 and lanes[0].last_claimed == last_turn_before:
        turns.turn.clear()  # one session alone has ready work, and had the last turn: another would change no order
    return turns


def next_turn(last_turn: int) -> int:
    """Return the turn after a given one. A row that holds a turn beyond all keeps nobody from being served."""
    return min(max(last_turn, 0) + 1, MAX_SAFE_INTEGER)


def _fits(lane: ReadyGroup, room: Mapping[str, int]) -> bool:
    return all(room.get(scope, 1) > 0 for scope in lane.scopes)
