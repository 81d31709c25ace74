"""The tables of the in-memory store, what makes a method a transaction, the logs of runs, and the making of rows."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import structs
from msgspec.structs import replace

from soong.shared.core.errors import ConflictError, InvalidTransitionError, LeaseLostError, NotFoundError, NotOwnerError
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.budgets import NO_BUDGET, Budget, Charge, task_scope
from soong.shared.engine.runs.events import Event, EventType, NewEvent, NewNode, Node
from soong.shared.engine.runs.lines import LineRow
from soong.shared.engine.runs.record import (
    RUN_TRANSITIONS,
    EndReason,
    ListFilter,
    NewRun,
    Run,
    RunEvent,
    RunStatus,
    Usage,
)
from soong.shared.engine.runs.store import CallAbort, CallRow
from soong.shared.engine.sessions.session import Command, Owner, Ownership, ProcessState, Responder, Session, Worker
from soong.shared.engine.tasks.event_feed import FeedCursor, Notice
from soong.shared.engine.tasks.spec import StepEvent, StepGate, StepStatus, TaskStatus, advance_step
from soong.shared.engine.tasks.step import NewStep, NewTask, Step, Task
from soong.shared.engine.tasks.store import NO_PLANNER
from soong.shared.permissions.access.token import ApiToken
from soong.shared.permissions.audit_log import REPORTED, AuditEntry, AuditNote, Head, Use, linked, of_report, of_session
from soong.shared.permissions.request import Answer, Decision, PermissionRequest, RequestState
from soong.shared.permissions.signing import SigningKey
from soong.shared.sandbox.redact import Redactor

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class ChargeRow:
    """A request that counts against budgets."""

    session_id: str
    day: str
    charge: Charge
    is_open: bool


@dataclass(slots=True)
class Rows:
    """All rows of one deployment. Steps stand in the order in which they were inserted: that is their age."""

    owners: dict[str, Owner] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    responders: dict[str, Responder] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)
    ended_commands: set[str] = field(default_factory=set)
    workers: dict[str, Worker] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    dependents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    """Steps whose failure is final and has had its effect."""
    stopping: dict[str, str] = field(default_factory=dict)
    """Leased steps that were asked to cancel, with the reason."""
    recorded: set[str] = field(default_factory=set)
    """Tasks that are over and whose run folders are written."""
    untold: dict[str, int] = field(default_factory=dict)
    """Steps that the end of another opened (or maps that it completed), and when; no log says so yet."""
    expansions: Counter[str] = field(default_factory=Counter)
    """How often each map step was begun to be expanded since it opened."""
    unparked: set[str] = field(default_factory=set)
    """Steps that were parked and may go on: claimed before what has not begun."""
    concurrency_limits: dict[str, int] = field(default_factory=dict)
    paused_scopes: set[str] = field(default_factory=set)
    last_claimed: dict[str, int] = field(default_factory=dict)
    """By session: the number of its last claim, counted over all sessions."""
    runs: dict[str, Run] = field(default_factory=dict)
    events: dict[str, tuple[Event, ...]] = field(default_factory=dict)
    nodes: dict[str, tuple[Node, ...]] = field(default_factory=dict)
    calls: dict[tuple[str, str], CallRow] = field(default_factory=dict)
    lines: dict[tuple[str, int], LineRow] = field(default_factory=dict)
    """By run and place."""
    aborts: dict[tuple[str, str], CallAbort] = field(default_factory=dict)
    """By run and tool call."""
    budgets: dict[str, Budget] = field(default_factory=dict)
    tried_again: dict[str, int] = field(default_factory=dict)
    """Tasks with limits that were tried again, and when."""
    stopped: dict[str, str] = field(default_factory=dict)
    """Tasks that have reached a limit, and why."""
    charges: dict[tuple[str, int, int], "ChargeRow"] = field(default_factory=dict)
    """By run, fence and number of the request."""
    consumed: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """By decision: (run id, tool call id, when)."""
    requests: dict[str, PermissionRequest] = field(default_factory=dict)
    request_states: dict[str, RequestState] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    keys: dict[str, SigningKey] = field(default_factory=dict)
    tokens: dict[str, ApiToken] = field(default_factory=dict)
    audit: dict[int, AuditEntry] = field(default_factory=dict)
    consumers: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Of the event feed: (owner id, since when)."""
    cursors: dict[tuple[str, str], FeedCursor] = field(default_factory=dict)
    """By consumer and run."""
    totals: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    notices: dict[str, Notice] = field(default_factory=dict)
    reports: dict[int, tuple[str, NewEvent]] = field(default_factory=dict)
    """What workers left for the audit log, by number: (run id, event)."""

    def session(self, session_id: str) -> Session:
        return _found(self.sessions, "session", session_id)

    def task(self, task_id: str) -> Task:
        return _found(self.tasks, "task", task_id)

    def step(self, step_key: str) -> Step:
        return _found(self.steps, "step", step_key)

    def run(self, run_id: str) -> Run:
        return _found(self.runs, "run", run_id)

    def steps_of(self, task_id: str) -> list[Step]:
        return [step for step in self.steps.values() if step.task_id == task_id]

    def children_of(self, map_key: str) -> list[Step]:
        """Return a map step's children in item order."""
        children = [step for step in self.steps.values() if step.map_key == map_key]
        return sorted(children, key=lambda child: child.item_index or 0)

    def leased_by(self, worker_id: str) -> list[Step]:
        return [step for step in self.steps.values() if step.status.is_leased and step.worker_id == worker_id]

    def aborts_of(self, run_id: str) -> list[CallAbort]:
        return [abort for abort in self.aborts.values() if abort.run_id == run_id]

    def owned(self, ownership: Ownership) -> Session:
        """Return the session if ``ownership`` still holds. Raises: NotOwnerError."""
        session = self.session(ownership.session_id)
        if session.ownership != ownership or not session.owner_id:
            raise NotOwnerError(ownership.session_id, ownership.epoch)
        return session

    def owned_task(self, ownership: Ownership, task_id: str) -> Task:
        """Raises: NotOwnerError; NotFoundError also for a task of another session."""
        self.owned(ownership)
        task = self.task(task_id)
        if task.session_id != ownership.session_id:
            raise NotFoundError("task", task_id)
        return task

    def owned_step(self, ownership: Ownership, step_key: str) -> Step:
        """Raises: NotOwnerError; NotFoundError also for a step of another session."""
        self.owned(ownership)
        step = self.step(step_key)
        if step.session_id != ownership.session_id:
            raise NotFoundError("step", step_key)
        return step

    def command_done(self, command_id: str) -> None:
        """End the command that this transaction carries out, if it does one."""
        if command_id:
            self.ended_commands.add(command_id)

    def saved(self) -> dict[str, Any]:
        """Return the state as it is now, to go back to."""
        return {name: getattr(self, name).copy() for name in _TABLES}

    def restore(self, saved: dict[str, Any]) -> None:
        for name, table in saved.items():
            setattr(self, name, table)


