"""The port for tasks and steps: where claims, fences, readiness and concurrency limits are decided.

Every adapter passes tests/contract. Each method is one transaction. A worker's methods name their ``worker_id`` and
carry fences; an owner's methods carry their :class:`Ownership` and raise NotOwnerError when its epoch is stale or the
session has no owner any more, and NotFoundError for a task or step of another session.
A worker inserts no step and no run: claiming is an update.

Every transition is an event in the log of the step's current run; a map step has no run, so its events, like the
task's own, are in the log of the task's root run. A run that is ended with its step (skipped, cancelled, poisoned) is
ended in the same transaction.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from soong.shared.core.identity import OWN, Origin
from soong.shared.engine.runs.record import NewRun
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.additional_claims import ClaimRefusal
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.lost_lease import WORKER_GONE
from soong.shared.engine.tasks.status import StepStatus, TaskEvent, TaskStatus
from soong.shared.engine.tasks.step import (
    Advance,
    Backlog,
    BadWorker,
    Claim,
    ConcurrencyLimit,
    FailurePolicy,
    Interrupt,
    Lease,
    NewStep,
    NewTask,
    OpenTask,
    Step,
    StepEnd,
    StepError,
    StepResult,
    Task,
    TaskCounts,
)


class TaskStore(Protocol):
    # -- making and reading
    async def create_task(self, task: NewTask) -> None:
        """Insert a task with its steps, edges and runs; steps without open dependencies become ready or expanding.

        The root run is running from the start (fence 0, its owner appends to it); the steps' runs are queued. Nothing
        happens when the session has a task of that id already: whoever did not hear the answer says it again. A closed
        session is open again, for whichever owner adopts it.

        Raises:
            NotFoundError: there is no such session.
            ConflictError: another session has a task of that id.
            UnavailableError: a former task of that id is being removed.
        """
        ...

    async def task(self, task_id: str) -> Task:
        """Raises: NotFoundError."""
        ...

    async def list_tasks(self, *, session_id: str = "", before: str = "", limit: int = 100) -> Sequence[Task]:
        """Return tasks, newest first; ``before`` is the id of the last one of the page before this one."""
        ...

    async def steps(self, task_id: str) -> Sequence[Step]:
        """Return the steps in the order they were inserted."""
        ...

    async def step(self, step_key: str) -> Step:
        """Raises: NotFoundError."""
        ...

    async def result(self, step_key: str) -> StepResult: ...

    async def counts(self, task_id: str) -> TaskCounts: ...

    async def set_concurrency_limits(self, concurrency_limits: Sequence[ConcurrencyLimit]) -> None:
        """Set limits by scope; a limit below 1 removes the concurrency limit."""
        ...

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
        """Write the ends, unlock what waited for them, and claim at most ``claim`` further steps: one transaction.

        An end counts only while its step is leased with that fence by that worker; otherwise its run id is in ``stale``
        and nothing of it is written. A completed end without a result node gets one with its output. The dependents'
        ``open_deps`` fall by the number of ended dependencies, rows locked in key order; what reaches 0 becomes ready
        (a map: expanding). A map step whose last child ended completes here, with its dependents. A failed end leaves
        its dependents as they are: the owner settles it.

        The failure of a step whose cancellation was asked for is final at once: there is nothing left to settle.

        Claims: only ready steps of running tasks that are assigned, not pulled, of ``pools``, whose ``needs`` are
        within ``capabilities``; fair among sessions (least recently claimed first, one step each in turn, also within
        one batch), then what was parked, then by priority (higher first), then oldest; never beyond a concurrency
        limit, counted in live leases while its row is locked; at most ceil(ready / live_workers) so that one worker
        does not take all. Claiming sets the fence to one more than ever issued for the step, makes it running in one
        go, starts the run and appends step_claimed and run_started (or run_resumed). A worker that is not live
        (draining, gone, unknown) claims nothing.
        """
        ...

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
        """Claim a further ready step of the holder's task for the holder's run (DAG-03), whatever its claim mode.

        As ``advance`` claims: the worker must be live and fit, no concurrency limit may be passed, the session has
        had its turn, the fence is one more than ever issued. A concurrency limit counts agents at work: the step
        counts where its holder does not. The step's own run is started; its step_claimed event says which run holds
        it (``claimed_by``). The lease is the worker's: it ends with an end, a hand-back or the worker like any
        other. A run holds one further step at a time, and no more than its own step's limit in all. Of a
        step that is not given :class:`soong.shared.engine.tasks.additional_claims.ClaimRefusal` says why.

        Raises: LeaseLostError when the holder does not hold its own step (any more).
        """
        ...

    async def release(self, worker_id: str, held: Sequence[Lease], *, reason: str, now_us: int) -> frozenset[str]:
        """Return leased steps to ready without counting a lost lease; stale ones are returned as run ids.

        A step whose cancellation was asked for is cancelled instead.
        """
        ...

    async def park(
        self, worker_id: str, held: Lease, request_ids: Sequence[str], *, max_parked: int, now_us: int
    ) -> bool:
        """Give a held step up for as long as these questions of its run wait: step blocked, run parked, no lease.

        The fence stays, and nothing is written under it any more. Whoever closes one of the run's questions
        (``ConsentStore.decide``) makes the step ready again in the same transaction.

        Told again of a run that is parked under that fence, it says True and changes nothing: the answer was lost.

        False, and nothing is changed, when one of the questions is closed already (the call goes on at once), when
        ``max_parked`` runs of the session are parked, when the step was asked to stop or its task is paused (its
        interrupt comes), when the run holds a further step, and when the lease is not held any more.
        """
        ...

    async def report_progress(self, worker_id: str, held: Lease, progress: str, *, now_us: int) -> None:
        """Raises: LeaseLostError."""
        ...

    async def interrupts(self, worker_id: str) -> Sequence[Interrupt]:
        """Return the held runs whose task was cancelled or paused, for a worker that missed the hint."""
        ...

    async def leases(self, worker_id: str) -> Sequence[Lease]:
        """Return all that the worker holds by the rows, whether it knows of it or not."""
        ...

    # -- the owner's side; a ``command_id`` is that of a client's command, which has ended with the transaction
    async def backlog(self, *, limit: int = 1000) -> Backlog:
        """Count the steps that could be claimed now, within the concurrency limits as they stand.

        Whether a worker lives that is able to is not asked: ``waiting`` says whom they need.
        """
        ...

    async def expire_worker(
        self, worker_id: str, beat: int, *, max_lost_leases: int, now_us: int, because: str = WORKER_GONE
    ) -> frozenset[str] | None:
        """Declare a worker gone if its beat is still ``beat``, and free its leases; None when it has beaten or is gone.

        Its steps become ready with a higher fence and one more lost lease; those with ``max_lost_leases`` fail as
        ``poisoned``; those whose cancellation was asked for are cancelled. ``because`` is kept with each: it says which
        worker it was and how that ended (:func:`soong.shared.engine.tasks.lost_lease.lost_to`). Returns the sessions
        concerned.
        """
        ...

    async def expire_bad_workers(self, *, max_lost_leases: int, now_us: int) -> Sequence[BadWorker]:
        """End workers whose rows no process of ours writes, and those that are gone and hold steps (OPS-12).

        Their leases end as those of :meth:`expire_worker` do. The audit log says each as ``malformed_row``.
        """
        ...

    async def steps_in(self, ownership: Ownership, status: StepStatus) -> Sequence[Step]:
        """Return the owned session's steps in a status, oldest first (expanding: what the expander has to do)."""
        ...

    async def begin_expansion(self, ownership: Ownership, step_key: str, *, is_taken_back: bool = False) -> int:
        """Count that an expanding map step is about to be expanded; return how often that was since it opened.

        Written before the work, so that the successor of an owner that the work has killed knows of it.
        ``is_taken_back``: it was begun once less, for it was not the work that ended it. 0 when it is not expanding.
        """
        ...

    async def expand(self, ownership: Ownership, step_key: str, children: Sequence[NewStep], *, now_us: int) -> bool:
        """Insert a map step's children and make it waiting; with none it completes at once (its dependents unlock).

        Guarded by owner epoch and status: False when it was not expanding, so repeating changes nothing.
        """
        ...

    async def fail_expansion(self, ownership: Ownership, step_key: str, error: StepError, *, now_us: int) -> None:
        """Fail an expanding map step (its ``over`` gave no list, too many items); then settle it like any failure."""
        ...

    async def failures(self, ownership: Ownership) -> Sequence[Step]:
        """Return the failed steps not settled yet, oldest first."""
        ...

    async def retry_step(
        self, ownership: Ownership, step_key: str, run: NewRun, *, not_before_us: int, now_us: int
    ) -> None:
        """Insert the next attempt's run and put the step back to pending until ``not_before_us``.

        The step has no error any more and its number of lost leases stays. Only ``promote_due`` makes it ready.

        Raises: InvalidTransitionError when the step is not failed, or its failure is settled.
        """
        ...

    async def promote_due(self, ownership: Ownership, *, now_us: int) -> int | None:
        """Make retries whose time has come ready; return when the next is due (µs), or None."""
        ...

    async def settle_failure(self, ownership: Ownership, step_key: str, policy: FailurePolicy, *, now_us: int) -> None:
        """Mark a failure as final and apply its policy: skip dependents (all below), fail the task, or let them go on.

        A map step whose child failed with SKIP_DEPENDENTS fails itself, to be settled in turn; its other children go
        on. FAIL_TASK cancels what is not leased and asks for the rest; ``finish_task`` then ends the task as failed.
        Nothing happens when the failure is settled already.

        Raises: InvalidTransitionError when the step is not failed.
        """
        ...

    async def finish_task(self, ownership: Ownership, task_id: str, *, now_us: int) -> TaskStatus | None:
        """End the task and its root run if every step has ended and every failure is settled; None when it goes on.

        Completed when all steps completed; otherwise failed, with the failed step ids in ``reason``. A task that had
        ended before is left as it is: its status is returned again.
        """
        ...

    async def open_tasks(self, ownership: Ownership) -> Sequence[OpenTask]:
        """Return the session's tasks that have not ended, oldest first."""
        ...

    async def unrecorded(self, owner_id: str) -> Sequence[str]:
        """Return tasks that are over and whose run folders are not written, oldest first.

        Of sessions that are the owner's or nobody's; none of which a step is still held.
        """
        ...

    async def mark_recorded(self, task_id: str) -> None:
        """Say that the run folders of a task that is over are written; nothing when it goes on again."""
        ...

    async def pause_task(self, ownership: Ownership, task_id: str, *, reason: str, now_us: int) -> frozenset[str]:
        """Stop new claims of the task; return the ids of workers that hold steps of it.

        Raises: InvalidTransitionError when the task has ended.
        """
        ...

    async def resume_task(self, ownership: Ownership, task_id: str, *, now_us: int) -> None:
        """Let a paused task go on; a running one just does. Raises: InvalidTransitionError when it has ended."""
        ...

    async def cancel_task(
        self, ownership: Ownership, task_id: str, *, reason: str, now_us: int, command_id: str = ""
    ) -> frozenset[str]:
        """End the task and its root run as cancelled; return the ids of workers that hold steps of it.

        What is not leased is cancelled at once, its questions withdrawn; the leased steps are asked to stop
        (``interrupts``) and end as their worker says, or as cancelled when they are handed back or their lease
        expires. Failures need no settling.

        Raises: InvalidTransitionError when the task has ended.
        """
        ...

    async def update_task(
        self, ownership: Ownership, task_id: str, change: TaskChange, *, now_us: int, command_id: str = ""
    ) -> frozenset[str]:
        """Change a task that goes on, all or nothing; return the workers that hold a step which is to be cancelled.

        A new step waits for those of its dependencies that have not completed (or failed and are kept). What is skipped
        or cancelled takes everything below it with it, a map step its children too; a failed step that is skipped is
        settled. A leased step that is cancelled is asked to stop, and ends as its worker says.

        Raises:
            InvalidTransitionError: the task has ended; a step is not in a status that allows what is asked of it.
            ConflictError: a step of that id stands already; a dependency can no longer complete, is the child of a map
                or closes a circle; a step that gets one has left ``pending``.
            NotFoundError: a named step is none of this task.
        """
        ...

    async def recount(self, ownership: Ownership, task_id: str, *, now_us: int) -> int:
        """Count again what the task's pending steps wait for; return how many open by that.

        A step that grows onto one which ends at that very moment may miss its end: this makes it good. Idempotent.
        """
        ...

    async def end_task(
        self,
        ownership: Ownership,
        task_id: str,
        event: Literal[TaskEvent.COMPLETE, TaskEvent.FAIL],
        *,
        reason: str,
        now_us: int,
        command_id: str = "",
    ) -> frozenset[str]:
        """End a task as whoever plans it says; return the workers that hold steps of it.

        COMPLETE needs every step to have ended, whatever as; its failures are final. FAIL cancels what has not ended,
        as ``cancel_task`` does.

        Raises: InvalidTransitionError when it has ended; ConflictError: steps that have not ended keep it open.
        """
        ...

    async def retry_task(
        self,
        ownership: Ownership,
        task_id: str,
        runs: Sequence[NewRun],
        *,
        again: Sequence[str] = (),
        regrown: Sequence[str] = (),
        model: str = "",
        origin: Origin = OWN,
        now_us: int,
        command_id: str = "",
    ) -> None:
        """Put the failed, cancelled and skipped steps of an ended task back to pending, each with its new run.

        ``again`` are keys of completed steps that run anew with them. ``regrown`` are map steps whose items may be
        others now: their children's rows go (their runs and logs stay) and they are expanded anew.

        ``runs`` are matched by their step key; a map step needs none: with children it waits for them again, without it
        is expanded again. A run without a step becomes the task's new root run; without one the old root run goes on.
        Lost leases are forgotten, and a closed session is open again. ``model`` becomes the model of the agent steps
        that are put back, and of the items that their maps expand to; empty: each keeps its own. ``origin`` becomes
        that of a root run that goes on, and so of what its maps expand to.

        Raises: InvalidTransitionError when the task has not ended, or completed with nothing to run again (or
            ConflictError: a step of it is still leased, or a map step that waits again for its dependencies has
            children and is not among the ``regrown``: they would run, and count for it, before it is unlocked).
        """
        ...
