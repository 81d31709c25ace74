"""The end of a task in memory, as its owner writes it."""

from msgspec.structs import replace

from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import Usage
from soong.shared.engine.runs.status import EndReason, RunEvent, RunStatus
from soong.shared.engine.tasks.spec import StepKind
from soong.shared.engine.tasks.status import STEP_ENDS, StepStatus, TaskEvent, TaskStatus, advance_task
from soong.shared.engine.tasks.step import Task
from soong.shared.engine.tasks.store import FinishedTask
from tests.model.memory.logs import end_run, note_run, tell_step
from tests.model.memory.rows import Rows

FEW_RUNS = 32
"""Of a task with more, the folders are looked for after its end."""

_TASK_ENDS = {
    TaskEvent.COMPLETE: (EventType.TASK_COMPLETED, RunEvent.COMPLETE, EndReason.COMPLETED),
    TaskEvent.FAIL: (EventType.TASK_FAILED, RunEvent.FAIL, EndReason.FAILED),
    TaskEvent.CANCEL: (EventType.TASK_CANCELLED, RunEvent.CANCEL, EndReason.CANCELLED),
}


def close_with_task(rows: Rows, session_id: str) -> None:
    session = rows.session(session_id)
    mine = [task.status for task in rows.tasks.values() if task.session_id == session_id]
    if session.closes_with_task and all(status is TaskStatus.COMPLETED for status in mine):
        rows.sessions[session_id] = replace(session, is_closed=True)


def tell_maps(rows: Rows, task: Task, now_us: int) -> None:
    for step in rows.steps_of(task.id):
        if step.kind is StepKind.MAP and step.status is StepStatus.COMPLETED:
            tell_step(rows, step.key, now_us)


def end_task(rows: Rows, task: Task, event: TaskEvent, reason: str, now_us: int) -> Task:
    ended = replace(task, status=advance_task(task.status, event), reason=reason, ended_us=now_us)
    rows.tasks[task.id] = ended
    tell_maps(rows, task, now_us)
    note, run_event, end_reason = _TASK_ENDS[event]
    note_run(rows, task.root_run_id, note, now_us, task=task.id, reason=reason)
    end_run(rows, task.root_run_id, run_event, end_reason, now_us)
    return ended


def finish_alone(rows: Rows, task_id: str, now_us: int) -> FinishedTask | None:
    task, steps = rows.task(task_id), rows.steps_of(task_id)
    own = [step for step in steps if not step.is_pull_worker]
    if any(step.status not in STEP_ENDS for step in steps) or any(
        step.status is not StepStatus.COMPLETED for step in own
    ):
        return None
    tell_maps(rows, task, now_us)
    is_recorded = has_no_folders(rows, task)
    status = end_task(rows, task, TaskEvent.COMPLETE, "", now_us).status
    close_with_task(rows, task.session_id)
    if is_recorded:
        rows.recorded.add(task_id)
    return FinishedTask(task_id, status, rows.session(task.session_id).is_closed, is_recorded)


def has_no_folders(rows: Rows, task: Task) -> bool:
    """Say whether a task that completes has only few runs, and none of them a folder."""
    runs = [run for run in rows.runs.values() if run.identity.task_id == task.id]
    folders = [
        run
        for run in runs
        if run.usage != Usage()
        or (run.id != task.root_run_id and run.started_us is not None and run.status is not RunStatus.COMPLETED)
    ]
    return len(runs) <= FEW_RUNS and not folders
