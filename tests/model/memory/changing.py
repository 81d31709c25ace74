"""Changes of a task that goes on, in memory: growth, further attempts, steps that are not to run."""

import threading

from msgspec.structs import replace

from soong.shared.core.errors import ConflictError, InvalidTransitionError, NotFoundError
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.status import EndReason, RunEvent, RunStatus
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.change import TaskChange, check_no_circle, check_still_pending, must_wait
from soong.shared.engine.tasks.spec import FailurePolicy, StepKind
from soong.shared.engine.tasks.status import STEP_ENDS, StepEvent, StepStatus, advance_step
from soong.shared.engine.tasks.step import NewStep, Step
from tests.model.memory.ending import skip_below
from tests.model.memory.logs import end_run, note_run, note_step, tell_step
from tests.model.memory.making import insert_run, insert_steps, open_step
from tests.model.memory.parking import withdraw_of
from tests.model.memory.retrying import start_again
from tests.model.memory.rows import Rows, transaction


class MemoryChanging:
    """The part of the task store in which the owner changes tasks that go on."""

    rows: Rows
    lock: threading.RLock

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
