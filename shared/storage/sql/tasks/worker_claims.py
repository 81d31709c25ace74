"""Claims: a worker's side, and what all owners of the deployment do about workers.

The hottest transaction is :func:`advance`: a worker's ends, what they unlock, and its next claims, in one go.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Final, TypeAlias

from soong.shared.core.errors import LeaseLostError
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.claims import ABANDONED, WORKER_GONE, lost_to
from soong.shared.engine.tasks.step import (
    NO_LIMIT,
    Advance,
    Backlog,
    BadWorker,
    Claim,
    ConcurrencyLimit,
    Interrupt,
    Lease,
    Outcome,
    StepEnd,
    StepError,
    WaitingSteps,
)
from soong.shared.permissions.audit_log import of_malformed_worker
from soong.shared.storage.sql.claims import postgres_hot_path
from soong.shared.storage.sql.claims.claim_context import (
    CLAIM_CONTEXT,
    DEPENDENCIES,
    Contexts,
    results_of,
    tell_malformed,
)
from soong.shared.storage.sql.claims.claiming import (
    CLAIM_LANE,
    LANES,
    LIVE_LEASES,
    TAKE_TURNS,
    ClaimScan,
    Turns,
    concurrency_limits_of,
    know_heads,
    lanes_of,
    last_first,
    lock_room,
    room_left,
    scan,
    share_of,
    share_out,
)
from soong.shared.storage.sql.claims.parking import park
from soong.shared.storage.sql.claims.readiness import ClaimRequest, note_claimed, unlock_after, write_ends
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.row_mapper import MAX_SHOWN_CHARS, MalformedError, pack, plain
from soong.shared.storage.sql.engine.rows import worker_of
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Row, Transaction
from soong.shared.storage.sql.engine.write_ahead_log import Flush
from soong.shared.storage.sql.tasks.sessions import HELD_WORKER, WORKERS
from soong.shared.storage.sql.tasks.task_ends import expire_leases, free_steps

Taken: TypeAlias = dict[str, list[Claim]]
"""The claims of each lane, the next one last."""

PASSES: Final = 2
"""Looks at the lanes in one claim: the second sees what another worker, claiming at the same moment, has left."""


def advance(tx: Transaction, contexts: Contexts, ends: Sequence[StepEnd], request: ClaimRequest) -> Advance:
    """Write the ends, unlock, claim. See :meth:`soong.shared.engine.tasks.claims.ClaimStore.advance`."""
    run_log = RunLogBuffer(request.now_us)
    by_key: dict[str, StepEnd] = {}
    # A step ends once: a second copy of an end in one batch is stale.
    doubled = {e.run_id for e in sorted(ends, key=lambda e: e.step_key) if by_key.setdefault(e.step_key, e) is not e}
    if tx.is_postgres:
        ended, claims, seen = postgres_hot_path.end_and_claim(tx, contexts, by_key, request)
        tell_malformed(tx, run_log, claims, request.now_us)
    else:
        ended, claims = write_ends(tx, run_log, by_key, request), []
        if any(end.outcome is Outcome.PARTIAL for end in by_key.values()):
            run_log.flush(tx)  # the claim of a dependent step reads its nodes (DAG-10)
        ended.unlocked, seen = unlock_after(tx, ended.completed, request.now_us), scan(tx, request)
    is_left = _claim(tx, contexts, run_log, request, seen, claims)
    run_log.flush(tx)
    left = ended.unlocked.ready.difference(claim.step_key for claim in claims)
    return Advance(
        claims=tuple(claims),
        stale=frozenset(doubled.union(end.run_id for key, end in by_key.items() if key not in ended.written)),
        owner_sessions=ended.owner_sessions(claims),
        ready_left=is_left or bool(left),
    )


def _claim(
    tx: Transaction,
    contexts: Contexts,
    run_log: RunLogBuffer,
    request: ClaimRequest,
    seen: ClaimScan,
    claims: list[Claim],
) -> bool:
    """Add what more is claimed, in turn; return whether more could have been claimed."""
    is_left, capabilities = False, set(request.capabilities)
    for _ in range(PASSES):
        lanes = [lane for lane in seen.lanes if lane.pool in request.pools and capabilities.issuperset(lane.needs)]
        ready = sum(lane.ready for lane in lanes)
        want = share_of(tx, request, ready, request.claim - len(claims) if seen.is_live else 0)
        if want > 1:
            know_heads(tx, lanes, want)
        turns = share_out(lanes, want, lock_room(tx, lanes, seen.limited), seen.last_turn)
        is_left = turns.is_left
        if not turns.order:
            break
        take = postgres_hot_path.take if tx.is_postgres else _take
        taken = take(tx, contexts, run_log, request, turns)
        tell_malformed(tx, run_log, chain.from_iterable(taken.values()), request.now_us)
        found = [taken[lane].pop() for lane in turns.order if taken.get(lane)]
        claims += found
        if len(found) == len(turns.order):
            break
        seen = scan(tx, request)
    return is_left


def _take(tx: Transaction, contexts: Contexts, run_log: RunLogBuffer, request: ClaimRequest, turns: Turns) -> Taken:
    """Claim each lane's first steps, one statement a lane, and start their runs."""
    steps: dict[str, list[Row]] = {}
    for lane, number in Counter(turns.order).items():
        claim = {"worker_id": request.worker_id, "now_us": request.now_us}
        steps[lane] = list(tx.rows(CLAIM_LANE, lane=lane, number=number, **claim))
    claimed = [step for of_lane in steps.values() for step in of_lane]
    if not claimed:
        return {}
    served = {step.session_id for step in claimed}
    tx.change(TAKE_TURNS, sorted(item for item in turns.turn.items() if item[0] in served))
    context = contexts.of_runs(tx, tx.rows(CLAIM_CONTEXT, run_ids=[step.run_id for step in claimed]))
    for step in claimed:
        note_claimed(run_log, step, request.worker_id)
    results = results_of(tx, tx.rows(DEPENDENCIES, keys=[step.key for step in claimed]))
    claims = {step.key: context.claim(step, results.get(step.key, {})) for step in claimed}
    return {lane: [claims[step.key] for step in sorted(of_lane, key=last_first)] for lane, of_lane in steps.items()}


