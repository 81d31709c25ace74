"""Sessions, owners, responders, commands and workers in memory."""

import threading
from collections.abc import Sequence

from msgspec.structs import replace

from soong.shared.core.errors import ConflictError, NotFoundError
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import RunEvent, RunStatus
from soong.shared.engine.sessions.session import (
    Command,
    CommandKind,
    Owner,
    Ownership,
    ProcessState,
    RefusalType,
    Responder,
    Session,
    Worker,
)
from soong.shared.engine.tasks.asks import OpenAsk, spec_of_ask
from soong.shared.engine.tasks.change import outcome_in_closed_session
from soong.shared.engine.tasks.spec import StepStatus, TaskEvent, TaskKind, TaskStatus, advance_task
from soong.shared.engine.tasks.step import Claim, StepEnd
from tests.model.memory.ending import cancel_all
from tests.model.memory.rows import (
    Part,
    Rows,
    add_reports,
    add_session,
    adopt,
    end_run,
    held_run,
    note_run,
    page_before,
    transaction,
    write_events,
    write_nodes,
)

_ORDER = (ProcessState.LIVE, ProcessState.DRAINING, ProcessState.GONE)


class MemorySessions(Part):
    """The session half of the store."""

    # -- owners
    @transaction
    def register_owner(self, owner: Owner) -> None:
        self.rows.owners.setdefault(owner.id, owner)

    @transaction
    def beat_owner(self, owner_id: str) -> bool:
        owner = self.rows.owners.get(owner_id)
        if owner is None or owner.state is ProcessState.GONE:
            return False
        self.rows.owners[owner_id] = replace(owner, beat=owner.beat + 1)
        return True

    @transaction
    def owners(self) -> Sequence[Owner]:
        return [owner for owner in self.rows.owners.values() if owner.state is not ProcessState.GONE]

    @transaction
    def expire_owner(self, owner_id: str, beat: int) -> bool:
        owner = self.rows.owners.get(owner_id)
        if owner is None or owner.state is ProcessState.GONE or owner.beat != beat:
            return False
        self._end_owner(owner)
        return True

    @transaction
    def release_owner(self, owner_id: str) -> None:
        owner = self.rows.owners.get(owner_id)
        if owner is not None:
            self._end_owner(owner)

    def _end_owner(self, owner: Owner) -> None:
        self.rows.owners[owner.id] = replace(owner, state=ProcessState.GONE)
        busy = self._busy()
        for session in self.rows.sessions.values():
            if session.owner_id == owner.id:
                is_closed = session.is_closed and session.id not in busy
                self.rows.sessions[session.id] = replace(session, owner_id="", is_closed=is_closed)

    def _busy(self) -> set[str]:
        """Return the ids of the sessions in which a task or a command is open."""
        busy = {task.session_id for task in self.rows.tasks.values() if not task.status.is_terminal}
        return busy | {one.session_id for one in self.rows.commands.values() if one.id not in self.rows.ended_commands}

    # -- sessions
    @transaction
    def open_session(self, session: Session) -> None:
        add_session(self.rows, session)

    @transaction
    def session(self, session_id: str) -> Session:
        return self.rows.session(session_id)

    @transaction
    def session_page(self, *, include_closed: bool = False, before: str = "", limit: int = 100) -> Sequence[Session]:
        found = page_before(self.rows.sessions, before)
        return [session for session in found if include_closed or not session.is_closed][:limit]

    @transaction
    def adopt_sessions(self, owner_id: str) -> Sequence[Session]:
        return adopt(self.rows, owner_id)

    @transaction
    def busy_sessions(self, owner_id: str) -> Sequence[str]:
        busy = self._busy()
        return [key for key, session in self.rows.sessions.items() if key in busy and session.owner_id == owner_id]

    @transaction
    def close_session(self, ownership: Ownership) -> None:
        self.rows.sessions[ownership.session_id] = replace(self.rows.owned(ownership), is_closed=True)

    # -- responders
    @transaction
    def attach_responder(self, responder: Responder) -> None:
        self.rows.session(responder.session_id)
        self.rows.responders[responder.id] = responder

    @transaction
    def beat_responder(self, responder_id: str) -> bool:
        responder = self.rows.responders.get(responder_id)
        if responder is None:
            return False
        self.rows.responders[responder_id] = replace(responder, beat=responder.beat + 1)
        return True

    @transaction
    def detach_responder(self, responder_id: str) -> None:
        self.rows.responders.pop(responder_id, None)

    @transaction
    def responders(self, session_id: str) -> Sequence[Responder]:
        return [responder for responder in self.rows.responders.values() if responder.session_id == session_id]

    # -- commands
    @transaction
    def send_command(self, command: Command) -> None:
        session = self.rows.session(command.session_id)
        outcome = self._outcome_in_closed(command) if session.is_closed else None
        if outcome is not None and command.id not in self.rows.commands:
            self.rows.ended_commands.add(command.id)
            command = replace(command, refusal=outcome)
        self.rows.commands.setdefault(command.id, command)
        if session.is_closed and outcome is None and (command.kind is CommandKind.RETRY or not session.owner_id):
            self.rows.sessions[session.id] = replace(session, is_closed=False, owner_id="")

    def _outcome_in_closed(self, command: Command) -> str | None:
        task = self.rows.tasks.get(command.subject)
        is_ours = task is not None and task.session_id == command.session_id
        return outcome_in_closed_session(command, task.status if task is not None and is_ours else None)

    @transaction
    def take_commands(self, ownership: Ownership) -> Sequence[Command]:
        self.rows.owned(ownership)
        return [
            command
            for command in self.rows.commands.values()
            if command.session_id == ownership.session_id and command.id not in self.rows.ended_commands
        ]

    @transaction
    def end_command(
        self, command_id: str, *, refusal: str = "", refusal_type: RefusalType = RefusalType.CONFLICT
    ) -> None:
        command = self.rows.commands.get(command_id)
        if command is None:
            raise NotFoundError("command", command_id)
        if command_id in self.rows.ended_commands:
            return
        self.rows.commands[command_id] = replace(command, refusal=refusal, refusal_type=refusal_type)
        self.rows.ended_commands.add(command_id)

    @transaction
    def command(self, command_id: str) -> tuple[Command, bool]:
        command = self.rows.commands.get(command_id)
        if command is None:
            raise NotFoundError("command", command_id)
        return command, command_id in self.rows.ended_commands

    # -- workers
    @transaction
    def register_worker(self, worker: Worker) -> None:
        self.rows.workers.setdefault(worker.id, worker)

    @transaction
    def set_worker_state(self, worker_id: str, state: ProcessState) -> None:
        worker = self.rows.workers.get(worker_id)
        if worker is None:
            raise NotFoundError("worker", worker_id)
        if _ORDER.index(state) <= _ORDER.index(worker.state):
            return
        held = self.rows.leased_by(worker_id)
        if state is ProcessState.GONE and held:
            raise ConflictError(f"worker {worker_id} still holds {len(held)} steps; it hands them back before it goes")
        self.rows.workers[worker_id] = replace(worker, state=state)

    @transaction
    def workers(self, *, include_gone: bool = False) -> Sequence[Worker]:
        return [
            replace(worker, busy=sum(not step.holder_run_id for step in self.rows.leased_by(worker.id)))
            for worker in self.rows.workers.values()
            if include_gone or worker.state is not ProcessState.GONE
        ]


class MemoryHeartbeatWriter:
    """The heartbeat of a worker, from whatever thread."""

    def __init__(self, rows: Rows, lock: threading.RLock) -> None:
        self._rows = rows
        self._lock = lock

    def beat(self, worker_id: str, left_over: str = "") -> bool:
        with self._lock:
            worker = self._rows.workers.get(worker_id)
            if worker is None or worker.state is ProcessState.GONE:
                return False
            self._rows.workers[worker_id] = replace(worker, beat=worker.beat + 1, left_over=left_over)
            return True

    def close(self) -> None:
        """Nothing to close."""


class MemoryAsks(Part):
    """The ask part of the store."""

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
