"""Additional claims: a run takes a step of its task in addition to its own, under the concurrency limits and in its
session's turn (DAG-03).

The statement is the claim loop's, for one named step. Locks are taken in the order of a worker's other transactions:
the worker, the step that it holds, the concurrency limits, and last the step that it wants, which is passed by when
it is locked.
"""

from collections.abc import Collection, Sequence
from typing import Final

from soong.shared.core.errors import LeaseLostError
from soong.shared.core.identity import step_key
from soong.shared.core.value import Value
from soong.shared.engine.tasks.claims import ClaimingRun, ClaimRefusal, RequestedStep, limited, refusal, taken_meanwhile
from soong.shared.engine.tasks.spec import StepKind, StepStatus
from soong.shared.engine.tasks.step import Claim, Lease
from soong.shared.storage.sql.claims.claim_context import (
    CLAIM_CONTEXT,
    DEPENDENCIES,
    Contexts,
    results_of,
    tell_malformed,
)
from soong.shared.storage.sql.claims.claiming import (
    LIVE_WORKER,
    TAKE_TURNS,
    ReadyGroup,
    concurrency_limits_of,
    lock_room,
    next_turn,
    scopes_of,
)
from soong.shared.storage.sql.claims.readiness import note_claimed
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.row_mapper import unpack
from soong.shared.storage.sql.engine.rows import spec_of
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Row, Transaction

HOLDER: Final = Statement(
    "holder: the step of the run that asks, while it holds it; locked, so that a run asks once at a time",
    """
    SELECT step_id, task_id, spec, cancel_reason, session_id, definition, model, pool FROM steps
    WHERE key = :key AND run_id = :run_id AND fence = :fence AND worker_id || '' = :worker_id
      AND status = 'running' /*pg FOR UPDATE */
    """,
)
TAKEN: Final = Statement(
    "taken: the steps that a run holds or has ended in addition to its own",
    """
    SELECT step_id, status FROM steps
    WHERE holder_run_id = :run_id AND holder_run_id <> '' AND task_id || '' = :task_id ORDER BY ordinal
    """,
)
SOUGHT: Final = Statement(
    "requested: what decides whether a step may be claimed by another run than its own",
    """
    SELECT step_id, kind, status, open_deps, pool, needs, is_paused, is_pull_worker, session_id, definition, model,
           CASE WHEN claim_mode = 'assigned' AND starts > 0 THEN 1 ELSE 0 END AS has_begun
    FROM steps WHERE key = :key
    """,
)
CLAIM_ADDITIONAL: Final = Statement(
    "claim additional: take one named ready step for a run that keeps its own; nobody waits for it",
    """
    UPDATE steps SET
        status = 'running', fence = fence + 1, starts = starts + 1, worker_id = :worker_id,
        holder_run_id = :holder_run_id, started_us = coalesce(started_us, :now_us)
    WHERE key IN (
        SELECT key FROM steps WHERE key = :key AND status = 'ready' AND is_paused = 0
        /*pg FOR UPDATE SKIP LOCKED */
    )
    RETURNING key, fence, starts, run_id, kind, spec, attempt, task_id, session_id, priority, ordinal, is_unparked,
              CASE WHEN starts = 1 THEN ready_us END AS ready_us, title
    """,
)
LAST_TURN: Final = Statement("last turn: of all sessions", "SELECT max(last_claimed) FROM sessions")


class _Ask(Value):
    worker_id: str
    holder: Lease
    step_id: str
    pools: Collection[str]
    capabilities: Collection[str]
    now_us: int


class SqlAdditionalClaims(StorePart):
    """The part of the task store in which a run takes steps in addition to its own."""

    async def claim_additional(
        self,
        worker_id: str,
        holder: Lease,
        step_id: str,
        *,
        pools: Sequence[str],
        capabilities: Sequence[str],
        now_us: int,
    ) -> Claim | ClaimRefusal:
        ask = _Ask(worker_id, holder, step_id, pools, capabilities, now_us)
        return await self._database.write(lambda tx: _claim(tx, self._contexts, ask))


