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
    ClaimRequest,
    CompletionResult,
    write_ends,
)
from soong.shared.storage.sql.claims.readiness import note_claimed, unlock_after
from soong.shared.storage.sql.claims.successor import claim_successor
from soong.shared.storage.sql.engine.malformed import tell_malformed
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.transaction import Transaction

Taken: TypeAlias = dict[str, list[Claim]]
"""The claims of each lane, the next one last."""

EndedAndClaimed: TypeAlias = tuple[CompletionResult, list[Claim], bool]
"""What the ends did, the claims in turn, and whether more could have been claimed."""

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
    ended, claims, is_left = end_and_claim(tx, contexts, run_log, by_key, request)
    run_log.flush(tx)
    left = ended.unlocked.ready.difference(claim.step_key for claim in claims)
    return Advance(
        claims=tuple(claims),
        stale=frozenset(doubled.union(end.run_id for key, end in by_key.items() if key not in ended.written)),
        owner_sessions=ended.owner_sessions(claims),
        ready_left=is_left or bool(left),
    )


def _on_postgres(
    tx: Transaction, contexts: Contexts, run_log: RunLogBuffer, ends: Mapping[str, StepEnd], request: ClaimRequest
) -> EndedAndClaimed:
    only = next(iter(ends.values())) if len(ends) == 1 and request.claim > 0 else None
    ended = CompletionResult()
    if only is not None and contexts.successors.is_worth_a_try(only):
        ended, claim = postgres_successor.end_and_claim(tx, contexts, only, request)
        if claim is not None:
            tell_malformed(tx, run_log, [claim], request.now_us)
            return ended, [claim], False
    if ended.written:
        seen = postgres_hot_path.open_and_scan(tx, ended, request)
    else:
        ended, seen = postgres_hot_path.end_and_scan(tx, ends, request)
    return ended, *_claim(tx, contexts, run_log, request, seen, postgres_hot_path.take)


def _on_sqlite(
    tx: Transaction, contexts: Contexts, run_log: RunLogBuffer, ends: Mapping[str, StepEnd], request: ClaimRequest
) -> EndedAndClaimed:
    ended = write_ends(tx, run_log, ends, request)
    if any(end.outcome is Outcome.PARTIAL for end in ends.values()):
        run_log.flush(tx)  # the claim of a dependent step reads its nodes (DAG-10)
    if successor := claim_successor(tx, ended, request):
        claims = _started(tx, contexts, run_log, request, [successor])
        tell_malformed(tx, run_log, claims, request.now_us)
        return ended, claims, False
    ended.unlocked = unlock_after(tx, ended.completed, request.now_us)
    return ended, *_claim(tx, contexts, run_log, request, scan(tx, request), _take)


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
        steps[lane] = list(map(ClaimedStep._make, rows))
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
