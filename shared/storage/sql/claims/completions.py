"""Ends as a worker reports them: which still count, what they write, what they leave to do."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final, NamedTuple

from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.engine.runs.events import EventType, NodeKind
from soong.shared.engine.runs.status import RunStatus
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import StepEnd
from soong.shared.storage.sql.engine.rows import pack
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Reply, Transaction

# By key: "worker_id || ''" keeps SQLite from walking all leases of the worker once for every end.
END_STEP: Final = Statement(
    "end step: what its holder says of it, while it holds it; one that was asked to stop needs no settling",
    """
    UPDATE steps SET
        status = :status, outcome = :outcome, output = :output, error = :error, ended_us = :now_us,
        is_settled = CASE WHEN :status = 'failed' AND cancel_reason IS NOT NULL THEN 1 ELSE 0 END,
        cancel_reason = NULL
    WHERE key = :key AND run_id = :run_id AND fence = :fence
      AND worker_id || '' = :worker_id AND status = 'running'
    RETURNING key, task_id, session_id,
              CASE WHEN map_key = '' AND json_array_length(dependents /*pg ::json */) = 1
                   THEN task_id || '/' || (dependents /*pg ::json */ ->> 0) END,
              pool, needs
    """,
)
_END_FIELDS: Final = ("key", "run_id", "fence", "status", "outcome", "output", "error")

OWNER_WORK: Final = Statement(
    "owner work: whether a task has a map to expand, a failure to settle, or steps that neither ended nor are leased",
    """
    SELECT EXISTS (SELECT 1 FROM steps WHERE task_id = :task_id AND status = 'expanding'),
           EXISTS (SELECT 1 FROM steps
                   WHERE session_id = :session_id AND status = 'failed' AND is_settled = 0 AND task_id = :task_id),
           EXISTS (SELECT 1 FROM steps WHERE task_id = :task_id
                   AND status IN ('pending', 'ready', 'blocked', 'expanding', 'waiting'))
    """,
)
OPEN_WORK: Final = Statement(
    "open work: whether a task has steps that have not ended",
    """
    SELECT 1 FROM steps WHERE task_id = :task_id
      AND status IN ('pending', 'ready', 'running', 'blocked', 'expanding', 'waiting') LIMIT 1
    """,
)
TRY_LOCK_TAIL: Final = Statement(
    "try lock tail: the same without waiting for another who ends steps of the task; nothing then",
    """
    SELECT 1 /*pg * has_table_privilege('tasks', 'UPDATE')::int
    FROM (SELECT pg_try_advisory_xact_lock(hashtextextended(:task_id, 7)) AS is_had) AS locked WHERE is_had */
    """,
)
LOCK_TAIL: Final = Statement(
    "lock tail: the last steps of a task end one after another, so that one of them sees that all have ended; and "
    "whether this database role may end tasks",
    """
    SELECT 1 /*pg * has_table_privilege('tasks', 'UPDATE')::int
    FROM (SELECT pg_advisory_xact_lock(hashtextextended(:task_id, 7))) AS locked */
    """,
)

_STEP_EVENT: Final[Mapping[StepStatus, EventType]] = {
    StepStatus.COMPLETED: EventType.STEP_COMPLETED,
    StepStatus.FAILED: EventType.STEP_FAILED,
    StepStatus.CANCELLED: EventType.STEP_CANCELLED,
}
RUN_STATUS: Final[Mapping[StepStatus, RunStatus]] = {
    StepStatus.COMPLETED: RunStatus.COMPLETED,
    StepStatus.FAILED: RunStatus.FAILED,
    StepStatus.CANCELLED: RunStatus.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a worker wants besides the ends it reports."""

    worker_id: str
    claim: int
    pools: Sequence[str]
    capabilities: Sequence[str]
    live_workers: int
    now_us: int


class Successor(NamedTuple):
    """The one step that waited for a step, None where there were none or several, and what that one was claimed by."""

    key: str | None
    pool: str
    needs: str


@dataclass(slots=True)
class CompletionResult:
    """What the ends did. ``ready`` are the keys of steps that became claimable, ``sessions`` by id of task."""

    written: set[str] = field(default_factory=set)
    sessions: dict[str, str] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    completed: list[str] = field(default_factory=list)
    """The keys of steps that others waited for."""
    successor: Successor | None = None
    """Of the one step that has completed, if it alone has ended: what others leave is looked at before a claim."""


