"""The owner's side of tasks in memory: expanding, settling, pausing, cancelling, finishing."""

from collections.abc import Collection, Sequence
from typing import Literal, assert_never

from msgspec.structs import replace

from soong.shared.core.errors import InvalidTransitionError
from soong.shared.engine.runs.budgets import task_scope
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import NewRun, RunStatus
from soong.shared.engine.runs.store import CallAbort
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.change import check_over
from soong.shared.engine.tasks.spec import (
    STEP_ENDS,
    FailurePolicy,
    StepEvent,
    StepKind,
    StepStatus,
    TaskEvent,
    TaskKind,
    advance_step,
    advance_task,
)
from soong.shared.engine.tasks.step import NewStep, OpenTask, SessionWork, Step, StepError, Task
from soong.shared.engine.tasks.store import FinishedTask, SessionLook
from soong.shared.permissions.request import RequestState
from tests.model.memory.changing import start_again
from tests.model.memory.ending import (
    cancel_all,
    cancel_unheld,
    complete_map,
    end_task,
    fail_map,
    finish,
    skip_below,
    unlock_after,
)
from tests.model.memory.logs import note_run, note_step, tell_step
from tests.model.memory.making import insert_run, insert_steps, open_step
from tests.model.memory.rows import Part, transaction


class MemoryOwning(Part):
    """The part of the task store that carries an ownership."""

    @transaction
    def steps_in(self, ownership: Ownership, status: StepStatus) -> Sequence[Step]:
        self.rows.owned(ownership)
        return [
            step
            for step in self.rows.steps.values()
            if step.session_id == ownership.session_id and step.status is status
        ]

    # -- maps
    @transaction
    def begin_expansion(self, ownership: Ownership, step_key: str, *, is_taken_back: bool = False) -> int:
        if self.rows.owned_step(ownership, step_key).status is not StepStatus.EXPANDING:
            return 0
        self.rows.expansions[step_key] += -1 if is_taken_back else 1
        return self.rows.expansions[step_key]

    @transaction
    def expand(self, ownership: Ownership, step_key: str, children: Sequence[NewStep], *, now_us: int) -> bool:
        step = self.rows.owned_step(ownership, step_key)
        if step.status is not StepStatus.EXPANDING:
            return False
        tell_step(self.rows, step_key, now_us)
        note_step(self.rows, step, EventType.STEP_EXPANDED, now_us, items=len(children))
        if not children:
            complete_map(self.rows, step_key, now_us)
            tell_step(self.rows, step_key, now_us)
            return True
        status = advance_step(step.status, StepEvent.EXPANDED)
        self.rows.steps[step_key] = replace(step, status=status, open_deps=len(children))
        insert_steps(self.rows, children, now_us)
        return True

    @transaction
    def fail_expansion(self, ownership: Ownership, step_key: str, error: StepError, *, now_us: int) -> None:
        if self.rows.owned_step(ownership, step_key).status is StepStatus.EXPANDING:
            tell_step(self.rows, step_key, now_us)
            fail_map(self.rows, step_key, error, now_us)

    # -- failures
    @transaction
    def failures(self, ownership: Ownership) -> Sequence[Step]:
        self.rows.owned(ownership)
        return [step for step in self._unsettled() if step.session_id == ownership.session_id]

    @transaction
    def overdue(self, ownership: Ownership, task_id: str) -> Sequence[Step]:
        self.rows.owned(ownership)
        return [step for step in self.rows.steps_of(task_id) if step.status is StepStatus.RUNNING and step.error]

    def _unsettled(self) -> list[Step]:
        return [
            step
            for step in self.rows.steps.values()
            if step.status is StepStatus.FAILED and step.key not in self.rows.settled
        ]

    @transaction
    def retry_step(self, ownership: Ownership, step_key: str, run: NewRun, *, not_before_us: int, now_us: int) -> None:
        step = self.rows.owned_step(ownership, step_key)
        if step.key in self.rows.settled:
            raise InvalidTransitionError("step", f"{step.status}, settled", StepEvent.RETRY)
        insert_run(self.rows, run, RunStatus.QUEUED, now_us)
        start_again(self.rows, step, run, now_us)
        self.rows.steps[step_key] = replace(self.rows.step(step_key), not_before_us=not_before_us)

    @transaction
    def promote_due(self, ownership: Ownership, *, now_us: int) -> int | None:
        self.rows.owned(ownership)
        later: list[int] = []
        for step in list(self.rows.steps.values()):
            if step.session_id != ownership.session_id or step.status is not StepStatus.PENDING:
                continue
            if step.not_before_us is None or step.open_deps:
                continue
            if step.not_before_us <= now_us:
                open_step(self.rows, step.key, now_us)
            else:
                later.append(step.not_before_us)
        return min(later, default=None)

    @transaction
    def settle_failure(self, ownership: Ownership, step_key: str, policy: FailurePolicy, *, now_us: int) -> None:
        step = self.rows.owned_step(ownership, step_key)
        if step.status is not StepStatus.FAILED:
            raise InvalidTransitionError("step", step.status, "settle")
        if step_key in self.rows.settled:
            return
        self.rows.settled.add(step_key)
        match policy:
            case FailurePolicy.KEEP:
                unlock_after(self.rows, step_key, now_us)
            case FailurePolicy.SKIP_DEPENDENTS:
                self._give_up_below(step, now_us)
            case FailurePolicy.FAIL_TASK:
                cancel_all(self.rows, step.task_id, f"step {step.step_id} failed", now_us)
            case _:
                assert_never(policy)

    def _give_up_below(self, step: Step, now_us: int) -> None:
        skip_below(self.rows, step.key, now_us)
        if step.map_key and self.rows.step(step.map_key).status is StepStatus.WAITING:
            error = StepError("failed", f"its item {step.step_id} failed")
            fail_map(self.rows, step.map_key, error, now_us)

    # -- tasks
    @transaction
    def finish_task(self, ownership: Ownership, task_id: str, *, now_us: int) -> FinishedTask | None:
        return finish(self.rows, self.rows.owned_task(ownership, task_id), now_us)

    @transaction
    def end_task(
        self,
        ownership: Ownership,
        task_id: str,
        event: Literal[TaskEvent.COMPLETE, TaskEvent.FAIL],
        *,
        reason: str,
        now_us: int,
        command_id: str = "",
    ) -> frozenset[str]:
        task = self.rows.owned_task(ownership, task_id)
        advance_task(task.status, event)
        workers: frozenset[str] = frozenset()
        if event is TaskEvent.COMPLETE:
            steps = self.rows.steps_of(task_id)
            check_over([step.step_id for step in steps if step.status not in STEP_ENDS])
            self.rows.settled |= {step.key for step in steps if step.status is StepStatus.FAILED}
        else:
            workers = cancel_all(self.rows, task_id, reason, now_us)
        end_task(self.rows, task, event, reason, now_us)
        self.rows.command_done(command_id)
        return workers

    @transaction
    def look_and_finish(self, ownership: Ownership, *, now_us: int) -> SessionLook:
        work = self._work(ownership)
        ended = [
            finished
            for task in work.open_tasks
            if work.ends_only and task.is_due
            if (finished := finish(self.rows, self.rows.task(task.id), now_us)) is not None
        ]
        over = {one.task_id for one in ended}
        return replace(work, open_tasks=tuple(task for task in work.open_tasks if task.id not in over)), ended

    @transaction
    def unrecorded(self, owner_id: str, *, set_aside: Collection[str] = ()) -> Sequence[str]:
        found = [
            task.id
            for task in self.rows.tasks.values()
            if task.status.is_terminal
            and task.id not in self.rows.recorded
            and task.id not in set_aside
            and self.rows.session(task.session_id).owner_id in ("", owner_id)
            and not any(step.status.is_leased for step in self.rows.steps_of(task.id))
        ]
        return found[:100]

    @transaction
    def mark_recorded(self, task_id: str, ended_us: int) -> bool:
        task = self.rows.tasks.get(task_id)
        is_last = task is not None and task.status.is_terminal and task.ended_us == ended_us
        if is_last:
            self.rows.recorded.add(task_id)
        return is_last

    @transaction
    def open_tasks(self, ownership: Ownership) -> Sequence[OpenTask]:
        self.rows.owned(ownership)
        return self._open_tasks(ownership.session_id)

    @transaction
    def session_work(self, ownership: Ownership) -> SessionWork:
        return self._work(ownership)

    def _work(self, ownership: Ownership) -> SessionWork:
        self.rows.owned(ownership)
        session_id = ownership.session_id
        steps = [step for step in self.rows.steps.values() if step.session_id == session_id]
        commands = [one for one in self.rows.commands.values() if one.session_id == session_id]
        retries = [step.not_before_us for step in steps if step.status is StepStatus.PENDING and not step.open_deps]
        states, asked = self.rows.request_states, self.rows.requests.values()
        waiting = [one for one in asked if states[one.id] is RequestState.PENDING]
        return SessionWork(
            tuple(replace(task, is_due=self._is_due(task)) for task in self._open_tasks(session_id)),
            has_commands=any(one.id not in self.rows.ended_commands for one in commands),
            is_expanding=any(step.status is StepStatus.EXPANDING for step in steps),
            has_failures=any(step.session_id == session_id for step in self._unsettled()),
            retry_us=min((due_us for due_us in retries if due_us is not None), default=None),
            has_questions=any(one.identity.session_id == session_id for one in waiting),
            has_overdue=any(
                step.status is StepStatus.RUNNING and step.error is not None
                for task in self._open_tasks(session_id)
                for step in self.rows.steps_of(task.id)
            ),
        )

    def _is_due(self, task: OpenTask) -> bool:
        steps = self.rows.steps_of(task.id)
        is_told = not any(step.kind is StepKind.MAP and step.status is StepStatus.COMPLETED for step in steps)
        is_open = any(step.task_id == task.id for step in self._unsettled())
        is_open = is_open or any(step.status not in STEP_ENDS for step in steps)
        return not task.has_planner and not (is_open and is_told)

    def _open_tasks(self, session_id: str) -> list[OpenTask]:
        mine = [task for task in self.rows.tasks.values() if task.session_id == session_id]
        return [
            OpenTask(task.id, task.status, task.kind, self._has_planner(task))
            for task in mine
            if not task.status.is_terminal
        ]

    def _has_planner(self, task: Task) -> bool:
        root = self.rows.run(task.root_run_id)
        planner = root.id if task.kind is TaskKind.ASK else root.identity.parent_run_id
        return planner in self.rows.runs and not self.rows.run(planner).status.is_terminal

    @transaction
    def pause_task(self, ownership: Ownership, task_id: str, *, reason: str, now_us: int) -> frozenset[str]:
        task = self.rows.owned_task(ownership, task_id)
        status = advance_task(task.status, TaskEvent.PAUSE)
        self.rows.tasks[task_id] = replace(task, status=status, reason=reason)
        if task.status is not status:
            note_run(self.rows, task.root_run_id, EventType.TASK_PAUSED, now_us, task=task_id, reason=reason)
        return frozenset(step.worker_id for step in self.rows.steps_of(task_id) if step.status.is_leased)

    @transaction
    def resume_task(self, ownership: Ownership, task_id: str, *, now_us: int) -> None:
        task = self.rows.owned_task(ownership, task_id)
        status = advance_task(task.status, TaskEvent.RESUME)
        if task.status is not status:
            self.rows.tasks[task_id] = replace(task, status=status, reason="")
            note_run(self.rows, task.root_run_id, EventType.TASK_RESUMED, now_us, task=task_id)

    @transaction
    def abort_call(self, ownership: Ownership, abort: CallAbort, *, now_us: int) -> None:
        del now_us
        self.rows.owned(ownership)
        run = self.rows.runs.get(abort.run_id)
        if run is not None and run.identity.session_id == ownership.session_id and run.status is RunStatus.RUNNING:
            self.rows.aborts.setdefault((abort.run_id, abort.tool_call_id), abort)

    @transaction
    def stop_task(self, ownership: Ownership, task_id: str, *, reason: str, now_us: int) -> None:
        task = self.rows.owned_task(ownership, task_id)
        if not task.status.is_terminal:
            if task_scope(task_id) in self.rows.budgets:
                self.rows.stopped.setdefault(task_id, reason)
            cancel_unheld(self.rows, task_id, reason, now_us)

    @transaction
    def cancel_task(
        self, ownership: Ownership, task_id: str, *, reason: str, now_us: int, command_id: str = ""
    ) -> frozenset[str]:
        task = self.rows.owned_task(ownership, task_id)
        workers = cancel_all(self.rows, task_id, reason, now_us)
        end_task(self.rows, task, TaskEvent.CANCEL, reason, now_us)
        self.rows.command_done(command_id)
        return workers
