"""The port for tasks and steps: how they are made, read, steered, and settled by their session's owner.

Every adapter passes tests/contract. Each method is one transaction. An owner's methods carry their :class:`Ownership`
and raise NotOwnerError when its epoch is stale or the session has no owner any more, and NotFoundError for a task or
step of another session. Workers hold steps by :class:`soong.shared.engine.tasks.claims.ClaimStore`.

Every transition is an event in the log of the step's current run; a map step has no run, so its events, like the
task's own, are in the log of the task's root run. A run that is ended with its step (skipped, cancelled, poisoned) is
ended in the same transaction.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, Protocol, TypeAlias

from soong.shared.core.identity import OWN, Origin
from soong.shared.core.value import Value
from soong.shared.engine.runs.record import EVERYTHING, ListFilter, NewRun
from soong.shared.engine.runs.store import CallAbort
from soong.shared.engine.sessions.session import Ownership, Session
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.spec import FailurePolicy, StepStatus, TaskEvent, TaskKind, TaskStatus
from soong.shared.engine.tasks.step import NewTask, OpenTask, Outcome, SessionWork, Step, StepError, StepResult, Task
from soong.shared.engine.tasks.verdict import StepVerdict

NO_PLANNER: Final = "the agent that plans this task has been stopped"


class StepSnapshot(Value):
    """The state of one step at one moment; equal to a former one as long as nothing that people watch has changed."""

    key: str
    status: StepStatus
    outcome: Outcome | None
    run_id: str
    worker_id: str
    attempt: int
    progress: str
    error: StepError | None
    started_us: int | None
    ended_us: int | None
    lost_leases: int
    lost_to: str

    @classmethod
    def of(cls, step: Step) -> "StepSnapshot":
        return cls(**{name: getattr(step, name) for name in cls.__struct_fields__})


class FinishedTask(Value):
    """A task that a look has ended.

    ``is_closed``: its session was closed with it. ``is_recorded``: its runs have no folders to be written.
    """

    task_id: str
    status: TaskStatus
    is_closed: bool = False
    is_recorded: bool = False


SessionLook: TypeAlias = tuple[SessionWork, Sequence[FinishedTask]]
"""The work in a session, and the tasks that the read of it has ended."""


class TaskStore(Protocol):
    # -- making and reading
    async def create_task(self, task: NewTask) -> None:
        """Insert a task with its steps, edges and runs; steps without open dependencies become ready or expanding.

        The root run is running from the start (fence 0, its owner appends to it); the steps' runs are queued. Nothing
        happens when the session has a task of that id already: a caller that missed the answer repeats it. A closed
        session is open again, for whichever owner adopts it.
        Raises: NotFoundError, there is no such session; ConflictError, another session has a task of that id, or the
        agent that plans this one was stopped; UnavailableError, a former task of that id is being removed.
        """

    async def submit(self, session: Session, task: NewTask) -> None:
        """Insert a session and its first task in one transaction; each as if alone (``open_session``, ``create_task``).
        Raises: ConflictError, another session has a task of that id; UnavailableError, a former task of that id is
        being removed.
        """

    async def task(self, task_id: str) -> Task:
        """Raises: NotFoundError."""

    async def list_tasks(
        self,
        *,
        session_id: str = "",
        kind: TaskKind | None = None,
        only: ListFilter = EVERYTHING,
        before: str = "",
        limit: int = 100,
    ) -> Sequence[Task]:
        """Return tasks, newest first; ``before`` is the id of the last one of the page before this one."""

    async def steps(self, task_id: str) -> Sequence[Step]:
        """Return the steps in the order they were inserted."""

    async def step_page(
        self, task_id: str, *, after: str = "", statuses: Collection[StepStatus] = (), limit: int = 100
    ) -> Sequence[Step]:
        """Return the next steps in the order of ``steps``, from behind the one with the key ``after``.

        With ``statuses`` only those in one of them.
        """

    async def step(self, step_key: str) -> Step:
        """Raises: NotFoundError."""

    async def step_states(self, task_id: str) -> Sequence[StepSnapshot]:
        """Return the state of each step, in the order of ``steps``, without reading specs and outputs."""

    async def result(self, step_key: str) -> StepResult: ...

    async def counts(self, task_id: str) -> Mapping[StepStatus, int]: ...

    async def task_with_steps(self, task_id: str) -> tuple[Task, Sequence[Step]]:
        """Return a task and its steps, in the order in which they were inserted. Raises: NotFoundError."""

    async def status(self, task_id: str) -> tuple[TaskStatus, str]:
        """Return the status and the session of a task without reading its plan. Raises: NotFoundError."""

    # -- the owner's side; a ``command_id`` is that of a client's command, which has ended with the transaction
    async def steps_in(self, ownership: Ownership, status: StepStatus) -> Sequence[Step]:
        """Return the owned session's steps in a status, oldest first (expanding: the work of the expander)."""

    async def begin_expansion(self, ownership: Ownership, step_key: str, *, is_taken_back: bool = False) -> int:
        """Count that an expanding map step is about to be expanded; return how often that was since it opened.

        Written before the work, so that the successor of an owner that the work has killed can read it.
        ``is_taken_back``: it was begun once less, for it was not the work that ended it. 0 when it is not expanding.
        """

    async def write_verdict(self, ownership: Ownership, step_key: str, verdict: StepVerdict, *, now_us: int) -> bool:
        """Write what the owner decided of an expanding step. A map step without children completes at once.

        A failure is settled like any other. A step that is skipped has the reason as its error, and an outcome: the
        plan decided so, and its task can complete.
        Guarded by owner epoch and status: False when it was not expanding, so repeating changes nothing.
        """

    async def failures(self, ownership: Ownership) -> Sequence[Step]:
        """Return the failed steps not settled yet, oldest first."""

    async def overdue(self, ownership: Ownership, task_id: str) -> Sequence[Step]:
        """Return the steps of a task that have an error and are leased still: their functions have not ended."""

    async def retry_step(
        self, ownership: Ownership, step_key: str, run: NewRun, *, not_before_us: int, now_us: int
    ) -> None:
        """Insert the next attempt's run and put the step back to pending until ``not_before_us``.

        The step has no error any more and its number of lost leases stays. Only ``promote_due`` makes it ready.
        Raises: InvalidTransitionError when the step is not failed, or its failure is settled.
        """

    async def promote_due(self, ownership: Ownership, *, now_us: int) -> int | None:
        """Make retries whose time has come ready; return when the next is due (µs), or None."""

    async def settle_failure(self, ownership: Ownership, step_key: str, policy: FailurePolicy, *, now_us: int) -> None:
        """Finish a failure by its policy: skip dependents (all below), fail the task, or let them continue.

        A map step whose child failed with SKIP_DEPENDENTS fails itself, to be settled in turn; its other children
        continue. FAIL_TASK cancels steps without a lease and asks the others to stop; ``finish_task`` then fails the
        task. Nothing happens when the failure is settled already.
        Raises: InvalidTransitionError when the step is not failed.
        """

    async def finish_task(self, ownership: Ownership, task_id: str, *, now_us: int) -> FinishedTask | None:
        """End the task and its root run if every step has ended and every failure is settled; None when it continues.

        Completed when all steps completed; otherwise failed, with the failed step ids in ``reason``. A task that had
        ended before is left as it is. One that completes closes its session, if that is to end with it and has no task
        that did not complete; one with few runs, none of which has a folder, is recorded with its end.
        """

    async def open_tasks(self, ownership: Ownership) -> Sequence[OpenTask]:
        """Return the session's tasks that have not ended, oldest first."""

    async def session_work(self, ownership: Ownership) -> SessionWork:
        """Return what there is to do in the session: its open tasks, those of them that are due, and what else.

        A task with a planner is never due here.
        """

    async def look_and_finish(self, ownership: Ownership, *, now_us: int) -> SessionLook:
        """Return the work as :meth:`session_work` does, after ending the tasks whose end is all of it.

        They end as by :meth:`finish_task`. If the session has other work (a command, a map, a failure, a retry, an
        ask), nothing is written.
        """

    async def unrecorded(self, owner_id: str, *, set_aside: Collection[str] = ()) -> Sequence[str]:
        """Return up to 100 tasks that are over and whose run folders are not written, oldest first.

        Their sessions have this owner or none; no step of them is still held, and none is set aside.
        """

    async def mark_recorded(self, task_id: str, ended_us: int) -> bool:
        """Say that the run folders of a task are written as of that end; say whether it is still its last one."""

    async def pause_task(self, ownership: Ownership, task_id: str, *, reason: str, now_us: int) -> frozenset[str]:
        """Stop new claims of the task; return the ids of workers that hold steps of it.
        Raises: InvalidTransitionError when the task has ended.
        """

    async def resume_task(self, ownership: Ownership, task_id: str, *, now_us: int) -> None:
        """Continue a paused task; a running one is unchanged. Raises: InvalidTransitionError when it has ended."""

    async def abort_call(self, ownership: Ownership, abort: CallAbort, *, now_us: int) -> None:
        """Ask the process that holds a running run of the session to end one call of it.

        Asked twice, the first words stay.

        Its holder finds it by ``interrupts``, or by ``open_asks`` when it is the owner. Nothing for a run that does not
        run: no call of it is under way.
        """

    async def stop_task(self, ownership: Ownership, task_id: str, *, reason: str, now_us: int) -> None:
        """Stop a task that has reached a limit: no step of it starts any more, and it fails for this ``reason``.

        Steps without a lease are cancelled, their questions withdrawn; leased steps end by themselves, and
        ``finish_task`` then fails the task. Failures need no settling. Stopped twice, the first reason stays; nothing
        happens to a task that has ended.
        """

    async def cancel_task(
        self, ownership: Ownership, task_id: str, *, reason: str, now_us: int, command_id: str = ""
    ) -> frozenset[str]:
        """End the task and its root run as cancelled; return the ids of workers that hold steps of it.

        Steps without a lease are cancelled at once, their questions withdrawn; leased steps are asked to stop
        (``interrupts``) and end as their worker reports, or as cancelled when they are handed back or their lease
        expires. Failures need no settling.
        Raises: InvalidTransitionError when the task has ended.
        """

    async def update_task(
        self, ownership: Ownership, task_id: str, change: TaskChange, *, now_us: int, command_id: str = ""
    ) -> frozenset[str]:
        """Change a running task, all or nothing; return the workers that hold a step which is to be cancelled.

        A new step waits for those of its dependencies that have not completed (or failed and are kept). A skipped or
        cancelled step takes all steps below with it, a map step its children too; a skipped failed step is settled. A
        cancelled leased step is asked to stop, and ends as its worker reports.

        Raises:
            InvalidTransitionError: the task has ended; a step is not in a status that allows the change.
            ConflictError: a step of that id exists already; a dependency can no longer complete, is the child of a map
                or closes a circle; a step that gets one has left ``pending``.
            NotFoundError: a named step is none of this task.
        """

    async def recount(self, ownership: Ownership, task_id: str, *, now_us: int) -> int:
        """Count again what the task's pending steps wait for; return how many open by that.

        A step that grows onto one which ends at that very moment may miss its end: this makes it good. Idempotent.
        """

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
        """End a task as its planner decides; return the workers that hold steps of it.

        COMPLETE needs every step to have ended, whatever as; its failures are final. FAIL cancels what has not ended,
        as ``cancel_task`` does.
        Raises: InvalidTransitionError when it has ended; ConflictError: steps that have not ended keep it open.
        """

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

        ``again`` are keys of completed steps that run again with them. ``regrown`` are map steps whose items may be
        others now: their children's rows go (their runs and logs stay) and they are expanded again.

        ``runs`` are matched by their step key; a map step needs none: with children it waits for them again, without it
        is expanded again. A run without a step becomes the task's new root run; without one the old root run continues.
        Lost leases are forgotten, and a closed session is open again. ``model`` becomes the model of the agent steps
        that are put back, and of the items that their maps expand to; empty: each keeps its own. ``origin`` becomes
        that of a root run that continues, and so of what its maps expand to.
        Raises: InvalidTransitionError when the task has not ended, or completed with nothing to run again (or
            ConflictError: a step of it is still leased, or a map step that waits again for its dependencies has
            children and is not among the ``regrown``: they would run, and count for it, before it is unlocked).
        """
