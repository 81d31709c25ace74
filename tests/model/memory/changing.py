"""Changes of a task that goes on, in memory: growth, further attempts, steps that are not to run."""

from collections.abc import Sequence

from msgspec.structs import replace

from soong.shared.core.errors import ConflictError, InvalidTransitionError, NotFoundError
from soong.shared.core.identity import OWN, Origin
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import EndReason, NewRun, RunEvent, RunStatus
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.change import TaskChange, check_no_circle, check_still_pending, must_wait
from soong.shared.engine.tasks.spec import (
    STEP_ENDS,
    FailurePolicy,
    StepEvent,
    StepKind,
    StepStatus,
    TaskEvent,
    TaskStatus,
    advance_step,
    advance_task,
)
from soong.shared.engine.tasks.step import NewStep, Step, Task
from tests.model.memory.ending import complete_map, skip_below, withdraw_of
from tests.model.memory.logs import end_run, move_run, note_run, note_step, tell_step
from tests.model.memory.making import insert_run, insert_steps, open_step
from tests.model.memory.rows import Part, Rows, transaction

_RETRIED = (StepStatus.FAILED, StepStatus.CANCELLED, StepStatus.SKIPPED)


class MemoryChanging(Part):
    """The part of the task store in which the owner changes tasks that go on."""

    @transaction
    def update_task(
        self, ownership: Ownership, task_id: str, change: TaskChange, *, now_us: int, command_id: str = ""
    ) -> frozenset[str]:
        task = self.rows.owned_task(ownership, task_id)
        if task.status.is_terminal:
            raise InvalidTransitionError("task", task.status, "update")
        for key in sorted(change.named):
            if key not in self.rows.steps or self.rows.step(key).task_id != task_id:
                raise NotFoundError("step", key)
        for step in change.steps:
            if step.key in self.rows.steps:
                raise ConflictError(f"there is a step {step.step_id!r} already")
        self._grow(change, now_us)
        for step in change.attempts:
            self._try_again(step, now_us)
        for key, priority in change.priorities.items():
            self.rows.steps[key] = replace(self.rows.step(key), priority=priority)
        workers: set[str] = set()
        for key in sorted(change.skipped):
            self._take_out(key, StepEvent.SKIP, change.reason, workers, now_us)
        for key in sorted(change.cancelled):
            self._take_out(key, StepEvent.CANCEL, change.reason, workers, now_us)
        note_run(self.rows, task.root_run_id, EventType.TASK_UPDATED, now_us, task=task_id, reason=change.reason)
        self.rows.command_done(command_id)
        return frozenset(workers)

    def _grow(self, change: TaskChange, now_us: int) -> None:
        needed = {parent for step in change.steps for parent in step.depends_on}
        needed |= {parent for _, parent in change.edges}
        standing = needed - {step.key for step in change.steps}
        done = frozenset(key for key in standing if not self._must_wait(self.rows.step(key)))
        insert_steps(self.rows, change.steps, now_us, done=done)
        for child in sorted({child for child, _ in change.edges}):
            check_still_pending(self.rows.step(child).step_id, self.rows.step(child).status)
        for child, parent in change.edges:
            step = self.rows.step(child)
            if parent in step.depends_on:
                continue
            self.rows.steps[child] = replace(
                step, depends_on=(*step.depends_on, parent), open_deps=step.open_deps + (parent not in done)
            )
            self.rows.dependents[parent] = (*self.rows.dependents.get(parent, ()), child)
        if change.edges:
            task_id = self.rows.step(change.edges[0][0]).task_id
            check_no_circle({step.key: step.depends_on for step in self.rows.steps_of(task_id)})

    def _must_wait(self, step: Step) -> bool:
        is_settled = step.key in self.rows.settled
        return must_wait(
            step.step_id, step.status, step.on_failure, is_settled=is_settled, is_map_child=bool(step.map_key)
        )

    def _try_again(self, new: NewStep, now_us: int) -> None:
        step = self.rows.step(new.key)
        if step.status is not StepStatus.FAILED or step.key in self.rows.settled or new.run is None:
            status = f"{step.status}, settled" if step.key in self.rows.settled else step.status
            raise InvalidTransitionError("step", status, StepEvent.RETRY)
        insert_run(self.rows, new.run, RunStatus.QUEUED, now_us)
        planned = replace(
            step,
            title=new.title,
            spec=new.spec,
            definition=new.definition,
            model=new.model,
            pool=new.pool,
            needs=new.needs,
            priority=new.priority,
        )
        start_again(self.rows, planned, new.run, now_us)
        open_step(self.rows, new.key, now_us)

    def _take_out(self, key: str, event: StepEvent, reason: str, workers: set[str], now_us: int) -> None:
        step = self.rows.step(key)
        if step.map_key:
            raise ConflictError(f"step {step.step_id!r} is an item of a map step; skip or cancel the map step")
        if step.status is StepStatus.FAILED and key not in self.rows.settled:
            self.rows.settled.add(key)
        else:
            self._stop(step, event, reason, workers, now_us)
        skip_below(self.rows, key, now_us)

    def _stop(self, step: Step, event: StepEvent, reason: str, workers: set[str], now_us: int) -> None:
        status = advance_step(step.status, event)
        if step.status.is_leased:
            self.rows.stopping[step.key] = reason
            workers.add(step.worker_id)
            return
        for child in self.rows.children_of(step.key) if step.kind is StepKind.MAP else ():
            if child.status not in STEP_ENDS:
                self._stop(child, StepEvent.CANCEL, reason, workers, now_us)
        withdraw_of(self.rows, step.run_id, f"its step was {status}", now_us)
        self.rows.steps[step.key] = replace(step, status=status, ended_us=now_us)
        tell_step(self.rows, step.key, now_us)
        type_ = EventType.STEP_SKIPPED if event is StepEvent.SKIP else EventType.STEP_CANCELLED
        note_step(self.rows, step, type_, now_us, reason=reason)
        if step.run_id:
            end_run(self.rows, step.run_id, RunEvent.CANCEL, EndReason.CANCELLED, now_us)

    @transaction
    def recount(self, ownership: Ownership, task_id: str, *, now_us: int) -> int:
        self.rows.owned_task(ownership, task_id)
        opened = 0
        for step in self.rows.steps_of(task_id):
            if step.status is not StepStatus.PENDING or not step.open_deps:
                continue
            left = sum(not self._is_done(self.rows.step(key)) for key in set(step.depends_on))
            self.rows.steps[step.key] = replace(step, open_deps=min(left, step.open_deps))
            if not left:
                opened += 1
                open_step(self.rows, step.key, now_us)
        return opened

    def _is_done(self, step: Step) -> bool:
        is_kept = step.on_failure is FailurePolicy.KEEP and step.key in self.rows.settled
        return step.status is StepStatus.COMPLETED or (step.status is StepStatus.FAILED and is_kept)


