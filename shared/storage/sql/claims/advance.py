"""The hottest transaction: a worker's ends, what they unlock, and its next claims, in one go."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

from soong.shared.engine.tasks.step import Advance, Claim, Outcome, StepEnd
from soong.shared.storage.sql.claims import postgres_hot_path, postgres_successor
from soong.shared.storage.sql.claims.claim_context import Contexts, results_for
from soong.shared.storage.sql.claims.claim_rows import ClaimedStep
from soong.shared.storage.sql.claims.claiming import (
    CLAIM_LANE,
    TURNS,
    ClaimScan,
    Turns,
    know_heads,
    last_first,
    lock_room,
    scan,
    share_of,
    share_out,
)
from soong.shared.storage.sql.claims.completions import (
    TRY_LOCK_TAIL,
    ClaimRequest,
    CompletionResult,
    EndedTasks,
    ended_tasks,
    look_at_task,
    write_ends,
)
from soong.shared.storage.sql.claims.readiness import note_claimed, unlock_after
from soong.shared.storage.sql.claims.successor import claim_successor
from soong.shared.storage.sql.claims.task_ends import LastStepEnd, end_with_last_step
from soong.shared.storage.sql.engine.malformed import tell_malformed
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.transaction import Reply, Transaction

Taken: TypeAlias = dict[str, list[Claim]]
"""The claims of each lane, the next one last."""

EndedAndClaimed: TypeAlias = tuple[CompletionResult, EndedTasks, list[Claim], bool]
"""What the ends did and leave to do, the claims in turn, and whether more could have been claimed."""

Take: TypeAlias = Callable[[Transaction, Contexts, RunLogBuffer, ClaimRequest, Turns], Taken]

PASSES: Final = 2
"""Looks at the lanes in one claim: the second sees what another worker, claiming at the same moment, has left."""


def advance(tx: Transaction, contexts: Contexts, ends: Sequence[StepEnd], request: ClaimRequest) -> Advance:
    """Write the ends, unlock, claim. See :meth:`soong.shared.engine.tasks.store.TaskStore.advance`."""
    run_log = RunLogBuffer(request.now_us)
    by_key: dict[str, StepEnd] = {}
    # A step ends once: the same end told twice in one batch is stale the second time.
    doubled = {e.run_id for e in sorted(ends, key=lambda e: e.step_key) if by_key.setdefault(e.step_key, e) is not e}
    end_and_claim = _on_postgres if tx.is_postgres else _on_sqlite
    ended, tasks, claims, is_left = end_and_claim(tx, contexts, run_log, by_key, request)
    run_log.flush(tx)
    again = _look_at_passed_over(tx, contexts, tasks, claims)
    task_ends = {
        session_id: end_with_last_step(tx, task_id, session_id, request.now_us, asked=_last_step(tasks, task_id))
        for task_id, session_id in tasks.over.items()
    }
    over = {session_id for session_id, end in task_ends.items() if end is not LastStepEnd.FOR_OWNER}
    if len(ends) == 1:
        contexts.successors.has_ended_task = bool(over)
    left = ended.ready.difference(claim.step_key for claim in claims)
    return Advance(
        claims=tuple(claims),
        stale=frozenset(doubled.union(end.run_id for key, end in by_key.items() if key not in ended.written)),
        owner_sessions=frozenset(tasks.owner_sessions - over),
        closed_sessions=frozenset(over),
        unrecorded=frozenset(one for one in over if task_ends[one] is LastStepEnd.UNRECORDED),
        ready_left=is_left or bool(left),
        look_again=again,
    )


def _look_at_passed_over(tx: Transaction, contexts: Contexts, tasks: EndedTasks, claims: Sequence[Claim]) -> bool:
    """Look at the tasks that the last transactions have passed over; say whether this one leaves any for the next.

    Writers of SQLite see one another's ends. Of a task of which this worker claims a step, it will write another end.
    No tail is waited for: this transaction holds those of its own tasks, and two would wait for each other.
    """
    if not tx.is_postgres:
        return False
    left = {key: tasks.passed_over[key] for key in tasks.passed_over.keys() - {c.identity.task_id for c in claims}}
    left |= {
        task_id: session_id
        for task_id, session_id in sorted(contexts.passed_over.items())
        if not look_at_task(tx, tasks, task_id, session_id, lock=TRY_LOCK_TAIL)
    }
    contexts.passed_over = left
    return bool(left)


def _on_postgres(
    tx: Transaction, contexts: Contexts, run_log: RunLogBuffer, ends: Mapping[str, StepEnd], request: ClaimRequest
) -> EndedAndClaimed:
    only = next(iter(ends.values())) if len(ends) == 1 and request.claim > 0 else None
    if only is not None and contexts.successors.is_worth_a_try(only):
        ended, tasks, claim = postgres_successor.end_and_claim(tx, contexts, only, request)
        if claim is not None:
            tell_malformed(tx, run_log, [claim], request.now_us)
            return ended, tasks, [claim], False
    else:
        ended = CompletionResult()
    if ended.written:
        ended, tasks, seen = postgres_hot_path.open_and_scan(tx, ended, request)
    else:
        last_of = contexts.successors.last_of(only) if only is not None else None
        ended, tasks, seen = postgres_hot_path.end_and_scan(tx, ends, request, last_of)
    return ended, tasks, *_claim(tx, contexts, run_log, request, seen, postgres_hot_path.take)


def _last_step(tasks: EndedTasks, task_id: str) -> Reply | None:
    tail = tasks.tails.get(task_id)
    return None if tail is None else tail.last_step


def _on_sqlite(
    tx: Transaction, contexts: Contexts, run_log: RunLogBuffer, ends: Mapping[str, StepEnd], request: ClaimRequest
) -> EndedAndClaimed:
    ended = write_ends(tx, run_log, ends, request)
    if any(end.outcome is Outcome.PARTIAL for end in ends.values()):
        run_log.flush(tx)  # the claim of a dependent step reads its nodes (DAG-10)
    if found := claim_successor(tx, contexts, ended, request):
        successor, tasks = found
        claims = _started(tx, contexts, run_log, request, [successor])
        tell_malformed(tx, run_log, claims, request.now_us)
        return ended, tasks, claims, False
    ended.ready = unlock_after(tx, ended.completed, request.now_us)
    tasks = ended_tasks(tx, ended)
    return ended, tasks, *_claim(tx, contexts, run_log, request, scan(tx, request), _take)


def _claim(
    tx: Transaction, contexts: Contexts, run_log: RunLogBuffer, request: ClaimRequest, seen: ClaimScan, take: Take
) -> tuple[list[Claim], bool]:
    """Return the claims, in turn, and whether more could have been claimed."""
    claims: list[Claim] = []
    is_left = False
    for _ in range(PASSES):
        turns = _turns(tx, request, seen, request.claim - len(claims) if seen.is_live else 0)
        is_left = turns.is_left
        if not turns.order:
            break
        taken = take(tx, contexts, run_log, request, turns)
        tell_malformed(tx, run_log, chain.from_iterable(taken.values()), request.now_us)
        found = [taken[lane].pop() for lane in turns.order if taken.get(lane)]
        claims += found
        if len(found) == len(turns.order):
            break
        seen = scan(tx, request)
    return claims, is_left


def _turns(tx: Transaction, request: ClaimRequest, seen: ClaimScan, claim: int) -> Turns:
    """Share the claim out among the lanes that this worker may take from."""
    capabilities = set(request.capabilities)
    lanes = [lane for lane in seen.lanes if lane.pool in request.pools and capabilities.issuperset(lane.needs)]
    want = share_of(tx, request, sum(lane.ready for lane in lanes), claim)
    if want > 0:
        know_heads(tx, lanes, want)
    return share_out(lanes, want, lock_room(tx, lanes, seen.limited), seen.last_turn)


def _take(tx: Transaction, contexts: Contexts, run_log: RunLogBuffer, request: ClaimRequest, turns: Turns) -> Taken:
    """Claim each lane's first steps, one statement a lane."""
    steps: dict[str, list[ClaimedStep]] = {}
    for lane, number in turns.quota().items():
        rows = tx.rows(CLAIM_LANE, lane=lane, number=number, worker_id=request.worker_id, now_us=request.now_us)
        steps[lane] = contexts.claimed(rows)
    claimed = [step for of_lane in steps.values() for step in of_lane]
    if not claimed:
        return {}
    served = {step.session_id for step in claimed}
    tx.change(TURNS, "turns", sorted(item for item in turns.turn.items() if item[0] in served))
    claims = dict(zip((step.key for step in claimed), _started(tx, contexts, run_log, request, claimed), strict=True))
    return {lane: [claims[step.key] for step in sorted(of_lane, key=last_first)] for lane, of_lane in steps.items()}


def _started(
    tx: Transaction, contexts: Contexts, run_log: RunLogBuffer, request: ClaimRequest, claimed: Sequence[ClaimedStep]
) -> list[Claim]:
    """Start the runs of steps that have been claimed; return what their claims tell."""
    told = contexts.read(tx, [step.run_id for step in claimed])
    for step in claimed:
        note_claimed(run_log, step, request.worker_id)
    results = results_for(tx, [step.key for step in claimed])
    return [told.claim(step, results.get(step.key, {})) for step in claimed]
