"""Sessions, owners, responders, commands and workers in memory."""

import threading
from collections.abc import Sequence

from msgspec.structs import replace

from soong.shared.core.errors import ConflictError, NotFoundError
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
from soong.shared.engine.tasks.change import outcome_in_closed_session
from tests.model.memory.making import add_session, adopt
from tests.model.memory.rows import Rows, page_before, transaction

_ORDER = (ProcessState.LIVE, ProcessState.DRAINING, ProcessState.GONE)


class MemorySessions:
    """The session half of the store."""

    rows: Rows
    lock: threading.RLock

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

    def beat(self, worker_id: str) -> bool:
        with self._lock:
            worker = self._rows.workers.get(worker_id)
            if worker is None or worker.state is ProcessState.GONE:
                return False
            self._rows.workers[worker_id] = replace(worker, beat=worker.beat + 1)
            return True

    def close(self) -> None:
        """Nothing to close."""