REPORT_PROGRESS: Final = Statement(
    "report progress: by the step's holder, perhaps with the error by which it will end",
    """
    UPDATE steps SET progress = :progress, error = coalesce(:error, error)
    WHERE key = :key AND run_id = :run_id AND fence = :fence AND worker_id = :worker_id
      AND status = 'running'
    """,
)

INTERRUPTS: Final = Statement(
    "interrupts: held steps that were asked to stop, whose task is paused, or of which a call or the run was aborted",
    """
    SELECT s.run_id, s.key, s.fence, s.cancel_reason, t.reason, NULL AS tool_call_id, s.ordinal AS ordinal
    FROM steps AS s JOIN tasks AS t ON t.id = s.task_id
    WHERE s.worker_id = :worker_id AND s.status = 'running'
      AND (s.cancel_reason IS NOT NULL OR s.is_paused = 1)
    UNION ALL
    SELECT s.run_id, s.key, s.fence, NULL, a.reason, a.tool_call_id, s.ordinal
    FROM steps AS s JOIN call_aborts AS a ON a.run_id = s.run_id
    WHERE s.worker_id = :worker_id AND s.status = 'running'
    ORDER BY ordinal
    """,
)

LEASES: Final = Statement(
    "leases: all that a worker holds",
    """
    SELECT key, run_id, fence FROM steps WHERE worker_id = :worker_id AND status = 'running'
    ORDER BY ordinal
    """,
)

SET_LIMIT: Final = Statement(
    "set limit: how many leases a scope allows",
    """
    INSERT INTO concurrency_limits (scope, slots) VALUES (:scope, :slots)
    ON CONFLICT (scope) DO UPDATE SET slots = excluded.slots
    """,
)
LIFT_LIMIT: Final = Statement(
    "lift limit: of a scope that stays paused",
    f"UPDATE concurrency_limits SET slots = {NO_LIMIT} WHERE scope = :scope AND is_paused = 1",  # noqa: S608  # a number
)
DROP_LIMIT: Final = Statement(
    "drop limit: a scope has none", "DELETE FROM concurrency_limits WHERE scope = :scope AND is_paused = 0"
)
PAUSE_SCOPE: Final = Statement(
    "pause scope: nothing of it starts",
    """
    INSERT INTO concurrency_limits (scope, slots, is_paused) VALUES (:scope, :slots, 1)
    ON CONFLICT (scope) DO UPDATE SET is_paused = 1
    """,
)
RESUME_SCOPE: Final = Statement(
    "resume scope: what it has starts, within its limit",
    "UPDATE concurrency_limits SET is_paused = 0 WHERE scope = :scope",
)
EXPIRE_WORKER: Final = Statement(
    "expire worker: if its beat is still the one that was watched",
    "UPDATE workers SET state = 'gone' WHERE id = :worker_id AND beat = :beat AND state <> 'gone'",
)

