"""The owner's side of tasks: pausing, cancelling, retrying, finishing."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import literal_column, select

from shared.adapters.sql.database import Database
from shared.adapters.sql.journal import Journal
from shared.adapters.sql.making import opened, opening
from shared.adapters.sql.owned import check_owned, owned_task
from shared.adapters.sql.rows import plain, task_of
from shared.adapters.sql.settling import complete_map, start_again
from shared.adapters.sql.statements import Statement
from shared.adapters.sql.stopping import cancel_all
from shared.adapters.sql.tables import tasks
from shared.adapters.sql.transaction import Transaction
from shared.errors import ConflictError, NotFoundError
from shared.runs.events import EventType
from shared.runs.record import NewRun
from shared.runs.status import EndReason, RunStatus
from shared.sessions.session import Ownership
from shared.tasks.status import STEP_ENDS, StepStatus, TaskEvent, TaskStatus, advance_task
from shared.tasks.step import StepKind, Task

MOVE_TASK: Final = Statement(
    "move task: to its next status",
    "UPDATE tasks SET status = :status, reason = :reason, ended_us = :ended_us WHERE id = :task_id",
)
SET_ROOT_RUN: Final = Statement(
    "set root run: of a task that is tried again",
    "UPDATE tasks SET root_run_id = :run_id WHERE id = :task_id",
)
PAUSE_LEASED: Final = Statement(
    "pause leased: copy a task's pause to its leased steps; their workers learn of it as an interrupt",
    """
    UPDATE steps SET is_paused = :is_paused WHERE task_id = :task_id AND status IN ('claimed', 'running')
    /*pg AND ordinal IN (SELECT ordinal FROM steps WHERE task_id = :task_id AND status IN ('claimed', 'running')
                         ORDER BY key FOR UPDATE) */
    """,
)
PAUSE_WAITING: Final = Statement(
    "pause waiting: copy a task's pause to the steps that are to come, so that no claim looks at them",
    """
    UPDATE steps SET is_paused = :is_paused
    WHERE task_id = :task_id AND status IN ('pending', 'ready', 'blocked', 'expanding', 'waiting')
    /*pg AND ordinal IN (SELECT ordinal FROM steps WHERE task_id = :task_id
                         AND status IN ('pending', 'ready', 'blocked', 'expanding', 'waiting')
                         ORDER BY key FOR UPDATE) */
    """,
)
HOLDERS: Final = Statement(
    "holders: the workers that hold steps of a task",
    "SELECT DISTINCT worker_id FROM steps WHERE task_id = :task_id AND status IN ('claimed', 'running')",
)
STATUSES: Final = Statement(
    "statuses: how often each stands in a task that has not ended, and failures that are not settled",
    """
    SELECT status, sum(CASE WHEN status = 'failed' AND is_settled = 0 THEN 1 ELSE 0 END) FROM steps
    WHERE task_id = :task_id AND (SELECT status FROM tasks WHERE id = :task_id) IN ('running', 'paused')
    GROUP BY status
    """,
)
FAILED_IDS: Final = Statement(
    "failed ids: in the order of insertion",
    "SELECT step_id FROM steps WHERE task_id = :task_id AND status = 'failed' ORDER BY ordinal",
)
ENDED_BADLY: Final = Statement(
    "ended badly: the steps of a task that a retry puts back",
    """
    SELECT key, kind FROM steps WHERE task_id = :task_id AND status IN ('failed', 'cancelled', 'skipped')
    ORDER BY ordinal
    """,
)
COUNT_AGAIN: Final = Statement(
    "count again: what each retried step waits for; its lost leases are forgotten",
    """
    UPDATE steps SET lost_leases = 0, open_deps = (
        SELECT count(*) FROM edges AS e JOIN steps AS p ON p.key = e.parent_key
        WHERE e.child_key = steps.key AND p.status <> 'completed'
    ) WHERE key IN @keys RETURNING key, kind, run_id, open_deps
    """,
)
REOPEN: Final = Statement(
    "reopen: a retried step that waits for nothing",
    "UPDATE steps SET status = :status WHERE key = :key AND status = 'pending'",
)
CHILDREN: Final = Statement(
    "children: of a map step, and how many have not completed",
    """
    SELECT count(*), coalesce(sum(CASE WHEN status = 'completed' THEN 0 ELSE 1 END), 0) FROM steps
    WHERE map_key = :key AND map_key <> ''
    """,
)
WAIT_AGAIN: Final = Statement(
    "wait again: a map step that has its children waits for those that have not completed",
    "UPDATE steps SET status = 'waiting', open_deps = :open_deps WHERE key = :key",
)
REOPEN_RUN: Final = Statement(
    "reopen run: the root run of a task that is tried again goes on",
    "UPDATE runs SET status = 'running', end_reason = NULL, ended_us = NULL WHERE id = :run_id",
)

_ENDS: Final[Mapping[TaskEvent, tuple[EventType, RunStatus, EndReason]]] = {
    TaskEvent.COMPLETE: (EventType.TASK_COMPLETED, RunStatus.COMPLETED, EndReason.COMPLETED),
    TaskEvent.FAIL: (EventType.TASK_FAILED, RunStatus.FAILED, EndReason.FAILED),
    TaskEvent.CANCEL: (EventType.TASK_CANCELLED, RunStatus.CANCELLED, EndReason.CANCELLED),
}


class SqlSteering:
    """The part of the task store in which the owner steers whole tasks."""

    _database: Database

    async def open_tasks(self, ownership: Ownership) -> Sequence[Task]:
        is_open = tasks.c.status.in_([literal_column("'running'"), literal_column("'paused'")])
        mine = select(tasks).where(tasks.c.session_id == ownership.session_id, is_open).order_by(tasks.c.ordinal)

        def read(tx: Transaction) -> list[Task]:
            check_owned(tx, ownership, is_read=True)
            return [task_of(row) for row in tx.execute(mine)]

        return await self._database.read(read)

    async def finish_task(self, ownership: Ownership, task_id: str, *, now_us: int) -> TaskStatus | None:
        # Most looks find nothing to end: they cost a read and no lock.
        if await self._database.read(lambda tx: _goes_on(tx, ownership, task_id)):
            return None
        return await self._database.write(lambda tx: _finish(tx, ownership, task_id, now_us))

    async def pause_task(self, ownership: Ownership, task_id: str, *, reason: str, now_us: int) -> frozenset[str]:
        def write(tx: Transaction) -> frozenset[str]:
            was, root_run_id, _ = owned_task(tx, ownership, task_id)
            status = advance_task(TaskStatus(was), TaskEvent.PAUSE)
            _move(tx, task_id, status, reason, None)
            _pause_steps(tx, task_id, is_paused=1)
            if was != status:
                journal = Journal(now_us)
                journal.note(root_run_id, EventType.TASK_PAUSED, task=task_id, reason=reason)
                journal.flush(tx)
            return frozenset(row[0] for row in tx.rows(HOLDERS, task_id=task_id))

        return await self._database.write(write)

    async def resume_task(self, ownership: Ownership, task_id: str, *, now_us: int) -> None:
        def write(tx: Transaction) -> None:
            was, root_run_id, _ = owned_task(tx, ownership, task_id)
            status = advance_task(TaskStatus(was), TaskEvent.RESUME)
            if was != status:
                _move(tx, task_id, status, "", None)
                _pause_steps(tx, task_id, is_paused=0)
                journal = Journal(now_us)
                journal.note(root_run_id, EventType.TASK_RESUMED, task=task_id)
                journal.flush(tx)

        await self._database.write(write)

    async def cancel_task(self, ownership: Ownership, task_id: str, *, reason: str, now_us: int) -> frozenset[str]:
        def write(tx: Transaction) -> frozenset[str]:
            was, root_run_id, _ = owned_task(tx, ownership, task_id)
            advance_task(TaskStatus(was), TaskEvent.CANCEL)
            journal = Journal(now_us)
            workers = cancel_all(tx, journal, task_id, reason, now_us)
            _end(tx, journal, task_id, root_run_id, TaskStatus(was), TaskEvent.CANCEL, reason, now_us)
            journal.flush(tx)
            return workers

        return await self._database.write(write)

    async def retry_task(self, ownership: Ownership, task_id: str, runs: Sequence[NewRun], *, now_us: int) -> None:
        await self._database.write(lambda tx: _retry(tx, ownership, task_id, runs, now_us))


def _move(tx: Transaction, task_id: str, status: TaskStatus, reason: str, ended_us: int | None) -> None:
    tx.rows(MOVE_TASK, task_id=task_id, status=status.value, reason=plain(reason), ended_us=ended_us)


def _pause_steps(tx: Transaction, task_id: str, *, is_paused: int) -> None:
    tx.rows(PAUSE_LEASED, task_id=task_id, is_paused=is_paused)
    tx.rows(PAUSE_WAITING, task_id=task_id, is_paused=is_paused)
    # What was claimed between these two; none can be any more.
    tx.rows(PAUSE_LEASED, task_id=task_id, is_paused=is_paused)


def _end(
    tx: Transaction,
    journal: Journal,
    task_id: str,
    root_run_id: str,
    was: TaskStatus,
    event: TaskEvent,
    reason: str,
    now_us: int,
) -> TaskStatus:
    status = advance_task(was, event)
    _move(tx, task_id, status, reason, now_us)
    note, run_status, end_reason = _ENDS[event]
    journal.note(root_run_id, note, task=task_id, reason=reason)
    journal.end(root_run_id, run_status, end_reason)
    return status


def _goes_on(tx: Transaction, ownership: Ownership, task_id: str) -> bool:
    """Say whether a task has steps that have not ended or failures that are not settled; a glance, not the decision."""
    check_owned(tx, ownership, is_read=True)
    return _is_open(tx.rows(STATUSES, task_id=task_id))


def _is_open(statuses: Sequence[Any]) -> bool:
    return any(unsettled or StepStatus(status) not in STEP_ENDS for status, unsettled in statuses)


def _finish(tx: Transaction, ownership: Ownership, task_id: str, now_us: int) -> TaskStatus | None:
    was, root_run_id, _ = owned_task(tx, ownership, task_id)
    status = TaskStatus(was)
    if status.is_terminal:
        return status
    statuses = tx.rows(STATUSES, task_id=task_id)
    if _is_open(statuses):
        return None
    journal = Journal(now_us)
    if all(found == StepStatus.COMPLETED for found, _ in statuses):
        status = _end(tx, journal, task_id, root_run_id, status, TaskEvent.COMPLETE, "", now_us)
    else:
        failed = ", ".join(row[0] for row in tx.rows(FAILED_IDS, task_id=task_id))
        status = _end(tx, journal, task_id, root_run_id, status, TaskEvent.FAIL, failed, now_us)
    journal.flush(tx)
    return status


# -- trying an ended task again
def _retry(tx: Transaction, ownership: Ownership, task_id: str, runs: Sequence[NewRun], now_us: int) -> None:
    was, old_root, _ = owned_task(tx, ownership, task_id)
    status = advance_task(TaskStatus(was), TaskEvent.RETRY)
    if tx.rows(HOLDERS, task_id=task_id):
        raise ConflictError(f"task {task_id} has steps that still run; wait for them or cancel them")
    by_step = {run.identity.step_key: run for run in runs}
    root = by_step.pop("", None)
    again = tx.rows(ENDED_BADLY, task_id=task_id)
    for key, kind in again:
        if kind != StepKind.MAP and key not in by_step:
            raise NotFoundError("new run for step", key)
    journal = Journal(now_us)
    _move(tx, task_id, status, "", None)
    root_run_id = _root_of_retry(tx, journal, task_id, root, old_root)
    for run in by_step.values():
        journal.create(run, RunStatus.QUEUED)
    journal.note(root_run_id, EventType.TASK_RESUMED, task=task_id)
    for key, kind in again:
        if kind == StepKind.MAP:
            journal.note(root_run_id, EventType.STEP_RETRIED, step=key)
    start_again(tx, journal, [(key, by_step.get(key), None) for key, _ in again])
    _open_again(tx, journal, task_id, root_run_id, [key for key, _ in again], now_us)
    journal.flush(tx)


def _root_of_retry(tx: Transaction, journal: Journal, task_id: str, root: NewRun | None, old_root: str) -> str:
    if root is None:
        tx.rows(REOPEN_RUN, run_id=old_root)
        return old_root
    journal.create(root, RunStatus.RUNNING)
    tx.rows(SET_ROOT_RUN, task_id=task_id, run_id=root.identity.run_id)
    return root.identity.run_id


def _open_again(
    tx: Transaction, journal: Journal, task_id: str, root_run_id: str, keys: Sequence[str], now_us: int
) -> None:
    """Count again what each step waits for, and open those that wait for nothing."""
    counted = {row[0]: row for row in tx.rows(COUNT_AGAIN, keys=keys)}
    for key in keys:
        _, kind, run_id, open_deps = counted[key]
        if open_deps:
            continue
        step_kind = StepKind(kind)
        tx.rows(REOPEN, key=key, status=opened(step_kind).value)
        journal.note(run_id or root_run_id, opening(step_kind), step=key)
        if step_kind is StepKind.MAP:
            _wait_again(tx, journal, task_id, key, now_us)


def _wait_again(tx: Transaction, journal: Journal, task_id: str, key: str, now_us: int) -> None:
    children, open_children = tx.rows(CHILDREN, key=key)[0]
    if not children:
        return
    if open_children:
        tx.rows(WAIT_AGAIN, key=key, open_deps=open_children)
    else:
        complete_map(tx, journal, key, task_id, StepStatus.EXPANDING, now_us)
