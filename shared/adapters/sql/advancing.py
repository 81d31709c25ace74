"""The hottest transaction: a worker's ends, what they unlock, and its next claims, in one go."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from shared.adapters.sql.claiming import (
    CLAIM_LANE,
    LIVE_WORKER,
    TAKE_TURNS,
    know_heads,
    lock_room,
    read_lanes,
    share_out,
)
from shared.adapters.sql.journal import Journal
from shared.adapters.sql.reading import Contexts, results_for
from shared.adapters.sql.rows import pack
from shared.adapters.sql.statements import Statement
from shared.adapters.sql.transaction import Row, Transaction
from shared.adapters.sql.unlocking import unlock_after
from shared.runs.events import EventType, NewNode, NodeKind
from shared.runs.status import RunStatus
from shared.tasks.status import StepStatus
from shared.tasks.step import Advance, Claim, StepEnd

END_STEPS: Final = Statement(
    "end steps: what their holder says of them, while it holds them; one that was asked to stop needs no settling",
    """
    UPDATE steps SET
        status = e.status, outcome = e.outcome, output = e.output, error = e.error, ended_us = :now_us,
        is_settled = CASE WHEN e.status = 'failed' AND steps.cancel_reason IS NOT NULL THEN 1 ELSE 0 END,
        cancel_reason = NULL
    FROM @ends e(key text, run_id text, fence bigint, status text, outcome text, output text, error text)
    WHERE steps.key = e.key AND steps.run_id = e.run_id AND steps.fence = e.fence
      AND steps.worker_id = :worker_id AND steps.status IN ('claimed', 'running')
    RETURNING steps.key, task_id, session_id
    """,
)

OWNER_WORK: Final = Statement(
    "owner work: whether a task has a map to expand, a failure to settle, or steps that neither ended nor are leased",
    """
    SELECT EXISTS (SELECT 1 FROM steps WHERE task_id = :task_id AND status = 'expanding'),
           EXISTS (SELECT 1 FROM steps
                   WHERE session_id = :session_id AND status = 'failed' AND is_settled = 0 AND task_id = :task_id),
           EXISTS (SELECT 1 FROM steps WHERE task_id = :task_id
                   AND status IN ('pending', 'ready', 'blocked', 'expanding', 'waiting'))
    """,
)
OPEN_WORK: Final = Statement(
    "open work: whether a task has steps that have not ended",
    """
    SELECT 1 FROM steps WHERE task_id = :task_id
      AND status IN ('pending', 'ready', 'claimed', 'running', 'blocked', 'expanding', 'waiting') LIMIT 1
    """,
)
LOCK_TAIL: Final = Statement(
    "lock tail: the last steps of a task end one after another, so that one of them sees that all have ended",
    "SELECT 1 /*pg FROM (SELECT pg_advisory_xact_lock(hashtextextended(:task_id, 7))) AS locked */",
)

_STEP_EVENT: Final[Mapping[StepStatus, EventType]] = {
    StepStatus.COMPLETED: EventType.STEP_COMPLETED,
    StepStatus.FAILED: EventType.STEP_FAILED,
    StepStatus.CANCELLED: EventType.STEP_CANCELLED,
}
_RUN_STATUS: Final[Mapping[StepStatus, RunStatus]] = {
    StepStatus.COMPLETED: RunStatus.COMPLETED,
    StepStatus.FAILED: RunStatus.FAILED,
    StepStatus.CANCELLED: RunStatus.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What a worker wants besides the ends it reports."""

    worker_id: str
    claim: int
    pools: Sequence[str]
    capabilities: Sequence[str]
    live_workers: int
    now_us: int


@dataclass(slots=True)
class _Ended:
    """What the ends did."""

    stale: set[str] = field(default_factory=set)
    task_sessions: dict[str, str] = field(default_factory=dict)
    owner_sessions: set[str] = field(default_factory=set)
    ready: set[str] = field(default_factory=set)


def advance(tx: Transaction, contexts: Contexts, ends: Sequence[StepEnd], wish: Wish) -> Advance:
    """Write the ends, unlock, claim. See :meth:`shared.tasks.store.TaskStore.advance`."""
    journal = Journal(wish.now_us)
    ended = _write_ends(tx, journal, ends, wish) if ends else _Ended()
    rows, is_left = _claim(tx, journal, wish)
    claims = _claims(tx, contexts, rows)
    journal.flush(tx)
    left = ended.ready.difference(claim.step_key for claim in claims)
    return Advance(
        claims=claims,
        stale=frozenset(ended.stale),
        owner_sessions=frozenset(ended.owner_sessions),
        ready_left=is_left or bool(left),
    )