_TABLES = tuple(table.name for table in fields(Rows))


def meets(listed: Task | Run, task: Task, only: ListFilter) -> bool:
    """Say whether a task, or a run of it, meets a filter."""
    is_named = only.title.lower() in task.title.lower() and only.tag in {"", *task.tags}
    return is_named and listed.created_us >= only.since_us and (not only.statuses or listed.status in only.statuses)


def page_before(table: dict[str, V], before: str) -> list[V]:
    """Return the rows of a table from the newest on, or from the one before that of the id ``before`` on."""
    keys = list(table)
    if before:
        keys = keys[: keys.index(before)] if before in table else []
    return [table[key] for key in reversed(keys)]


class Part:
    """A part of the in-memory store: methods over one set of rows, and the lock around it."""

    def __init__(self, rows: Rows, lock: threading.RLock) -> None:
        self.rows = rows
        self.lock = lock


S = TypeVar("S", bound=Part)
P = ParamSpec("P")
T = TypeVar("T")


def transaction(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make a plain method one transaction: alone while it runs, and without effect when it raises."""

    @wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        await asyncio.sleep(0)
        with self.lock:
            saved = self.rows.saved()
            try:
                return method(self, *args, **kwargs)
            except BaseException:
                self.rows.restore(saved)
                raise

    return call


def _found(table: dict[str, V], kind: str, key: str) -> V:
    try:
        return table[key]
    except KeyError:
        raise NotFoundError(kind, key) from None


_CHAIN = "aud_memory"


def held_run(rows: Rows, run_id: str, fence: int) -> Run:
    """Return the run if it is running under that fence. Raises: LeaseLostError."""
    run = rows.runs.get(run_id)
    if run is None or run.status is not RunStatus.RUNNING or run.fence != fence:
        raise LeaseLostError(run_id, fence)
    return run


def write_events(rows: Rows, run_id: str, events: Sequence[NewEvent], now_us: int) -> None:
    run = rows.run(run_id)
    numbered = tuple(
        Event(run_id, run.last_seq + place, event.type, event.time_us or now_us, event.data)
        for place, event in enumerate(events, start=1)
    )
    rows.events[run_id] = rows.events.get(run_id, ()) + numbered
    rows.runs[run_id] = replace(run, last_seq=run.last_seq + len(numbered))


def write_nodes(rows: Rows, run_id: str, nodes: Sequence[NewNode], now_us: int) -> None:
    for new in nodes:
        run = rows.run(run_id)
        number = run.last_node + 1
        parent = run.last_node if new.parent is None else new.parent
        node = Node(run_id, number, parent, new.kind, new.payload, now_us)
        rows.nodes[run_id] = (*rows.nodes.get(run_id, ()), node)
        rows.runs[run_id] = replace(run, last_node=number)


def note_run(rows: Rows, run_id: str, type_: EventType, now_us: int, /, **data: Json) -> None:
    """Write one event of the store's own into a run's log."""
    write_events(rows, run_id, [NewEvent(type_, data)], now_us)


def note_step(rows: Rows, step: Step, type_: EventType, now_us: int, /, **data: Json) -> None:
    """Write one event of a step into the log of its run, of a map step into that of its task's root run."""
    run_id = step.run_id or rows.task(step.task_id).root_run_id
    note_run(rows, run_id, type_, now_us, step=step.key, **data)


def tell_step(rows: Rows, step_key: str, now_us: int) -> None:
    """Write that a step was opened or a map completed by the end of another step, if no log says so yet."""
    since_us = rows.untold.pop(step_key, None)
    if since_us is None:
        return
    step = rows.step(step_key)
    opened = EventType.STEP_READY if step.gate is StepGate.WORKERS else EventType.STEP_EXPANDING
    type_ = EventType.STEP_COMPLETED if step.status is StepStatus.COMPLETED else opened
    run_id = step.run_id or rows.task(step.task_id).root_run_id
    write_events(rows, run_id, [NewEvent(type_, {"step": step.key}, since_us)], now_us)


def advance_run(status: RunStatus, event: RunEvent) -> RunStatus:
    """Return the status after ``event``. Raises: InvalidTransitionError naming both."""
    try:
        return RUN_TRANSITIONS[status, event]
    except KeyError:
        raise InvalidTransitionError("run", status, event) from None


def move_run(rows: Rows, run_id: str, event: RunEvent) -> Run:
    """Move a run by the table."""
    run = rows.run(run_id)
    rows.runs[run_id] = replace(run, status=advance_run(run.status, event))
    return rows.runs[run_id]


_END_EVENTS = {
    RunEvent.COMPLETE: EventType.RUN_COMPLETED,
    RunEvent.FAIL: EventType.RUN_FAILED,
    RunEvent.CANCEL: EventType.RUN_CANCELLED,
}


def end_run(rows: Rows, run_id: str, event: RunEvent, reason: EndReason, now_us: int) -> None:
    """End a run with its event; one that has ended already stays as it is."""
    if rows.run(run_id).status.is_terminal:
        return
    run = move_run(rows, run_id, event)
    rows.runs[run_id] = replace(run, end_reason=reason, ended_us=now_us)
    note_run(rows, run_id, _END_EVENTS[event], now_us, end_reason=reason.value)


class MemoryAudit(Part):
    """The audit part of the store."""

    @transaction
    def note(self, notes: Sequence[AuditNote], *, now_us: int) -> None:
        add_notes(self.rows, notes, now_us)

    @transaction
    def audit_entries(
        self, *, after: int = 0, session_id: str = "", kinds: Collection[str] = (), since_us: int = 0, limit: int = 1000
    ) -> Sequence[AuditEntry]:
        found = [
            entry
            for entry in self.rows.audit.values()
            if entry.ordinal > after
            and session_id in {"", entry.session_id}
            and (not kinds or entry.kind in {str(kind) for kind in kinds})
            and entry.time_us >= since_us
        ]
        return found[:limit]

    @transaction
    def uses(self, *, after: str = "", limit: int = 1000) -> Sequence[Use]:
        given = {decision.id: decision for decision in self.rows.decisions.values()}
        found = []
        for decision_id, (run_id, call_id, used_us) in sorted(self.rows.consumed.items()):
            call = self.rows.calls.get((run_id, call_id))
            used = None if call is None else call.input_digest
            found.append(Use(decision_id, run_id, call_id, used_us, given.get(decision_id), used))
        return [use for use in found if use.decision_id > after][:limit]

    @transaction
    def take_reports(self, owner_id: str, *, now_us: int, limit: int = 200) -> int:
        taken = [
            number
            for number, (run_id, _) in self.rows.reports.items()
            if self.rows.session(self.rows.run(run_id).identity.session_id).owner_id in ("", owner_id)
        ][:limit]
        for number in taken:
            run_id, event = self.rows.reports.pop(number)
            identity = self.rows.run(run_id).identity
            add_notes(self.rows, [of_report(identity, event.type, event.data)], now_us)
        return len(taken)


def add_notes(rows: Rows, notes: Sequence[AuditNote], now_us: int) -> None:
    """Link notes to the end of the chain."""
    for note in notes:
        last = rows.audit.get(len(rows.audit))
        head = Head() if last is None else Head(last.number, last.digest)
        entry = linked(replace(note, data=Redactor().mapping(note.data)), _CHAIN, head, now_us)
        rows.audit[entry.number] = replace(entry, ordinal=entry.number)


def add_reports(rows: Rows, run_id: str, events: Sequence[NewEvent]) -> None:
    """Leave the events that belong into the audit log for the run's owner."""
    for event in events:
        if event.type in REPORTED:
            rows.reports[max(rows.reports, default=0) + 1] = (run_id, event)


def adopt(rows: Rows, owner_id: str) -> Sequence[Session]:
    """Give every open session without an owner to one that lives."""
    owner = rows.owners.get(owner_id)
    if owner is None or owner.state is ProcessState.GONE:
        return []
    free = [session for session in rows.sessions.values() if not session.owner_id and not session.is_closed]
    adopted = [replace(session, owner_id=owner_id, owner_epoch=session.owner_epoch + 1) for session in free]
    rows.sessions.update({session.id: session for session in adopted})
    return adopted


def add_session(rows: Rows, session: Session) -> None:
    """Insert a session, unless there is one of its id."""
    if session.id not in rows.sessions:
        rows.sessions[session.id] = session
        add_notes(rows, [of_session(session)], session.created_us)


def create_task(rows: Rows, task: NewTask) -> None:
    """See :meth:`soong.shared.engine.tasks.store.TaskStore.create_task`."""
    session = rows.session(task.session_id)
    now_us = task.created_us
    stands = rows.tasks.get(task.id)
    if stands is not None and stands.session_id != task.session_id:
        raise ConflictError(f"there is a task {task.id} in another session already")
    if stands is not None:
        return
    planner = task.root_run.identity.parent_run_id
    if planner and rows.task(rows.run(planner).identity.task_id).status is not TaskStatus.RUNNING:
        raise ConflictError(NO_PLANNER)
    if session.is_closed:
        rows.sessions[session.id] = replace(session, is_closed=False, owner_id="")
    insert_run(rows, task.root_run, RunStatus.RUNNING, now_us)
    rows.tasks[task.id] = Task(
        id=task.id,
        session_id=task.session_id,
        title=task.title,
        status=TaskStatus.RUNNING,
        plan=task.plan,
        inputs=task.inputs,
        root_run_id=task.root_run.identity.run_id,
        created_us=now_us,
        kind=task.kind,
        trace_parent=task.trace_parent,
        tags=task.tags,
    )
    if task.limits != NO_BUDGET:
        rows.budgets[task_scope(task.id)] = task.limits
    note_run(rows, task.root_run.identity.run_id, EventType.TASK_CREATED, now_us, task=task.id)
    insert_steps(rows, task.steps, now_us)


def insert_run(rows: Rows, new: NewRun, status: RunStatus, now_us: int) -> None:
    rows.runs[new.identity.run_id] = Run(
        identity=new.identity,
        status=status,
        surface=new.surface,
        attempt=new.attempt,
        retry_of=new.retry_of,
        fence=0,
        worker_id="",
        last_seq=0,
        last_node=0,
        usage=Usage(),
        end_reason=None,
        created_us=now_us,
        started_us=now_us if status is RunStatus.RUNNING else None,
        ended_us=None,
        token=new.token,
    )
    note_run(rows, new.identity.run_id, EventType.RUN_CREATED, now_us, attempt=new.attempt)
    write_nodes(rows, new.identity.run_id, new.nodes, now_us)


def insert_steps(rows: Rows, news: Sequence[NewStep], now_us: int, *, done: frozenset[str] = frozenset()) -> None:
    """Insert steps with their runs and open those that wait for nothing; what is ``done`` is not waited for."""
    for new in news:
        _insert_step(rows, new, done, now_us)
    for new in news:
        if done.issuperset(new.depends_on):
            open_step(rows, new.key, now_us)


def _insert_step(rows: Rows, new: NewStep, done: frozenset[str], now_us: int) -> None:
    if new.run is not None:
        insert_run(rows, new.run, RunStatus.QUEUED, now_us)
    row = structs.asdict(new)
    del row["run"]
    run_id, attempt = (new.run.identity.run_id, new.run.attempt) if new.run else ("", 1)
    open_deps = len(set(new.depends_on) - done)
    step = Step(**(row | {"open_deps": open_deps, "run_id": run_id, "attempt": attempt}))
    rows.steps[step.key] = step
    for needed in dict.fromkeys(new.depends_on):
        rows.dependents[needed] = (*rows.dependents.get(needed, ()), step.key)
    note_step(rows, step, EventType.STEP_CREATED, now_us)


def open_step(rows: Rows, step_key: str, now_us: int) -> None:
    """Make a pending step that waits for nothing more claimable, or leave it to its owner if that decides it."""
    unlock_step(rows, step_key, now_us)
    tell_step(rows, step_key, now_us)


def ready_again(rows: Rows, step_key: str, now_us: int) -> None:
    """Make a step claimable whose next attempt is due: it was decided before the first."""
    step = rows.step(step_key)
    moved = replace(step, status=advance_step(step.status, StepEvent.UNLOCK), not_before_us=None)
    rows.steps[step_key] = moved
    note_step(rows, moved, EventType.STEP_READY, now_us)


def unlock_step(rows: Rows, step_key: str, now_us: int) -> None:
    """Do the same as the end of another step does: its claim, or its owner, writes since when it is open."""
    step = rows.step(step_key)
    status = advance_step(step.status, StepEvent.UNLOCK if step.gate is StepGate.WORKERS else StepEvent.EXPAND)
    rows.steps[step_key] = replace(step, status=status, not_before_us=None)
    rows.untold[step_key] = now_us
