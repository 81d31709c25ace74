"""Additional claims in memory: a run takes a step of its task in addition to its own."""

import threading
from collections.abc import Sequence

from soong.shared.core.errors import LeaseLostError
from soong.shared.core.ids import step_key
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.claims import (
    ClaimingRun,
    ClaimRefusal,
    RequestedStep,
    limited,
    refusal,
)
from soong.shared.engine.tasks.spec import ClaimMode
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.engine.tasks.step import Claim, Lease, Step
from tests.model.memory.claiming import claim_step, counted_leases, scopes_of
from tests.model.memory.rows import Rows, transaction


class MemoryAdditionalClaims:
    """The part of the task store in which a run takes steps beside its own."""

    rows: Rows
    lock: threading.RLock

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
        leases = counted_leases(self.rows)
        for scope in scopes_of(step):
            if (
                scope not in scopes_of(own)
                and scope in self.rows.concurrency_limits
                and leases[scope] >= self.rows.concurrency_limits[scope]
            ):
                return limited(step.step_id, scope)
        return None
