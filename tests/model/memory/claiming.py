"""Which steps a worker gets, and what it is told of them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil

from msgspec.structs import replace

from soong.shared.core.errors import LeaseLostError
from soong.shared.core.identity import Role, step_key
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import RunEvent
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.claims import ClaimingRun, ClaimRefusal, RequestedStep, limited, refusal
from soong.shared.engine.tasks.spec import ClaimMode, StepEvent, StepStatus, TaskStatus, advance_step
from soong.shared.engine.tasks.step import Claim, Lease, Step
from tests.model.memory.ending import result_of
from tests.model.memory.logs import move_run, note_step, tell_step
from tests.model.memory.rows import Part, Rows, transaction


def scopes_of(step: Step) -> tuple[str, ...]:
    """Return the concurrency limit scopes that a lease of the step counts in."""
    named = (("session", step.session_id), ("definition", step.definition), ("model", step.model), ("pool", step.pool))
    return tuple(f"{kind}:{name}" for kind, name in named if name)


def counted_leases(rows: Rows) -> Counter[str]:
    """Return how many live leases each concurrency limit scope has; a step held beside another counts where that
    does not.
    """
    leases: Counter[str] = Counter()
    for step in rows.steps.values():
        if step.status.is_leased:
            own = rows.steps.get(rows.run(step.holder_run_id).identity.step_key) if step.holder_run_id else None
            shared = scopes_of(own) if own is not None and own.status.is_leased else ()
            leases.update(scope for scope in scopes_of(step) if scope not in shared)
    return leases


def claimable(rows: Rows, pools: Sequence[str], capabilities: Sequence[str]) -> list[Step]:
    """Return the ready steps that such a worker may run, whatever the concurrency limits say, oldest first."""
    return [
        step
        for step in rows.steps.values()
        if step.status is StepStatus.READY
        and step.claim_mode is ClaimMode.ASSIGNED
        and rows.task(step.task_id).status is TaskStatus.RUNNING
        and step.pool in pools
        and set(step.needs) <= set(capabilities)
    ]


def choose(rows: Rows, ready: Iterable[Step], quota: int) -> tuple[list[Step], bool]:
    """Choose at most ``quota`` steps by fairness, priority and age, within the concurrency limits; say whether more
    could go.
    """
    waiting = list(ready)
    leases = counted_leases(rows)
    chosen: list[Step] = []
    while True:
        allowed = [step for step in waiting if _fits(rows, step, leases)]
        if len(chosen) >= quota or not allowed:
            return chosen, bool(allowed)
        # min keeps the first of equals: the oldest.
        step = min(allowed, key=lambda step: _place(rows, step))
        rows.last_claimed[step.session_id] = max(rows.last_claimed.values(), default=0) + 1
        leases.update(scopes_of(step))
        chosen.append(step)
        waiting.remove(step)


def _place(rows: Rows, step: Step) -> tuple[int, bool, int]:
    return rows.last_claimed.get(step.session_id, 0), step.key not in rows.unparked, -step.priority


def _fits(rows: Rows, step: Step, leases: Counter[str]) -> bool:
    limits = limits_now(rows)
    return all(leases[scope] < limits[scope] for scope in scopes_of(step) if scope in limits)


def limits_now(rows: Rows) -> dict[str, int]:
    return rows.concurrency_limits | dict.fromkeys(rows.paused_scopes, 0)


def claim_steps(
    rows: Rows,
    worker_id: str,
    *,
    claim: int,
    pools: Sequence[str],
    capabilities: Sequence[str],
    live_workers: int,
    now_us: int,
) -> tuple[tuple[Claim, ...], bool]:
    """Claim for a live worker at most its share; say whether claimable work is left."""
    ready = claimable(rows, pools, capabilities)
    worker = rows.workers.get(worker_id)
    is_live = worker is not None and worker.state is ProcessState.LIVE
    share = _share(rows, worker_id, len(ready), max(live_workers, 1))
    chosen, is_left = choose(rows, ready, min(claim, share) if is_live else 0)
    return tuple(claim_step(rows, step, worker_id, now_us) for step in chosen), is_left


def _share(rows: Rows, worker_id: str, ready: int, live_workers: int) -> int:
    """Return a worker's even share of what is ready, or what brings it to its even share of all that is to be done."""
    holders = [step.worker_id for step in rows.steps.values() if step.status.is_leased]
    each = ceil((ready + len(holders)) / live_workers)
    return max(ceil(ready / live_workers), each - holders.count(worker_id))