# -- ends
def _write_ends(tx: Transaction, journal: Journal, ends: Sequence[StepEnd], wish: Wish) -> _Ended:
    ended = _Ended()
    by_key: dict[str, StepEnd] = {}
    for end in sorted(ends, key=lambda end: end.step_key):
        # A step ends once: the same end told twice in one batch is stale the second time.
        if by_key.setdefault(end.step_key, end) is not end:
            ended.stale.add(end.run_id)
    rows = tx.rows(
        END_STEPS,
        ends=[_end_row(end) for end in by_key.values()],
        worker_id=wish.worker_id,
        now_us=wish.now_us,
    )
    written = {row[0] for row in rows}
    ended.stale.update(end.run_id for key, end in by_key.items() if key not in written)
    for key, task_id, session_id in rows:
        ended.task_sessions[task_id] = session_id
        _note_end(journal, by_key[key])
    completed = [key for key in written if by_key[key].status is StepStatus.COMPLETED]
    ended.ready = unlock_after(tx, journal, completed, wish.now_us)
    for task_id, session_id in sorted(ended.task_sessions.items()):
        if session_id not in ended.owner_sessions and _has_owner_work(tx, task_id, session_id):
            ended.owner_sessions.add(session_id)
    return ended


def _end_row(end: StepEnd) -> tuple[object, ...]:
    is_completed = end.status is StepStatus.COMPLETED
    return (
        end.step_key,
        end.run_id,
        end.fence,
        end.status.value,
        end.outcome.value if is_completed else None,
        None if end.output is None else pack(end.output),
        None if end.error is None else pack(end.error.as_json()),
    )


def _note_end(journal: Journal, end: StepEnd) -> None:
    nodes = end.nodes
    if end.status is StepStatus.COMPLETED and not any(node.kind is NodeKind.RESULT for node in nodes):
        nodes = (*nodes, NewNode(NodeKind.RESULT, {"v": 1, "output": end.output}))
    journal.add(end.run_id, nodes=nodes, events=end.events)
    journal.note(end.run_id, _STEP_EVENT[end.status], step=end.step_key, fence=end.fence)
    journal.end(end.run_id, _RUN_STATUS[end.status], end.end_reason, end.usage)


def _has_owner_work(tx: Transaction, task_id: str, session_id: str) -> bool:
    """Say whether the owner has something to do for a task, also when others end its last steps at this moment."""
    is_expanding, is_unsettled, is_waiting = tx.rows(OWNER_WORK, task_id=task_id, session_id=session_id)[0]
    if is_expanding or is_unsettled or is_waiting:
        return bool(is_expanding or is_unsettled)
    tx.rows(LOCK_TAIL, task_id=task_id)
    return not tx.rows(OPEN_WORK, task_id=task_id)


# -- claims
def _claim(tx: Transaction, journal: Journal, wish: Wish) -> tuple[list[Row], bool]:
    """Return the rows of the claimed steps, in turn, and whether more could have been claimed."""
    is_live = bool(tx.rows(LIVE_WORKER, worker_id=wish.worker_id))
    claim = wish.claim if is_live else 0
    claimed: list[Row] = []
    for _ in range(2):
        rows, wanted, is_left = _claim_once(tx, wish, claim - len(claimed))
        claimed.extend(rows)
        if len(rows) == wanted:
            break
        # Another worker was claiming the same steps; what it has left can be seen now.
    for key, fence, starts, run_id, *_ in claimed:
        journal.start(run_id, fence, wish.worker_id)
        journal.note(run_id, EventType.STEP_CLAIMED, step=key, fence=fence, worker=wish.worker_id)
        journal.note(run_id, EventType.RUN_RESUMED if starts > 1 else EventType.RUN_STARTED, step=key, fence=fence)
    return claimed, is_left


def _claim_once(tx: Transaction, wish: Wish, claim: int) -> tuple[list[Row], int, bool]:
    """Return the claimed rows, how many there should have been, and whether more could have been."""
    live_workers = max(wish.live_workers, 1)
    lanes, last_turn = read_lanes(tx, most=max(claim, 0) * live_workers + 1)
    capabilities = set(wish.capabilities)
    lanes = [lane for lane in lanes if lane.pool in wish.pools and capabilities.issuperset(lane.needs)]
    if not lanes:
        return [], 0, False
    want = min(claim, -(-sum(lane.ready for lane in lanes) // live_workers))
    if want > 0:
        know_heads(tx, lanes, want)
    turns = share_out(lanes, want, lock_room(tx, lanes), last_turn)
    taken = {lane: _take(tx, wish, lane, turns.order.count(lane)) for lane in dict.fromkeys(turns.order)}
    claimed = [taken[lane].pop() for lane in turns.order if taken[lane]]
    if claimed:
        served = {row[8] for row in claimed}
        tx.send(TAKE_TURNS, turns=sorted(item for item in turns.turn.items() if item[0] in served))
    return claimed, len(turns.order), turns.is_left


def _take(tx: Transaction, wish: Wish, lane: str, number: int) -> list[Row]:
    """Claim a lane's first steps; return them last first."""
    rows = tx.rows(CLAIM_LANE, lane=lane, number=number, worker_id=wish.worker_id, now_us=wish.now_us)
    return sorted(rows, key=lambda row: (row[9], -row[10]))


def _claims(tx: Transaction, contexts: Contexts, rows: Sequence[Row]) -> tuple[Claim, ...]:
    """Return what the worker is told of each claimed step."""
    if not rows:
        return ()
    told = contexts.read(tx, [(row[3], row[7], row[8]) for row in rows])
    results = results_for(tx, [row[0] for row in rows])
    return tuple(
        told.claim(key, fence, run_id, kind, spec, attempt, task_id, results.get(key, {}), is_resumed=starts > 1)
        for key, fence, starts, run_id, kind, spec, attempt, task_id, *_ in rows
    )
