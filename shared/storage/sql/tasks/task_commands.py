"""The owner's side of tasks: pausing, cancelling, finishing."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final, Literal

from msgspec.structs import replace

from soong.shared.core.errors import NotFoundError
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import task_scope
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.store import CallAbort
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.change import check_over, why_failed
from soong.shared.engine.tasks.spec import STEP_ENDS, StepStatus, TaskEvent, TaskKind, TaskStatus, advance_task
from soong.shared.engine.tasks.step import OpenTask, SessionWork
from soong.shared.engine.tasks.store import FinishedTask, SessionLook
from soong.shared.storage.sql.claims.readiness import tell_maps
from soong.shared.storage.sql.engine.owned_writes import (
    OWNED,
    OWNED_TASK,
    SEEN_OWNED,
    check_owned,
    check_owner,
    command_done,
    owned_read,
    owned_task,
)
from soong.shared.storage.sql.engine.row_mapper import plain
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Row, Transaction
from soong.shared.storage.sql.tasks.task_ends import (
    CLOSE_WITH_TASK,
    FEW_RUNS,
    HELD_SESSION,
    RUNS_WITH_FOLDERS,
    SETTLE_ALL,
    cancel_all,
    cancel_unheld,
    end_task,
    move_task,
)
from soong.shared.storage.sql.tasks.task_updates import SqlChanging

UNRECORDED: Final = Statement(
    "unrecorded: tasks that are over, of sessions of this owner or of nobody's, whose folders are not written, without "
    "those that it has set aside",
    """
    SELECT t.id FROM tasks AS t JOIN sessions AS s ON s.id = t.session_id
    WHERE t.is_recorded = 0 AND t.status IN ('completed', 'failed', 'cancelled') AND s.owner_id IN ('', :owner_id)
      AND NOT (t.id IN @set_aside)
      AND NOT EXISTS (SELECT 1 FROM steps WHERE steps.task_id = t.id AND steps.status = 'running')
    ORDER BY t.ordinal LIMIT 100
    """,
)
RECORDED: Final = Statement(
    "recorded: the folders of a task that is over are written, as of that end: it may have had another since",
    """
    UPDATE tasks SET is_recorded = 1
    WHERE id = :task_id AND ended_us = :ended_us AND status IN ('completed', 'failed', 'cancelled')
    """,
)
PAUSE_LEASED: Final = Statement(
    "pause leased: copy a task's pause to its leased steps; their workers learn of it as an interrupt",
    """
    UPDATE steps SET is_paused = :is_paused WHERE task_id = :task_id AND status = 'running'
    /*pg AND key IN (SELECT key FROM steps WHERE task_id = :task_id AND status = 'running'
                         ORDER BY key FOR UPDATE) */
    """,
)
PAUSE_WAITING: Final = Statement(
    "pause waiting: copy a task's pause to the steps that are to come, so that no claim looks at them",
    """
    UPDATE steps SET is_paused = :is_paused
    WHERE task_id = :task_id AND status IN ('pending', 'ready', 'blocked', 'expanding', 'waiting')
    /*pg AND key IN (SELECT key FROM steps WHERE task_id = :task_id
                         AND status IN ('pending', 'ready', 'blocked', 'expanding', 'waiting')
                         ORDER BY key FOR UPDATE) */
    """,
)
ABORT_CALL: Final = Statement(
    "abort: a run of this session that is running, or a call of it; asked twice, the first words stay",
    """
    INSERT INTO call_aborts (run_id, tool_call_id, reason, created_us)
    SELECT r.id, :tool_call_id, :reason, :now_us FROM runs AS r
    WHERE r.id = :run_id AND r.session_id = :session_id AND r.status = 'running' ON CONFLICT DO NOTHING
    """,
)
STOP_AT_LIMIT: Final = Statement(
    "stop at limit: say why a task was stopped that has limits; what was said first stays",
    "UPDATE budgets SET stopped = :reason WHERE scope = :scope AND stopped IS NULL",
)
STOPPED: Final = Statement(
    "stopped: why a task was stopped that has reached a limit",
    "SELECT stopped FROM budgets WHERE scope = :scope AND stopped IS NOT NULL",
)
HOLDERS: Final = Statement(
    "holders: the workers that hold steps of a task",
    "SELECT DISTINCT worker_id FROM steps WHERE task_id = :task_id AND status = 'running'",
)
OPEN_TASKS: Final = Statement(
    "open tasks: of a session, without their plans, which are as large as they like; and whether the run of the agent "
    "that plans each is active",
    """
    SELECT t.id, t.status, t.kind, EXISTS (
        SELECT 1 FROM runs AS root
        JOIN runs AS planner ON planner.id = CASE WHEN t.kind = 'ask' THEN root.id ELSE root.parent_run_id END
        WHERE root.id = t.root_run_id AND planner.status NOT IN ('completed', 'failed', 'cancelled')
    )
    FROM tasks AS t WHERE t.session_id = :session_id AND t.status IN ('running', 'paused') ORDER BY t.ordinal
    """,
)
SESSION_WORK: Final = Statement(
    "session work: whether there are commands, maps to expand and failures, when the next retry is due, whether "
    "questions wait, and whether leased steps have failed already",
    """
    SELECT EXISTS (SELECT 1 FROM commands WHERE session_id = :session_id AND is_ended = 0),
           EXISTS (SELECT 1 FROM steps WHERE session_id = :session_id AND status = 'expanding'),
           EXISTS (SELECT 1 FROM steps WHERE session_id = :session_id AND status = 'failed' AND is_settled = 0),
           (SELECT min(not_before_us) FROM steps
            WHERE session_id = :session_id AND status = 'pending' AND not_before_us IS NOT NULL AND open_deps = 0),
           EXISTS (SELECT 1 FROM permission_requests WHERE session_id = :session_id AND state = 'pending'),
           EXISTS (SELECT 1 FROM steps WHERE status = 'running' AND session_id || '' = :session_id
                   AND error IS NOT NULL)
    """,
)
LEFT: Final = Statement(
    "left: whether a task that has not ended has steps under way, steps that wait, retries not yet due, failures that "
    "are not settled, steps of its own that did not complete (failures that are kept count where a limit stopped it), "
    "maps that workers completed and no log says so; one step each is looked at, however many there are",
    """
    SELECT EXISTS (SELECT 1 FROM steps WHERE task_id = :task_id
                   AND status IN ('ready', 'running', 'blocked', 'expanding', 'waiting')),
           EXISTS (SELECT 1 FROM steps WHERE task_id = :task_id AND status = 'pending'),
           EXISTS (SELECT 1 FROM steps WHERE session_id = :session_id AND status = 'pending'
                   AND not_before_us IS NOT NULL AND task_id || '' = :task_id AND open_deps = 0),
           EXISTS (SELECT 1 FROM steps
                   WHERE session_id = :session_id AND status = 'failed' AND is_settled = 0 AND task_id = :task_id),
           EXISTS (SELECT 1 FROM steps WHERE task_id = :task_id AND status IN ('failed', 'cancelled', 'skipped')
                   AND outcome IS NULL AND is_pull_worker = 0 AND map_key = ''
                   AND (status <> 'failed' OR on_failure <> 'keep' OR EXISTS (
                       SELECT 1 FROM budgets WHERE scope = :scope AND stopped IS NOT NULL))),
           EXISTS (SELECT 1 FROM steps WHERE session_id = :session_id AND task_id = :task_id
                   AND kind = 'map' AND ready_us IS NOT NULL AND status || '' = 'completed')
    FROM tasks WHERE id = :task_id AND status IN ('running', 'paused')
    """,
)
IDS_BY_STATUS: Final = Statement(
    "ids by status: of a task's own steps that did not complete, and pull workers that run, in insertion order; "
    "without failures that are kept",
    """
    SELECT status, step_id FROM steps WHERE task_id = :task_id AND status <> 'completed'
      AND (status <> 'failed' OR on_failure <> 'keep')
      AND (status <> 'skipped' OR outcome IS NULL)
      AND (is_pull_worker = 0 OR status NOT IN ('failed', 'cancelled', 'skipped')) ORDER BY ordinal
    """,
)


class _RemainingWork(Value):
    """The remaining work of a task; an ended one has none."""

    is_under_way: bool = False
    is_waiting: bool = False
    is_backing_off: bool = False
    is_unsettled: bool = False
    has_losses: bool = False
    has_untold_maps: bool = False

    @property
    def is_open(self) -> bool:
        """Say whether steps have not ended or failures are not settled."""
        return self.is_under_way or self.is_waiting or self.is_unsettled

    @property
    def is_due(self) -> bool:
        """Say whether its owner has something to write: its end, or what an open task lacks."""
        return not self.is_open or self.is_stuck or self.has_untold_maps

    @property
    def is_stuck(self) -> bool:
        """Say whether all that is left waits for steps, and none is left to wait for: an end was missed by a growth."""
        return self.is_waiting and not (self.is_under_way or self.is_backing_off or self.is_unsettled)


class SqlTaskCommands(SqlChanging):
    """The part of the task store in which the owner controls tasks."""

    async def open_tasks(self, ownership: Ownership) -> Sequence[OpenTask]:
        def read(tx: Transaction) -> list[OpenTask]:
            return list(_open_tasks(tx.rows(OPEN_TASKS, session_id=ownership.session_id)))

        return await self._database.read(owned_read(ownership, read))

    async def session_work(self, ownership: Ownership) -> SessionWork:
        return await self._database.read(lambda tx: _with_due(tx, ownership, _look(tx, ownership, SEEN_OWNED)))

    async def look_and_finish(self, ownership: Ownership, *, now_us: int) -> SessionLook:
        return await self._database.write(lambda tx: _look_and_finish(tx, ownership, now_us))

    async def unrecorded(self, owner_id: str, *, set_aside: Collection[str] = ()) -> Sequence[str]:
        without = list(set_aside)
        return await self._database.read(lambda tx: tx.column(UNRECORDED, owner_id=owner_id, set_aside=without))

    async def mark_recorded(self, task_id: str, ended_us: int) -> bool:
        return await self._database.write(lambda tx: tx.count(RECORDED, task_id=task_id, ended_us=ended_us) > 0)

    async def finish_task(self, ownership: Ownership, task_id: str, *, now_us: int) -> FinishedTask | None:
        def write(tx: Transaction) -> FinishedTask | _RemainingWork:
            check_owned(tx, ownership)
            return _finish(tx, ownership, task_id, now_us)

        found = await self._database.write(write)
        if isinstance(found, FinishedTask):
            return found
        if found.is_stuck:
            await self.recount(ownership, task_id, now_us=now_us)
        return None

    async def end_task(
        self,
        ownership: Ownership,
        task_id: str,
        event: Literal[TaskEvent.COMPLETE, TaskEvent.FAIL, TaskEvent.CANCEL],
        *,
        reason: str,
        now_us: int,
        command_id: str = "",
    ) -> frozenset[str]:
        def write(tx: Transaction, run_log: RunLogBuffer) -> frozenset[str]:
            was, root_run_id, _ = owned_task(tx, ownership, task_id)
            advance_task(TaskStatus(was), event)
            if event is TaskEvent.COMPLETE:
                rows = tx.rows(IDS_BY_STATUS, task_id=task_id)
                check_over([step_id for status, step_id in rows if StepStatus(status) not in STEP_ENDS])
                workers: frozenset[str] = frozenset()
                tx.rows(SETTLE_ALL, task_id=task_id)
            else:
                workers = cancel_all(tx, run_log, task_id, reason, now_us)
            tell_maps(tx, run_log, task_id, root_run_id)
            end_task(tx, run_log, task_id, root_run_id, TaskStatus(was), event, reason, now_us)
            command_done(tx, command_id)
            return workers

        return await self._write_logged(write, now_us)

    async def cancel_task(
        self, ownership: Ownership, task_id: str, *, reason: str, now_us: int, command_id: str = ""
    ) -> frozenset[str]:
        named = {"reason": reason, "command_id": command_id}
        return await self.end_task(ownership, task_id, TaskEvent.CANCEL, now_us=now_us, **named)

    async def pause_task(self, ownership: Ownership, task_id: str, *, reason: str, now_us: int) -> frozenset[str]:
        def write(tx: Transaction, run_log: RunLogBuffer) -> frozenset[str]:
            was, root_run_id, _ = owned_task(tx, ownership, task_id)
            status = advance_task(TaskStatus(was), TaskEvent.PAUSE)
            move_task(tx, task_id, status, reason, None)
            _pause_steps(tx, task_id, is_paused=1)
            if was != status:
                run_log.note(root_run_id, EventType.TASK_PAUSED, task=task_id, reason=reason)
            return frozenset(tx.column(HOLDERS, task_id=task_id))

        return await self._write_logged(write, now_us)

    async def resume_task(self, ownership: Ownership, task_id: str, *, now_us: int) -> None:
        def write(tx: Transaction, run_log: RunLogBuffer) -> None:
            was, root_run_id, _ = owned_task(tx, ownership, task_id)
            status = advance_task(TaskStatus(was), TaskEvent.RESUME)
            if was != status:
                move_task(tx, task_id, status, "", None)
                _pause_steps(tx, task_id, is_paused=0)
                run_log.note(root_run_id, EventType.TASK_RESUMED, task=task_id)

        await self._write_logged(write, now_us)

    async def abort_call(self, ownership: Ownership, abort: CallAbort, *, now_us: int) -> None:
        def write(tx: Transaction) -> None:
            check_owned(tx, ownership)
            names = {"run_id": abort.run_id, "tool_call_id": plain(abort.tool_call_id)}
            told = {"reason": plain(abort.reason), "session_id": ownership.session_id, "now_us": now_us}
            tx.count(ABORT_CALL, **names, **told)

        await self._database.write(write)

    async def stop_task(self, ownership: Ownership, task_id: str, *, reason: str, now_us: int) -> None:
        def write(tx: Transaction, run_log: RunLogBuffer) -> None:
            was, *_ = owned_task(tx, ownership, task_id)
            if TaskStatus(was).is_terminal:
                return
            tx.count(STOP_AT_LIMIT, scope=task_scope(task_id), reason=plain(reason))
            cancel_unheld(tx, run_log, task_id, reason, now_us)

        await self._write_logged(write, now_us)


def _open_tasks(rows: Sequence[Row]) -> Iterator[OpenTask]:
    for task_id, status, kind, has_planner in rows:
        yield OpenTask(task_id, TaskStatus(status), TaskKind(kind), bool(has_planner))


def _look(tx: Transaction, ownership: Ownership, read_owned: Statement) -> SessionWork:
    """Return the work in a session, without which of its tasks are due."""
    with tx.pipeline():
        owned = tx.send(read_owned, session_id=ownership.session_id)
        work = tx.send(SESSION_WORK, session_id=ownership.session_id)
        tasks = tx.send(OPEN_TASKS, session_id=ownership.session_id)
    check_owner(owned(), ownership)
    commands, expanding, failures, retry_us, asked, overdue = work()[0]
    found = tuple(_open_tasks(tasks()))
    return SessionWork(found, bool(commands), bool(expanding), bool(failures), retry_us, bool(asked), bool(overdue))


def _with_due(tx: Transaction, ownership: Ownership, work: SessionWork) -> SessionWork:
    found = []
    for task in work.open_tasks:
        is_due = False
        if not task.has_planner:
            rows = tx.rows(LEFT, task_id=task.id, session_id=ownership.session_id, scope=task_scope(task.id))
            is_due = _RemainingWork(*map(bool, rows[0] if rows else ())).is_due
        found.append(replace(task, is_due=is_due))
    return replace(work, open_tasks=tuple(found))


def _pause_steps(tx: Transaction, task_id: str, *, is_paused: int) -> None:
    tx.rows(PAUSE_LEASED, task_id=task_id, is_paused=is_paused)
    tx.rows(PAUSE_WAITING, task_id=task_id, is_paused=is_paused)
    # Steps that were claimed between these two; none can be claimed any more.
    tx.rows(PAUSE_LEASED, task_id=task_id, is_paused=is_paused)


def _look_and_finish(tx: Transaction, ownership: Ownership, now_us: int) -> SessionLook:
    """End the tasks that have nothing left; return the others, each with whether it is due, and those that ended."""
    work = _look(tx, ownership, OWNED)
    if not work.ends_only:
        return _with_due(tx, ownership, work), []
    left: list[OpenTask] = []
    ended: list[FinishedTask] = []
    for task in work.open_tasks:
        found = None if task.has_planner else _finish(tx, ownership, task.id, now_us)
        if isinstance(found, FinishedTask):
            ended.append(found)
        else:
            left.append(task if found is None else replace(task, is_due=found.is_due))
    return replace(work, open_tasks=tuple(left)), ended


def _finish(tx: Transaction, ownership: Ownership, task_id: str, now_us: int) -> FinishedTask | _RemainingWork:
    """End a task of which nothing is left, in two round trips; else return what is left.

    The task is held before what is left of it is read: each statement sees what has been committed before it.
    """
    session_id = ownership.session_id
    with tx.pipeline():
        held = tx.send(OWNED_TASK, task_id=task_id, session_id=session_id)
        left_row = tx.send(LEFT, task_id=task_id, session_id=session_id, scope=task_scope(task_id))
        with_folders = tx.send(RUNS_WITH_FOLDERS, task_id=task_id, most=FEW_RUNS + 1)
        session_row = tx.send(HELD_SESSION, session_id=session_id)
    if not held():
        raise NotFoundError("task", task_id)
    was, root_run_id, _ = held()[0]
    status = TaskStatus(was)
    if status.is_terminal:
        return FinishedTask(task_id, status)
    left = _RemainingWork(*map(bool, left_row()[0]))
    run_log = RunLogBuffer(now_us)
    if left.has_untold_maps:
        tell_maps(tx, run_log, task_id, root_run_id)
    if left.is_open:
        run_log.flush(tx)
        return left
    event, reason = TaskEvent.COMPLETE, ""
    if left.has_losses:
        stopped = tx.value(STOPPED, scope=task_scope(task_id))
        event, reason = TaskEvent.FAIL, stopped or why_failed(tx.rows(IDS_BY_STATUS, task_id=task_id))
    number, folders = with_folders()[0]
    is_recorded = not left.has_losses and number <= FEW_RUNS and not folders
    with tx.pipeline():
        status = end_task(tx, run_log, task_id, root_run_id, status, event, reason, now_us, is_recorded=is_recorded)
        run_log.flush(tx)
        closes = session_row()[0][0] and not left.has_losses
        closing = tx.send(CLOSE_WITH_TASK, session_id=session_id) if closes else None
    return FinishedTask(task_id, status, closing is not None and bool(closing()), is_recorded)