def write_ends(
    tx: Transaction, run_log: RunLogBuffer, ends: Mapping[str, StepEnd], request: ClaimRequest
) -> CompletionResult:
    """Write the ends that still count, by step key in order. What waited for them is still to be opened."""
    ended = CompletionResult()
    for end in ends.values():
        told = dict(zip(_END_FIELDS, end_row(end), strict=True))
        for key, task_id, session_id, *successor in tx.rows(
            END_STEP, worker_id=request.worker_id, now_us=request.now_us, **told
        ):
            ended.written.add(key)
            ended.sessions[task_id] = session_id
            note_end(run_log, end)
            if end.status is StepStatus.COMPLETED:
                ended.completed.append(key)
                ended.successor = Successor._make(successor)
    if len(ended.written) > 1:
        ended.successor = None
    return ended


def end_row(end: StepEnd) -> tuple[object, ...]:
    """Return an end as the statements take it (``_END_FIELDS``)."""
    return (
        end.step_key,
        end.run_id,
        end.fence,
        end.status.value,
        end.outcome.value if end.status is StepStatus.COMPLETED else None,
        None if end.output is None else pack(end.output),
        None if end.error is None else pack(end.error.as_json()),
    )


def note_end(run_log: RunLogBuffer, end: StepEnd) -> None:
    """Gather what an end writes to its run. Every completed run has a result node: its step's output is that of one
    whose maker gave none.
    """
    run_log.add(end.run_id, nodes=end.nodes, events=end.events)
    if end.status is StepStatus.COMPLETED and not any(node.kind is NodeKind.RESULT for node in end.nodes):
        run_log.add_result_of_step(end.run_id)
    why = {} if end.error is None else end.error.as_json()
    run_log.note(end.run_id, _STEP_EVENT[end.status], fence=end.fence, **why)  # its step is its run's
    run_log.end(end.run_id, RUN_STATUS[end.status], end.end_reason, end.usage)


class Tail(NamedTuple):
    """What was asked about the task of the one step that ends, with that end."""

    may_end: Reply
    open_work: Reply
    last_step: Reply


@dataclass(slots=True)
class EndedTasks:
    """What the ends leave to do in the tasks that they touched."""

    owner_sessions: set[str] = field(default_factory=set)
    """The sessions whose owner has something to do."""
    over: dict[str, str] = field(default_factory=dict)
    """Of these the sessions whose task has no step left that has not ended, by id of the task, where this worker's
    database role may end it."""
    tails: dict[str, Tail] = field(default_factory=dict)
    """By id of the task, what was asked already."""
    passed_over: dict[str, str] = field(default_factory=dict)
    """By id, with their sessions, the tasks in which steps wait that this end opens nothing for: others may end these,
    without seeing this end, before it is committed. Only to be looked at again afterwards."""

    def look(
        self,
        tx: Transaction,
        task_id: str,
        session_id: str,
        is_expanding: bool,
        is_unsettled: bool,
        is_waiting: bool,
        *,
        lock: Statement = LOCK_TAIL,
    ) -> bool:
        """Judge one task by the flags of ``OWNER_WORK``, also when others end its last steps at this moment.

        Return False if that is not known yet: another has what ``lock`` did not wait for.
        """
        if is_expanding or is_unsettled:
            self.owner_sessions.add(session_id)
        elif is_waiting:
            self.passed_over[task_id] = session_id
        else:
            if task_id in self.tails:
                may_end, open_work, _ = self.tails[task_id]
            else:
                with tx.pipeline():
                    may_end, open_work = send_tail(tx, task_id, lock)
            if not (held := may_end.rows()):
                return False
            if not open_work.rows():
                self.owner_sessions.add(session_id)
                if held[0][0]:
                    self.over[task_id] = session_id
        return True


def send_tail(tx: Transaction, task_id: str, lock: Statement = LOCK_TAIL) -> tuple[Reply, Reply]:
    """Ask whether a task has steps that have not ended, and whether it may be ended here; nobody else ends steps of it
    that are its last until this is committed.
    """
    return tx.send(lock, task_id=task_id), tx.send(OPEN_WORK, task_id=task_id)


def ended_tasks(tx: Transaction, ended: CompletionResult) -> EndedTasks:
    """Look at the tasks that the ends touched."""
    found = EndedTasks()
    for task_id, session_id in sorted(ended.sessions.items()):
        look_at_task(tx, found, task_id, session_id)
    return found


def look_at_task(
    tx: Transaction, found: EndedTasks, task_id: str, session_id: str, *, lock: Statement = LOCK_TAIL
) -> bool:
    """Look at one task; see :meth:`EndedTasks.look`."""
    flags = tx.rows(OWNER_WORK, task_id=task_id, session_id=session_id)[0]
    return found.look(tx, task_id, session_id, *flags, lock=lock)
