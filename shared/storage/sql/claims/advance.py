"""The hottest transaction: a worker's ends, what they unlock, and its next claims, in one go."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Final, TypeAlias

from soong.shared.engine.tasks.step import Advance, Claim, Outcome, StepEnd
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
    TAKE_TURNS,
    ClaimScan,
    Turns,
    know_heads,
    last_first,
    lock_room,
    scan,
    share_of,
    share_out,
)
from soong.shared.storage.sql.claims.completions import ClaimRequest, write_ends
from soong.shared.storage.sql.claims.readiness import note_claimed, unlock_after
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.transaction import Row, Transaction

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
        if want > 0:
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
