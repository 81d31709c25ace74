"""The tables of the in-memory store, and what makes a method a transaction."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from soong.shared.core.errors import NotFoundError, NotOwnerError
from soong.shared.engine.runs.budgets import Budget, Charge
from soong.shared.engine.runs.events import Event, NewEvent, Node
from soong.shared.engine.runs.record import ListFilter, Run
from soong.shared.engine.runs.store import CallAbort, CallRow
from soong.shared.engine.sessions.session import Command, Owner, Ownership, Responder, Session, Worker
from soong.shared.engine.tasks.event_feed import FeedCursor, Notice
from soong.shared.engine.tasks.step import Step, Task
from soong.shared.permissions.access.token import ApiToken
from soong.shared.permissions.audit_log import AuditEntry
from soong.shared.permissions.request import Answer, Decision, PermissionRequest, RequestState
from soong.shared.permissions.signing import SigningKey

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
