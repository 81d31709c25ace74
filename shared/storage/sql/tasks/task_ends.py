"""The end of a task, as its owner writes it, with that of a session that is to end with its task."""

from collections.abc import Mapping
from typing import Final

from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.status import EndReason, RunStatus
from soong.shared.engine.tasks.status import TaskEvent, TaskStatus, advance_task
from soong.shared.storage.sql.claims.readiness import tell_maps
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.texts import plain
from soong.shared.storage.sql.engine.transaction import Transaction

MOVE_TASK: Final = Statement(
    "move task: to its next status; its folders are to be written again, unless none is to be written",
    """
    UPDATE tasks SET status = :status, reason = :reason, ended_us = :ended_us, is_recorded = :is_recorded
    WHERE id = :task_id
    """,
)
FEW_RUNS: Final = 32
"""More are not looked at in the transaction that ends their task: what has to be written of them is found later."""
RUNS_WITH_FOLDERS: Final = Statement(
    "runs with folders: whether a task that completes has one besides its root run, or has too many runs to tell",
    """
    SELECT count(*), coalesce(sum(CASE
        WHEN few.usage <> '{}' OR (few.started_us IS NOT NULL AND few.status <> 'completed') THEN 1 ELSE 0 END), 0)
    FROM (SELECT usage, started_us, CASE WHEN id = (SELECT root_run_id FROM tasks WHERE id = :task_id)
                                         THEN 'completed' ELSE status END AS status
          FROM runs WHERE task_id = :task_id LIMIT :most) AS few
    """,
)
HELD_SESSION: Final = Statement(
    "held session: of a task that ends; nobody writes another task into it meanwhile",
    "SELECT closes_with_task FROM sessions WHERE id = :session_id /*pg FOR UPDATE */",
)
CLOSE_WITH_TASK: Final = Statement(
    "close with task: the session of a task that has completed, if it is to end with it and no other is left",
    """
    UPDATE sessions SET is_closed = 1 WHERE id = :session_id AND closes_with_task = 1
      AND NOT EXISTS (SELECT 1 FROM tasks WHERE session_id = :session_id AND status <> 'completed')
    RETURNING id
    """,
)
_ENDS: Final[Mapping[TaskEvent, tuple[EventType, RunStatus, EndReason]]] = {
    TaskEvent.COMPLETE: (EventType.TASK_COMPLETED, RunStatus.COMPLETED, EndReason.COMPLETED),
    TaskEvent.FAIL: (EventType.TASK_FAILED, RunStatus.FAILED, EndReason.FAILED),
    TaskEvent.CANCEL: (EventType.TASK_CANCELLED, RunStatus.CANCELLED, EndReason.CANCELLED),
}


def move_task(
    tx: Transaction,
    task_id: str,
    status: TaskStatus,
    reason: str,
    ended_us: int | None,
    *,
    is_recorded: bool = False,
) -> None:
    """Write a task's next status; ``is_recorded`` when there is no folder to be written."""
    told = {"status": status.value, "reason": plain(reason), "ended_us": ended_us}
    tx.rows(MOVE_TASK, task_id=task_id, is_recorded=int(is_recorded), **told)


def end_task(
    tx: Transaction,
    run_log: RunLogBuffer,
    task_id: str,
    root_run_id: str,
    was: TaskStatus,
    event: TaskEvent,
    reason: str,
    now_us: int,
) -> TaskStatus:
    status = advance_task(was, event)
    move_task(tx, task_id, status, reason, now_us)
    tell_maps(tx, run_log, task_id, root_run_id)
    note, run_status, end_reason = _ENDS[event]
    run_log.note(root_run_id, note, task=task_id, reason=reason)
    run_log.end(root_run_id, run_status, end_reason)
    return status


def write_completion(
    tx: Transaction,
    run_log: RunLogBuffer,
    task_id: str,
    root_run_id: str,
    closing_id: str,
    now_us: int,
    *,
    is_recorded: bool,
) -> bool:
    """Complete a task of which nothing is left, in one round trip; say whether the session of that id was closed."""
    note, run_status, end_reason = _ENDS[TaskEvent.COMPLETE]
    run_log.note(root_run_id, note, task=task_id, reason="")
    run_log.end(root_run_id, run_status, end_reason)
    with tx.pipeline():
        move_task(tx, task_id, TaskStatus.COMPLETED, "", now_us, is_recorded=is_recorded)
        run_log.flush(tx)
        closing = tx.send(CLOSE_WITH_TASK, session_id=closing_id) if closing_id else None
    return closing is not None and bool(closing.rows())