def start_again(rows: Rows, step: Step, run: NewRun | None, now_us: int) -> None:
    """Put an ended step back to pending, with the run of its next attempt if it has one."""
    again = replace(
        step,
        status=advance_step(step.status, StepEvent.RETRY),
        run_id=run.identity.run_id if run else step.run_id,
        attempt=run.attempt if run else step.attempt,
        max_attempts=run.max_attempts if run and run.max_attempts is not None else step.max_attempts,
        worker_id="",
        holder_run_id="",
        outcome=None,
        output=None,
        error=None,
        progress="",
        started_us=None,
        ended_us=None,
    )
    rows.steps[step.key] = again
    rows.settled.discard(step.key)
    rows.unparked.discard(step.key)
    rows.expansions.pop(step.key, None)
    rows.untold.pop(step.key, None)
    note_step(rows, again, EventType.STEP_RETRIED, now_us, attempt=again.attempt)


class MemoryRetrying(Part):
    """The part of the task store in which the owner tries ended tasks again."""

    @transaction
    def retry_task(
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
        task = self.rows.owned_task(ownership, task_id)
        status = advance_task(task.status, TaskEvent.RETRY)
        if task.status is TaskStatus.COMPLETED and not again:
            raise InvalidTransitionError("task", task.status, TaskEvent.RETRY)
        if any(step.status not in STEP_ENDS for step in self.rows.steps_of(task_id)):
            raise ConflictError(f"task {task_id} has steps that still run; wait for them or cancel them")
        by_step = {run.identity.step_key: run for run in runs}
        root = by_step.pop("", None)
        for child in [child for key in regrown for child in self.rows.children_of(key)]:
            del self.rows.steps[child.key]
            self.rows.settled.discard(child.key)
            self.rows.unparked.discard(child.key)
        steps = self._put_back(task_id, again, by_step)
        self.rows.recorded.discard(task_id)
        self.rows.stopped.pop(task_id, None)
        self.rows.tried_again[task_id] = now_us
        session = self.rows.session(ownership.session_id)
        self.rows.sessions[session.id] = replace(session, is_closed=False)
        self._begin_again(task, status, root, origin, now_us)
        for run in by_step.values():
            insert_run(self.rows, run, RunStatus.QUEUED, now_us)
        for step in steps:
            start_again(self.rows, replace(step, lost_leases=0, lost_to=""), by_step.get(step.key), now_us)
        # All are counted before the first is opened: opening a map may complete it, which counts down again.
        waiting = [step.key for step in steps if self._count_again(step.key)]
        for key in waiting:
            if self.rows.children_of(key):
                raise ConflictError(f"{key} waits again for its dependencies: it has to be expanded again")
        for step in steps:
            if step.key not in waiting:
                self._reopen(step.key, now_us)
        self._set_model(steps, model)
        self.rows.command_done(command_id)

    def _set_model(self, steps: Sequence[Step], model: str) -> None:
        for step in steps:
            if model and step.model:
                self.rows.steps[step.key] = replace(self.rows.step(step.key), model=model)

    def _put_back(self, task_id: str, again: Sequence[str], runs: dict[str, NewRun]) -> list[Step]:
        steps = [s for s in self.rows.steps_of(task_id) if s.status in _RETRIED or s.key in again]
        missing = sorted(set(again) - {step.key for step in steps})
        if missing:
            raise NotFoundError("step", missing[0])
        for step in steps:
            if step.kind is not StepKind.MAP and step.key not in runs:
                raise NotFoundError("new run for step", step.key)
        return steps

    def _begin_again(self, task: Task, status: TaskStatus, root: NewRun | None, origin: Origin, now_us: int) -> None:
        root_run_id = root.identity.run_id if root else task.root_run_id
        if root is None:
            again_root = move_run(self.rows, root_run_id, RunEvent.RETRY)
            identity = replace(again_root.identity, origin=origin)
            self.rows.runs[root_run_id] = replace(again_root, identity=identity, end_reason=None, ended_us=None)
        else:
            insert_run(self.rows, root, RunStatus.RUNNING, now_us)
        self.rows.tasks[task.id] = replace(task, status=status, reason="", ended_us=None, root_run_id=root_run_id)
        note_run(self.rows, root_run_id, EventType.TASK_RESUMED, now_us, task=task.id)

    def _count_again(self, step_key: str) -> int:
        """Count what a retried step waits for."""
        step = self.rows.step(step_key)
        unfinished = {key for key in step.depends_on if self.rows.step(key).status is not StepStatus.COMPLETED}
        self.rows.steps[step_key] = replace(step, open_deps=len(unfinished), not_before_us=None)
        return len(unfinished)

    def _reopen(self, step_key: str, now_us: int) -> None:
        """Open a retried step that waits for nothing; a map step that has its children waits for them again."""
        open_step(self.rows, step_key, now_us)
        children = self.rows.children_of(step_key)
        if children:
            open_children = sum(child.status is not StepStatus.COMPLETED for child in children)
            status = advance_step(StepStatus.EXPANDING, StepEvent.EXPANDED)
            self.rows.steps[step_key] = replace(self.rows.step(step_key), status=status, open_deps=open_children)
            if not open_children:
                complete_map(self.rows, step_key, now_us)
                tell_step(self.rows, step_key, now_us)