AT_ONCE: Final = 100

LEASE_HOLDERS: Final = Statement(
    "lease holders: the ids of all workers that hold a step",
    "SELECT DISTINCT worker_id FROM steps WHERE status = 'running'",
)
END_BAD_WORKER: Final = Statement(
    "end bad worker: whatever its beat is", "UPDATE workers SET state = 'gone' WHERE id = :id AND state <> 'gone'"
)


class SqlWorkerClaims(StorePart):
    """The part of the claim store that needs no ownership."""

    async def set_concurrency_limits(self, concurrency_limits: Sequence[ConcurrencyLimit]) -> None:
        await self._database.write(lambda tx: _set_concurrency_limits(tx, concurrency_limits))

    async def pause_scope(self, scope: str, *, is_paused: bool) -> None:
        paused = {"slots": NO_LIMIT} if is_paused else {}
        statement = PAUSE_SCOPE if is_paused else RESUME_SCOPE
        await self._database.write(lambda tx: tx.count(statement, scope=scope, **paused))

    # -- a worker's side
    async def advance(
        self,
        worker_id: str,
        ends: Sequence[StepEnd],
        *,
        claim: int,
        pools: Sequence[str],
        capabilities: Sequence[str],
        live_workers: int,
        now_us: int,
    ) -> Advance:
        request = ClaimRequest(worker_id, claim, pools, capabilities, live_workers, now_us)
        return await self._database.write(
            lambda tx: advance(tx, self._contexts, ends, request),
            # A power cut that takes a claim takes its holder, too: SQLite's processes are on one machine. Owner and
            # worker act on an end by commits of their own, which are after it in the same log.
            flush=Flush.WITH_NEXT,
        )

    async def release(self, worker_id: str, held: Sequence[Lease], *, reason: str, now_us: int) -> frozenset[str]:
        def write(tx: Transaction, run_log: RunLogBuffer) -> frozenset[str]:
            return free_steps(tx, run_log, worker_id, held, reason, now_us)

        return await self._write_logged(write, now_us)

    async def park(
        self, worker_id: str, held: Lease, request_ids: Sequence[str], *, max_parked: int, now_us: int
    ) -> bool:
        def write(tx: Transaction) -> bool:
            return park(tx, worker_id, held, request_ids, max_parked=max_parked, now_us=now_us)

        return await self._database.write(write)

    async def report_progress(
        self, worker_id: str, held: Lease, progress: str, *, error: StepError | None = None, now_us: int
    ) -> None:
        def write(tx: Transaction, run_log: RunLogBuffer) -> None:
            parameters = {"key": held.step_key, "run_id": held.run_id, "fence": held.fence, "worker_id": worker_id}
            text = None if error is None else pack(error.as_json())
            if not tx.count(REPORT_PROGRESS, progress=plain(progress), error=text, **parameters):
                raise LeaseLostError(held.run_id, held.fence)
            run_log.note(held.run_id, EventType.STEP_PROGRESS, step=held.step_key, progress=progress)

        await self._write_logged(write, now_us)

    async def interrupts(self, worker_id: str) -> Sequence[Interrupt]:
        rows = await self._database.read(lambda tx: tx.rows(INTERRUPTS, worker_id=worker_id))
        return [_interrupt(*row[:-1]) for row in rows]

    async def leases(self, worker_id: str) -> Sequence[Lease]:
        rows = await self._database.read(lambda tx: tx.rows(LEASES, worker_id=worker_id))
        return [Lease(*row) for row in rows]

    async def backlog(self, *, limit: int = 1000) -> Backlog:
        return await self._database.read(lambda tx: _backlog(tx, limit))

    async def expire_worker(
        self, worker_id: str, beat: int, *, max_lost_leases: int, now_us: int, because: str = WORKER_GONE
    ) -> frozenset[str] | None:
        def write(tx: Transaction, run_log: RunLogBuffer) -> frozenset[str] | None:
            if not tx.count(EXPIRE_WORKER, worker_id=worker_id, beat=beat):
                return None
            return expire_leases(tx, run_log, worker_id, max_lost_leases, now_us, because)

        return await self._write_logged(write, now_us)

    async def expire_bad_workers(self, *, max_lost_leases: int, now_us: int) -> Sequence[BadWorker]:
        found = await self._database.read(_bad_workers)

        def write(tx: Transaction) -> list[BadWorker]:
            ended = [_end_bad_worker(tx, worker_id, problem, max_lost_leases, now_us) for worker_id, problem in found]
            notes = [of_malformed_worker(one.id, one.problem, len(one.sessions)) for one in ended if one is not None]
            self._trail.note(tx, notes, now_us)
            return [one for one in ended if one is not None]

        return await self._database.write(write) if found else ()


