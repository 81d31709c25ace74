"""A worker's side of tasks in memory, and the reading of tasks and steps."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from soong.shared.core.errors import LeaseLostError
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import EVERYTHING, ListFilter, RunEvent
from soong.shared.engine.sessions.session import ProcessState, Session
from soong.shared.engine.tasks.claims import ABANDONED, WORKER_GONE
from soong.shared.engine.tasks.spec import ClaimMode, StepEvent, StepStatus, TaskKind, TaskStatus, advance_step
from soong.shared.engine.tasks.step import (
    Advance,
    Backlog,
    BadWorker,
    ConcurrencyLimit,
    Interrupt,
    Lease,
    NewTask,
    Step,
    StepEnd,
    StepError,
    StepResult,
    Task,
    WaitingSteps,
)
from soong.shared.engine.tasks.store import StepSnapshot
from tests.model.memory.ending import (
    cancel_step,
    choose,
    claim_steps,
    is_parked,
    limits_now,
    parked,
    pending_of,
    poison,
    result_of,
    write_end,
)
from tests.model.memory.rows import Part, add_session, create_task, meets, move_run, note_step, page_before, transaction


class MemorySteps(Part):
    """The part of the task store that needs no ownership."""

    @transaction
    def create_task(self, task: NewTask) -> None:
        create_task(self.rows, task)

    @transaction
    def submit(self, session: Session, task: NewTask) -> None:
        add_session(self.rows, session)
        create_task(self.rows, task)

    @transaction
    def task(self, task_id: str) -> Task:
        return self.rows.task(task_id)

    @transaction
    def list_tasks(
        self,
        *,
        session_id: str = "",
        kind: TaskKind | None = None,
        only: ListFilter = EVERYTHING,
        before: str = "",
        limit: int = 100,
    ) -> Sequence[Task]:
        found = [task for task in page_before(self.rows.tasks, before) if session_id in {"", task.session_id}]
        found = [task for task in found if meets(task, task, only)]
        return [task for task in found if kind in {None, task.kind}][:limit]

    @transaction
    def steps(self, task_id: str) -> Sequence[Step]:
        return self.rows.steps_of(task_id)

    @transaction
    def step_page(
        self, task_id: str, *, after: str = "", statuses: Collection[StepStatus] = (), limit: int = 100
    ) -> Sequence[Step]:
        steps = self.rows.steps_of(task_id)
        begin = next((place for place, step in enumerate(steps, 1) if step.key == after), 0)
        return [step for step in steps[begin:] if not statuses or step.status in statuses][:limit]

    @transaction
    def step(self, step_key: str) -> Step:
        return self.rows.step(step_key)

    @transaction
    def step_states(self, task_id: str) -> Sequence[StepSnapshot]:
        return [StepSnapshot.of(step) for step in self.rows.steps_of(task_id)]

    @transaction
    def result(self, step_key: str) -> StepResult:
        return result_of(self.rows, step_key)

    @transaction
    def task_with_steps(self, task_id: str) -> tuple[Task, Sequence[Step]]:
        return self.rows.task(task_id), self.rows.steps_of(task_id)

    @transaction
    def status(self, task_id: str) -> tuple[TaskStatus, str]:
        return (task := self.rows.task(task_id)).status, task.session_id

    @transaction
    def counts(self, task_id: str) -> Mapping[StepStatus, int]:
        return Counter(step.status for step in self.rows.steps_of(task_id))

    @transaction
    def set_concurrency_limits(self, concurrency_limits: Sequence[ConcurrencyLimit]) -> None:
        for bound in concurrency_limits:
            if bound.limit < 1:
                self.rows.concurrency_limits.pop(bound.scope, None)
            else:
                self.rows.concurrency_limits[bound.scope] = bound.limit

    @transaction
    def pause_scope(self, scope: str, *, is_paused: bool) -> None:
        if is_paused:
            self.rows.paused_scopes.add(scope)
        else:
            self.rows.paused_scopes.discard(scope)

    @transaction
    def advance(
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
        stale: set[str] = set()
        before: dict[str, dict[str, Step]] = {}
        for end in ends:
            step = self._held(worker_id, Lease(end.step_key, end.run_id, end.fence))
            if step is None:
                stale.add(end.run_id)
                continue
            before.setdefault(step.task_id, {one.key: one for one in self.rows.steps_of(step.task_id)})
            write_end(self.rows, end, now_us)
        after = {task_id: self._changed(was) for task_id, was in before.items()}
        claims, is_left = claim_steps(
            self.rows,
            worker_id,
            claim=claim,
            pools=pools,
            capabilities=capabilities,
            live_workers=live_workers,
            now_us=now_us,
        )
        claimed = {claim.identity.task_id for claim in claims}
        owned = {task_id for task_id, steps in after.items() if _is_for_owner(steps, is_claimed=task_id in claimed)}
        sessions = frozenset(self.rows.task(task_id).session_id for task_id in owned)
        return Advance(claims, frozenset(stale), sessions, is_left)

    def _changed(self, was: Mapping[str, Step]) -> list[Step]:
        return [self.rows.step(key) for key, step in was.items() if self.rows.step(key) != step]

    @transaction
    def release(self, worker_id: str, held: Sequence[Lease], *, reason: str, now_us: int) -> frozenset[str]:
        stale: set[str] = set()
        for lease in held:
            step = self._held(worker_id, lease)
            if step is None:
                stale.add(lease.run_id)
            else:
                self._free(step, StepEvent.RELEASE, EventType.STEP_RELEASED, reason, now_us)
        return frozenset(stale)

    @transaction
    def park(self, worker_id: str, held: Lease, request_ids: Sequence[str], *, max_parked: int, now_us: int) -> bool:
        if is_parked(self.rows, held):
            return True
        step = self._held(worker_id, held)
        if step is None or self._interrupt(step):
            return False
        asked = sorted(set(request_ids))
        if not set(asked) <= {request.id for request in pending_of(self.rows, step.run_id)}:
            return False
        return parked(self.rows, step, asked, max_parked, now_us)

    @transaction
    def report_progress(
        self, worker_id: str, held: Lease, progress: str, *, error: StepError | None = None, now_us: int
    ) -> None:
        step = self._held(worker_id, held)
        if step is None:
            raise LeaseLostError(held.run_id, held.fence)
        self.rows.steps[step.key] = replace(step, progress=progress, error=error or step.error)
        note_step(self.rows, step, EventType.STEP_PROGRESS, now_us, progress=progress)

    @transaction
    def interrupts(self, worker_id: str) -> Sequence[Interrupt]:
        held = self.rows.leased_by(worker_id)
        return [found for step in held for found in (*self._interrupt(step), *self._aborts(step))]

    @transaction
    def leases(self, worker_id: str) -> Sequence[Lease]:
        return [Lease(step.key, step.run_id, step.fence) for step in self.rows.leased_by(worker_id)]

    def _interrupt(self, step: Step) -> list[Interrupt]:
        task = self.rows.task(step.task_id)
        if step.key in self.rows.stopping:
            return [Interrupt(step.run_id, step.key, step.fence, "cancel", self.rows.stopping[step.key])]
        if task.status is TaskStatus.PAUSED:
            return [Interrupt(step.run_id, step.key, step.fence, "pause", task.reason)]
        return []

    def _aborts(self, step: Step) -> list[Interrupt]:
        return [
            Interrupt(step.run_id, step.key, step.fence, "abort", abort.reason, abort.tool_call_id)
            for abort in self.rows.aborts_of(step.run_id)
        ]

    @transaction
    def backlog(self, *, limit: int = 1000) -> Backlog:
        ready = [
            step
            for step in self.rows.steps.values()
            if step.status is StepStatus.READY
            and step.claim_mode is ClaimMode.ASSIGNED
            and self.rows.task(step.task_id).status is TaskStatus.RUNNING
        ]
        waiting = frozenset(WaitingSteps(step.session_id, step.pool, step.needs) for step in ready)
        if limits_now(self.rows):
            # Nobody is served by looking: the turns stay as they are.
            turns = dict(self.rows.last_claimed)
            ready, _ = choose(self.rows, ready, len(ready))
            self.rows.last_claimed = turns
        counts = Counter(step.pool for step in ready)
        return Backlog({pool: min(number, limit) for pool, number in counts.items()}, waiting)

    @transaction
    def expire_worker(
        self, worker_id: str, beat: int, *, max_lost_leases: int, now_us: int, because: str = WORKER_GONE
    ) -> frozenset[str] | None:
        worker = self.rows.workers.get(worker_id)
        if worker is None or worker.state is ProcessState.GONE or worker.beat != beat:
            return None
        self.rows.workers[worker_id] = replace(worker, state=ProcessState.GONE)
        return self._lose(worker_id, max_lost_leases, because, now_us)

    def _lose(self, worker_id: str, max_lost_leases: int, because: str, now_us: int) -> frozenset[str]:
        """Free all leases of a worker that is gone; return the sessions concerned."""
        held = self.rows.leased_by(worker_id)
        for step in held:
            # The fence grows here already, so that nobody can mistake the next holder for this one.
            lost = replace(step, lost_leases=step.lost_leases + 1, lost_to=because, fence=step.fence + 1)
            self.rows.steps[step.key] = lost
            is_poisoned = lost.lost_leases >= max_lost_leases or lost.error is not None
            if is_poisoned and step.key not in self.rows.stopping:
                note_step(self.rows, lost, EventType.STEP_LEASE_EXPIRED, now_us, reason=because, fence=lost.fence)
                poison(self.rows, lost, now_us)
            else:
                self._free(lost, StepEvent.EXPIRE, EventType.STEP_LEASE_EXPIRED, because, now_us)
        return frozenset(step.session_id for step in held)

    @transaction
    def expire_bad_workers(self, *, max_lost_leases: int, now_us: int) -> Sequence[BadWorker]:
        alive = {worker.id for worker in self.rows.workers.values() if worker.state is not ProcessState.GONE}
        left = {step.worker_id for step in self.rows.steps.values() if step.status.is_leased} - alive
        return [
            BadWorker(each, ABANDONED, self._lose(each, max_lost_leases, ABANDONED, now_us)) for each in sorted(left)
        ]

    def _held(self, worker_id: str, lease: Lease) -> Step | None:
        step = self.rows.steps.get(lease.step_key)
        if step is None or not step.status.is_leased:
            return None
        is_same = (step.worker_id, step.run_id, step.fence) == (worker_id, lease.run_id, lease.fence)
        return step if is_same else None

    def _free(self, step: Step, event: StepEvent, note: EventType, reason: str, now_us: int) -> None:
        """End a lease without an end of the step; one that was asked to cancel is cancelled by it."""
        note_step(self.rows, step, note, now_us, reason=reason, fence=step.fence)
        stop = self.rows.stopping.get(step.key)
        if stop is not None:
            cancel_step(self.rows, step, stop, now_us)
            return
        self.rows.steps[step.key] = replace(
            step, status=advance_step(step.status, event), worker_id="", holder_run_id="", error=None
        )
        run = move_run(self.rows, step.run_id, RunEvent.RELEASE)
        self.rows.runs[run.id] = replace(run, worker_id="")


def _is_for_owner(changed: Sequence[Step], *, is_claimed: bool) -> bool:
    """Say whether a task's owner has something to do, given the steps of it that the ends changed."""
    statuses = {step.status for step in changed}
    continues = is_claimed or not statuses.isdisjoint({StepStatus.PENDING, StepStatus.READY, StepStatus.WAITING})
    return StepStatus.EXPANDING in statuses or not continues