def _claim(tx: Transaction, contexts: Contexts, ask: _Ask) -> Claim | ClaimRefusal:
    is_live = bool(tx.rows(LIVE_WORKER, worker_id=ask.worker_id))
    claiming, task_id, counted = _claiming_run(tx, ask, is_live=is_live)
    key = step_key(task_id, ask.step_id)
    row = tx.first(SOUGHT, key=key)
    requested = None if row is None else _requested(row)
    refused = refusal(claiming, ask.step_id, requested, pools=ask.pools, capabilities=ask.capabilities)
    if refused is None:
        refused = _over_a_limit(tx, ask.step_id, row, counted)
    if refused is not None:
        return refused
    taken = tx.first(
        CLAIM_ADDITIONAL, key=key, worker_id=ask.worker_id, holder_run_id=ask.holder.run_id, now_us=ask.now_us
    )
    return taken_meanwhile(ask.step_id) if taken is None else _claimed(tx, contexts, ask, taken)


def _claiming_run(tx: Transaction, ask: _Ask, *, is_live: bool) -> tuple[ClaimingRun, str, tuple[str, ...]]:
    """Return who asks, the task, and the concurrency limit scopes that it counts in already. Raises: LeaseLostError."""
    held = ask.holder
    step = tx.first(HOLDER, key=held.step_key, run_id=held.run_id, fence=held.fence, worker_id=ask.worker_id)
    if step is None:
        raise LeaseLostError(held.run_id, held.fence)
    had = tx.rows(TAKEN, run_id=held.run_id, task_id=step.task_id)
    open_ids = [row.step_id for row in had if StepStatus(row.status).is_leased]
    is_stopping = not is_live or step.cancel_reason is not None
    most = spec_of(step.spec).max_steps
    claiming = ClaimingRun(step.step_id, next(iter(open_ids), ""), len(had), most, is_stopping)
    return claiming, step.task_id, scopes_of(step.session_id, step.definition, step.model, step.pool)


def _requested(row: Row) -> RequestedStep:
    return RequestedStep(
        step_id=row.step_id,
        kind=StepKind(row.kind),
        status=StepStatus(row.status),
        open_deps=row.open_deps,
        pool=row.pool,
        needs=tuple(unpack(row.needs)),
        is_paused=bool(row.is_paused),
        is_pull_worker=bool(row.is_pull_worker),
        has_begun=bool(row.has_begun),
    )


def _over_a_limit(tx: Transaction, step_id: str, row: Row, counted: tuple[str, ...]) -> ClaimRefusal | None:
    """Count the live leases of the scopes in which the run does not count yet, while their concurrency limits are
    locked.
    """
    its_scopes = scopes_of(row.session_id, row.definition, row.model, row.pool)
    scopes = tuple(scope for scope in its_scopes if scope not in counted)
    lane = ReadyGroup("", row.session_id, scopes, ready=1, last_claimed=0, heads=[(0, 0, 0)], pool=row.pool)
    room = lock_room(tx, [lane], frozenset(concurrency_limits_of(tx, [lane])))
    full = [scope for scope in scopes if room.get(scope, 1) <= 0]
    return limited(step_id, full[0]) if full else None


def _claimed(tx: Transaction, contexts: Contexts, ask: _Ask, step: Row) -> Claim:
    """Start the step's run in its holder's name, take the session's turn, and tell what the step is."""
    run_log = RunLogBuffer(ask.now_us)
    note_claimed(run_log, step, ask.worker_id, claimed_by=ask.holder.run_id)
    tx.change(TAKE_TURNS, [(step.session_id, next_turn(int(tx.value(LAST_TURN) or 0)))])
    context = contexts.of_runs(tx, tx.rows(CLAIM_CONTEXT, run_ids=[step.run_id]))
    results = results_of(tx, tx.rows(DEPENDENCIES, keys=[step.key]))
    claim = context.claim(step, results.get(step.key, {}))
    tell_malformed(tx, run_log, [claim], ask.now_us)
    run_log.flush(tx)
    return claim
