"""The owner's side of tasks in memory: expanding, settling, pausing, cancelling, growth, more attempts, finishing."""

from collections.abc import Collection, Sequence
from typing import Literal, assert_never

from msgspec.structs import replace

from soong.shared.core.errors import ConflictError, InvalidTransitionError, NotFoundError
from soong.shared.core.identity import OWN, Origin
from soong.shared.engine.runs.budgets import task_scope
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import EndReason, NewRun, RunEvent, RunStatus
from soong.shared.engine.runs.store import CallAbort
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.change import TaskChange, check_no_circle, check_over, check_still_pending, must_wait
from soong.shared.engine.tasks.rerun import is_loss
from soong.shared.engine.tasks.spec import (
    STEP_ENDS,
    FailurePolicy,
    StepEvent,
    StepGate,
    StepKind,
    StepStatus,
    TaskEvent,
    TaskKind,
    TaskStatus,
    advance_step,
    advance_task,
)
from soong.shared.engine.tasks.step import NewStep, OpenTask, Outcome, SessionWork, Step, StepError, Task
from soong.shared.engine.tasks.store import FinishedTask, SessionLook
from soong.shared.engine.tasks.verdict import FailStep, GrowMap, OpenStep, SkipStep, StepVerdict
from soong.shared.permissions.request import RequestState
from tests.model.memory.ending import (
    cancel_all,
    cancel_unheld,
    complete_map,
    end_task,
    fail_map,
    finish,
    recount,
    skip_below,
    unlock_after,
    withdraw_of,
)
from tests.model.memory.rows import (
    Part,
    Rows,
    end_run,
    insert_run,
    insert_steps,
    move_run,
    note_run,
    note_step,
    open_step,
    ready_again,
    tell_step,
    transaction,
)


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
        done = frozenset(
            key for key in standing if not self._must_wait(self.rows.step(key), is_joined=key in change.joined)
        )
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

    def _must_wait(self, step: Step, *, is_joined: bool) -> bool:
        is_settled = step.key in self.rows.settled
        place = {"is_settled": is_settled, "is_map_child": bool(step.map_key), "is_joined": is_joined}
        return must_wait(step.step_id, step.status, step.on_failure, **place)

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
        ready_again(self.rows, new.key, now_us)

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
        return recount(self.rows, [step.key for step in self.rows.steps_of(task_id)], now_us)


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
        if any(step.status not in STEP_ENDS for step in self.rows.steps_of(task_id)):
            raise ConflictError(f"task {task_id} has steps that still run; wait for them or cancel them")
        by_step = {run.identity.step_key: run for run in runs}
        root = by_step.pop("", None)
        for child in [child for key in regrown for child in self.rows.children_of(key)]:
            del self.rows.steps[child.key]
            self.rows.settled.discard(child.key)
            self.rows.unparked.discard(child.key)
        steps = self._put_back(task_id, again, by_step)
        if task.status is TaskStatus.COMPLETED and not steps:
            raise InvalidTransitionError("task", task.status, TaskEvent.RETRY)
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
        steps = [step for step in self.rows.steps_of(task_id) if is_loss(step) or step.key in again]
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
        done = {StepStatus.COMPLETED, *({StepStatus.SKIPPED} if step.gate is StepGate.ENDED else ())}
        unfinished = {key for key in step.depends_on if self.rows.step(key).status not in done}
        self.rows.steps[step_key] = replace(step, open_deps=len(unfinished), not_before_us=None)
        return len(unfinished)

    def _reopen(self, step_key: str, now_us: int) -> None:
        """OpenStep a retried step that waits for nothing; a map step that has its children waits for them again."""
        open_step(self.rows, step_key, now_us)
        children = self.rows.children_of(step_key)
        if children:
            open_children = sum(child.status is not StepStatus.COMPLETED for child in children)
            status = advance_step(StepStatus.EXPANDING, StepEvent.EXPANDED)
            self.rows.steps[step_key] = replace(self.rows.step(step_key), status=status, open_deps=open_children)
            if not open_children:
                complete_map(self.rows, step_key, now_us)
                tell_step(self.rows, step_key, now_us)


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
    def write_verdict(self, ownership: Ownership, step_key: str, verdict: StepVerdict, *, now_us: int) -> bool:
        step = self.rows.owned_step(ownership, step_key)
        if step.status is not StepStatus.EXPANDING:
            return False
        tell_step(self.rows, step_key, now_us)
        match verdict:
            case OpenStep():
                moved = replace(step, status=advance_step(step.status, StepEvent.UNLOCK))
                self.rows.steps[step_key] = moved
                note_step(self.rows, moved, EventType.STEP_READY, now_us)
            case SkipStep(reason=reason):
                self._skip(step, reason, now_us)
            case FailStep(error=error):
                fail_map(self.rows, step_key, error, now_us)
                if step.run_id:
                    end_run(self.rows, step.run_id, RunEvent.FAIL, EndReason.FAILED, now_us)
            case GrowMap(children=children):
                self._grow_map(step, children, now_us)
            case _:
                assert_never(verdict)
        self.rows.expansions.pop(step_key, None)
        return True

    def _skip(self, step: Step, reason: str, now_us: int) -> None:
        status, error = advance_step(step.status, StepEvent.SKIP), StepError("condition", reason)
        self.rows.steps[step.key] = replace(step, status=status, error=error, outcome=Outcome.CLEAN, ended_us=now_us)
        note_step(self.rows, step, EventType.STEP_SKIPPED, now_us, reason=reason)
        if step.run_id:
            end_run(self.rows, step.run_id, RunEvent.CANCEL, EndReason.CANCELLED, now_us)
        skip_below(self.rows, step.key, now_us, Outcome.CLEAN)

    def _grow_map(self, step: Step, children: Sequence[NewStep], now_us: int) -> None:
        note_step(self.rows, step, EventType.STEP_EXPANDED, now_us, items=len(children))
        if not children:
            complete_map(self.rows, step.key, now_us)
            tell_step(self.rows, step.key, now_us)
            return
        status = advance_step(step.status, StepEvent.EXPANDED)
        self.rows.steps[step.key] = replace(step, status=status, open_deps=len(children))
        insert_steps(self.rows, children, now_us)

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
                ready_again(self.rows, step.key, now_us)
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
