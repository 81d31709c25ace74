"""Asks in memory."""

import threading
from collections.abc import Sequence

from msgspec.structs import replace

from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.status import RunEvent, RunStatus
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.asks import OpenAsk, spec_of_ask
from soong.shared.engine.tasks.spec import TaskKind
from soong.shared.engine.tasks.status import StepStatus, TaskEvent, TaskStatus, advance_task
from soong.shared.engine.tasks.step import Claim, StepEnd
from tests.model.memory.auditing import add_reports
from tests.model.memory.ending import cancel_all
from tests.model.memory.logs import end_run, held_run, note_run, write_events, write_nodes
from tests.model.memory.rows import Rows, transaction


class MemoryAsks:
    """The ask part of the store."""

    rows: Rows
    lock: threading.RLock

    @transaction
    def open_asks(self, ownership: Ownership) -> Sequence[OpenAsk]:
        self.rows.owned(ownership)
        return [
            OpenAsk(task.id, task.root_run_id, task.status, tuple(self.rows.aborts_of(task.root_run_id)))
            for task in self.rows.tasks.values()
            if task.session_id == ownership.session_id and task.kind is TaskKind.ASK and not task.status.is_terminal
        ]

    @transaction
    def take_up(self, ownership: Ownership, task_id: str, *, now_us: int) -> Claim | None:
        task = self.rows.owned_task(ownership, task_id)
        run = self.rows.run(task.root_run_id)
        if task.status is not TaskStatus.RUNNING or run.end_reason is not None:
            return None
        fence = run.fence + 1
        session = self.rows.session(task.session_id)
        is_first = run.fence == 0
        self.rows.runs[run.id] = replace(
            run,
            fence=fence,
            worker_id=ownership.owner_id,
            status=RunStatus.RUNNING,
            started_us=now_us if is_first else run.started_us,
        )
        begun = EventType.RUN_STARTED if is_first else EventType.RUN_RESUMED
        note_run(self.rows, run.id, begun, now_us, fence=fence)
        return Claim(
            step_key="",
            fence=fence,
            identity=run.identity,
            spec=spec_of_ask(task.plan),
            task_inputs=task.inputs,
            task_title=task.title,
            dependencies={},
            surface=run.surface,
            token=run.token,
            attempt=1,
            project=session.project,
            cwd=session.cwd,
            policy=session.policy,
            is_resumed=run.last_node > 0,
        )

    @transaction
    def put_down(self, ownership: Ownership, run_id: str, fence: int) -> None:
        self.rows.owned(ownership)
        run = self.rows.run(run_id)
        if (run.fence, run.status, run.worker_id) == (fence, RunStatus.RUNNING, ownership.owner_id):
            self.rows.runs[run_id] = replace(run, status=RunStatus.QUEUED, worker_id="")

    @transaction
    def end_ask(self, ownership: Ownership, task_id: str, end: StepEnd, *, now_us: int) -> frozenset[str]:
        task = self.rows.owned_task(ownership, task_id)
        if task.status.is_terminal:
            return frozenset()
        held_run(self.rows, end.run_id, end.fence)
        write_nodes(self.rows, end.run_id, end.nodes, now_us)
        write_events(self.rows, end.run_id, end.events, now_us)
        add_reports(self.rows, end.run_id, end.events)
        event, note, run_event = _ENDS[end.status]
        status = advance_task(task.status, event)
        reason = end.error.message if end.error else ""
        workers = cancel_all(self.rows, task_id, "the run that started it has ended", now_us)
        self.rows.settled.update(step.key for step in self.rows.steps_of(task_id))
        self.rows.tasks[task_id] = replace(self.rows.task(task_id), status=status, reason=reason, ended_us=now_us)
        self.rows.recorded.discard(task_id)
        note_run(self.rows, task.root_run_id, note, now_us, task=task_id, reason=reason)
        end_run(self.rows, task.root_run_id, run_event, end.end_reason, now_us)
        run = self.rows.run(task.root_run_id)
        self.rows.runs[run.id] = replace(run, usage=end.usage)
        return workers


_ENDS = {
    StepStatus.COMPLETED: (TaskEvent.COMPLETE, EventType.TASK_COMPLETED, RunEvent.COMPLETE),
    StepStatus.FAILED: (TaskEvent.FAIL, EventType.TASK_FAILED, RunEvent.FAIL),
    StepStatus.CANCELLED: (TaskEvent.CANCEL, EventType.TASK_CANCELLED, RunEvent.CANCEL),
}