def claim_step(rows: Rows, ready: Step, worker_id: str, now_us: int, *, holder_run_id: str = "") -> Claim:
    """Claim a ready step for its own run, or for another run that holds it beside its own."""
    tell_step(rows, ready.key, now_us)
    status = advance_step(ready.status, StepEvent.CLAIM)
    fence = ready.fence + 1
    step = replace(
        ready,
        status=status,
        fence=fence,
        worker_id=worker_id,
        holder_run_id=holder_run_id,
        started_us=ready.started_us or now_us,
        ended_us=None,
    )
    rows.steps[step.key] = step
    run = move_run(rows, step.run_id, RunEvent.START)
    is_resumed = run.started_us is not None or run.identity.role is Role.FORK
    rows.runs[run.id] = replace(run, fence=fence, worker_id=worker_id, started_us=run.started_us or now_us)
    by: dict[str, Json] = {"claimed_by": holder_run_id} if holder_run_id else {}
    note_step(rows, step, EventType.STEP_CLAIMED, now_us, fence=fence, worker=worker_id, **by)
    note_step(rows, step, EventType.RUN_RESUMED if is_resumed else EventType.RUN_STARTED, now_us, fence=fence)
    return _told(rows, step, is_resumed=is_resumed)


def _told(rows: Rows, step: Step, *, is_resumed: bool) -> Claim:
    run, session = rows.run(step.run_id), rows.session(step.session_id)
    results = [result_of(rows, key) for key in step.depends_on]
    return Claim(
        step_key=step.key,
        fence=step.fence,
        identity=run.identity,
        spec=step.spec,
        task_inputs=rows.task(step.task_id).inputs,
        task_title=rows.task(step.task_id).title,
        dependencies={result.step_id: result for result in results},
        surface=run.surface,
        token=run.token,
        attempt=step.attempt,
        project=session.project,
        cwd=session.cwd,
        policy=session.policy,
        is_resumed=is_resumed,
    )


class MemoryAdditionalClaims(Part):
    """The part of the task store in which a run takes steps beside its own."""

    @transaction
    def claim_additional(
        self,
        worker_id: str,
        holder: Lease,
        step_id: str,
        *,
        pools: Sequence[str],
        capabilities: Sequence[str],
        now_us: int,
    ) -> Claim | ClaimRefusal:
        own = self._own_step(worker_id, holder)
        key = step_key(own.task_id, step_id)
        sought = self._sought(self.rows.steps[key]) if key in self.rows.steps else None
        refused = refusal(self._claiming_run(worker_id, own), step_id, sought, pools=pools, capabilities=capabilities)
        if refused is None:
            refused = self._over_a_limit(self.rows.step(key), own)
        if refused is not None:
            return refused
        self.rows.last_claimed[own.session_id] = max(self.rows.last_claimed.values(), default=0) + 1
        return claim_step(self.rows, self.rows.step(key), worker_id, now_us, holder_run_id=holder.run_id)

    def _own_step(self, worker_id: str, holder: Lease) -> Step:
        step = self.rows.steps.get(holder.step_key)
        lease = (worker_id, holder.run_id, holder.fence)
        if step is None or not step.status.is_leased or (step.worker_id, step.run_id, step.fence) != lease:
            raise LeaseLostError(holder.run_id, holder.fence)
        return step

    def _claiming_run(self, worker_id: str, own: Step) -> ClaimingRun:
        had = [step for step in self.rows.steps_of(own.task_id) if step.holder_run_id == own.run_id]
        open_ids = [step.step_id for step in had if step.status.is_leased]
        worker = self.rows.workers.get(worker_id)
        is_live = worker is not None and worker.state is ProcessState.LIVE
        is_stopping = not is_live or own.key in self.rows.stopping
        return ClaimingRun(own.step_id, next(iter(open_ids), ""), len(had), own.spec.max_steps, is_stopping)

    def _sought(self, step: Step) -> RequestedStep:
        has_run = bool(step.run_id) and self.rows.run(step.run_id).started_us is not None
        return RequestedStep(
            step_id=step.step_id,
            kind=step.kind,
            status=step.status,
            open_deps=step.open_deps,
            pool=step.pool,
            needs=step.needs,
            is_paused=self.rows.task(step.task_id).status is TaskStatus.PAUSED,
            is_pull_worker=step.is_pull_worker,
            has_begun=has_run and step.claim_mode is ClaimMode.ASSIGNED,
        )

    def _over_a_limit(self, step: Step, own: Step) -> ClaimRefusal | None:
        leases, limits = counted_leases(self.rows), limits_now(self.rows)
        for scope in scopes_of(step):
            if scope not in scopes_of(own) and scope in limits and leases[scope] >= limits[scope]:
                return limited(step.step_id, scope)
        return None
