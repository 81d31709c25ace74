"""An ended task that is tried again, in memory."""

import threading
from collections.abc import Sequence

from msgspec.structs import replace

from soong.shared.core.errors import ConflictError, InvalidTransitionError, NotFoundError
from soong.shared.core.identity import OWN, Origin
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import NewRun
from soong.shared.engine.runs.status import RunEvent, RunStatus
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.spec import StepKind
from soong.shared.engine.tasks.status import (
    STEP_ENDS,
    StepEvent,
    StepStatus,
    TaskEvent,
    TaskStatus,
    advance_step,
    advance_task,
)
from soong.shared.engine.tasks.step import Step, Task
from tests.model.memory.ending import complete_map
from tests.model.memory.logs import move_run, note_run, note_step, tell_step
from tests.model.memory.making import insert_run, open_step
from tests.model.memory.rows import Rows, transaction

_RETRIED = (StepStatus.FAILED, StepStatus.CANCELLED, StepStatus.SKIPPED)


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


class MemoryRetrying:
    """The part of the task store in which the owner tries ended tasks again."""

    rows: Rows
    lock: threading.RLock

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