def _interrupt(
    run_id: str, key: str, fence: int, cancel_reason: str | None, reason: str | None, tool_call_id: str | None
) -> Interrupt:
    if tool_call_id is not None:
        return Interrupt(run_id, key, fence, "abort", reason or "", tool_call_id)
    if cancel_reason is not None:
        return Interrupt(run_id, key, fence, "cancel", cancel_reason)
    return Interrupt(run_id, key, fence, "pause", reason or "")


def _set_concurrency_limits(tx: Transaction, concurrency_limits: Sequence[ConcurrencyLimit]) -> None:
    for bound in sorted(concurrency_limits, key=lambda bound: bound.scope):
        if bound.limit < 1:
            tx.count(LIFT_LIMIT, scope=bound.scope)
            tx.count(DROP_LIMIT, scope=bound.scope)
        else:
            tx.count(SET_LIMIT, scope=bound.scope, slots=bound.limit)


def _backlog(tx: Transaction, limit: int) -> Backlog:
    """Count what could be claimed now, lane by lane, within the concurrency limits as they are."""
    lanes, last_turn = lanes_of(tx.rows(LANES, most=limit))
    room = room_left(concurrency_limits_of(tx, lanes), tx.rows(LIVE_LEASES)) if lanes else {}
    ready: dict[str, int] = {}
    if not any(scope in room for lane in lanes for scope in lane.scopes):
        for lane in lanes:
            ready[lane.pool] = ready.get(lane.pool, 0) + lane.ready
    else:
        pools = {lane.key: lane.pool for lane in lanes}
        for key in share_out(lanes, limit * len(set(pools.values())), room, last_turn).order:
            ready[pools[key]] = ready.get(pools[key], 0) + 1
    waiting = frozenset(WaitingSteps(lane.session_id, lane.pool, lane.needs) for lane in lanes)
    return Backlog({pool: min(number, limit) for pool, number in ready.items()}, waiting)


def _bad_workers(tx: Transaction) -> list[tuple[str, str]]:
    """Return (id, problem) of workers that are to be ended; a bounded number, the longest there first."""
    rows = tx.rows(WORKERS)
    found: list[tuple[str, str]] = []
    for row in rows:
        try:
            worker_of(row, 0)
        except MalformedError as error:
            found.append((row.id, str(error)[:MAX_SHOWN_CHARS]))
    reckoned = {row.id for row in rows}
    left = [(worker_id, ABANDONED) for (worker_id,) in tx.rows(LEASE_HOLDERS) if worker_id not in reckoned]
    return [*found, *sorted(left)][:AT_ONCE]


def _end_bad_worker(
    tx: Transaction, worker_id: str, problem: str, max_lost_leases: int, now_us: int
) -> BadWorker | None:
    """End one of them as a dead worker ends; None when another owner has done it."""
    is_there = any(state != ProcessState.GONE for (state,) in tx.rows(HELD_WORKER, id=worker_id))
    if is_there == (problem == ABANDONED):
        return None
    tx.count(END_BAD_WORKER, id=worker_id)
    run_log = RunLogBuffer(now_us)
    shown = worker_id[:MAX_SHOWN_CHARS]
    because = lost_to(f"worker {shown}", f"left a malformed row: {problem}") if is_there else ABANDONED
    concerned = expire_leases(tx, run_log, worker_id, max_lost_leases, now_us, because)
    run_log.flush(tx)
    return BadWorker(shown, problem, concerned) if is_there or concerned else None
