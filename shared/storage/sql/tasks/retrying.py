"""The owner's side of an ended task that is tried again: which steps go back to pending, and which open at once."""

from collections.abc import Sequence
from typing import Final

from soong.shared.core.errors import ConflictError, InvalidTransitionError, NotFoundError
from soong.shared.core.identity import OWN, Origin
from soong.shared.engine.runs.budgets import task_scope
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import NewRun, RunStatus
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.spec import StepGate, StepKind, StepStatus, TaskEvent, TaskStatus, advance_task
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.owned_writes import command_done, owned_task
from soong.shared.storage.sql.engine.row_mapper import plain
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Row, Transaction
from soong.shared.storage.sql.tasks.failures import complete_map, start_again
from soong.shared.storage.sql.tasks.inserts import open_step
from soong.shared.storage.sql.tasks.task_commands import HOLDERS
from soong.shared.storage.sql.tasks.task_ends import move_task

SET_ROOT_RUN: Final = Statement(
    "set root run: of a task that is tried again", "UPDATE tasks SET root_run_id = :run_id WHERE id = :task_id"
)
ENDED_BADLY: Final = Statement(
    "ended badly: the steps of a task that a retry puts back, with the others that are named",
    """
    SELECT key, kind FROM steps
    WHERE task_id = :task_id AND (key IN @again
        OR (status IN ('failed', 'cancelled', 'skipped') AND outcome IS NULL))
    ORDER BY ordinal
    """,
)
COUNT_AGAIN: Final = Statement(
    "count again: what each retried step waits for; its lost leases are forgotten",
    """
    UPDATE steps SET lost_leases = 0, lost_to = '', open_deps = (
        SELECT count(*) FROM EACH OF steps.depends_on AS e CROSS JOIN steps AS p
        WHERE p.key = steps.task_id || '/' || e.value AND p.status <> 'completed'
          AND (p.status <> 'skipped' OR steps.gate <> 'ended')
    ) WHERE key IN @keys RETURNING key, kind, gate, run_id, open_deps
    """,
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
    "reopen run: the root run of a task that is tried again continues",
    """
    UPDATE runs SET status = 'running', end_reason = NULL, ended_us = NULL, dispatched_by = :dispatched_by,
        is_foreign = :is_foreign
    WHERE id = :run_id
    """,
)
REOPEN_SESSION: Final = Statement(
    "reopen session: one that was closed when its tasks were done has work again",
    "UPDATE sessions SET is_closed = 0 WHERE id = :session_id AND is_closed = 1",
)
RENEW_TIME: Final = Statement(
    "renew time: of a task that is tried again and has limits; what it has used stays used",
    "UPDATE budgets SET stopped = NULL, since_us = :now_us WHERE scope = :scope",
)
SET_MODEL: Final = Statement(
    "set model: the steps of agents that are tried again run on another model",
    "UPDATE steps SET model = :model WHERE key IN @keys AND model <> ''",
)
DROP_CHILDREN: Final = Statement(
    "drop children: of map steps that are expanded again; the runs and logs of the old ones stay",
    "DELETE FROM steps WHERE map_key IN @keys AND map_key <> ''",
)


class SqlRetrying(StorePart):
    """The part of the task store in which the owner tries ended tasks again."""

    async def retry_task(
        self,
        ownership: Ownership,
        task_id: str,
        runs: Sequence[NewRun],
        *,
        again: Sequence[str] = (),
        regrown: Sequence[str] = (),
        model: str = "",
        origin: Origin = OWN,
        now_us: int,
        command_id: str = "",
    ) -> None:
        def write(tx: Transaction, run_log: RunLogBuffer) -> None:
            keys = _retry(tx, run_log, ownership, task_id, runs, (again, regrown), origin, now_us)
            if model:
                tx.rows(SET_MODEL, model=model, keys=keys)
            command_done(tx, command_id)

        await self._write_logged(write, now_us)


def _retry(
    tx: Transaction,
    run_log: RunLogBuffer,
    ownership: Ownership,
    task_id: str,
    runs: Sequence[NewRun],
    which: tuple[Sequence[str], Sequence[str]],
    origin: Origin,
    now_us: int,
) -> Sequence[str]:
    """Return the keys of the steps that are tried again."""
    was, old_root, _ = owned_task(tx, ownership, task_id)
    again, regrown = which
    status = advance_task(TaskStatus(was), TaskEvent.RETRY)
    if tx.rows(HOLDERS, task_id=task_id):
        raise ConflictError(f"task {task_id} has steps that still run; wait for them or cancel them")
    by_step = {run.identity.step_key: run for run in runs}
    root = by_step.pop("", None)
    drop_children(tx, regrown)
    rows = _put_back(tx, task_id, again, by_step)
    if was == TaskStatus.COMPLETED and not rows:
        raise InvalidTransitionError("task", was, TaskEvent.RETRY)
    tx.rows(REOPEN_SESSION, session_id=ownership.session_id)
    move_task(tx, task_id, status, "", None)
    tx.rows(RENEW_TIME, scope=task_scope(task_id), now_us=now_us)
    root_run_id = _root_of_retry(tx, run_log, task_id, root, old_root, origin)
    for run in tx.paced(by_step.values()):
        run_log.create(run, RunStatus.QUEUED)
    run_log.note(root_run_id, EventType.TASK_RESUMED, task=task_id)
    for key, kind in tx.paced(rows):
        if StepKind(kind).traits.has_items:
            run_log.note(root_run_id, EventType.STEP_RETRIED, step=key)
    start_again(tx, run_log, [(key, by_step.get(key), None) for key, _ in rows])
    keys = [key for key, _ in rows]
    _open_again(tx, run_log, task_id, root_run_id, keys, now_us)
    return keys


def drop_children(tx: Transaction, map_keys: Sequence[str]) -> None:
    """Take away the rows of the children of map steps that are to be expanded again."""
    if map_keys:
        tx.rows(DROP_CHILDREN, keys=sorted(map_keys))


def _put_back(tx: Transaction, task_id: str, again: Sequence[str], runs: dict[str, NewRun]) -> Sequence[Row]:
    """Return (key, kind) of the steps that go back, oldest first. Raises: NotFoundError."""
    rows = tx.rows(ENDED_BADLY, task_id=task_id, again=sorted(again))
    missing = sorted(set(again) - {key for key, _ in rows})
    if missing:
        raise NotFoundError("step", missing[0])
    for key, kind in rows:
        if not StepKind(kind).traits.has_items and key not in runs:
            raise NotFoundError("new run for step", key)
    return rows


def _root_of_retry(
    tx: Transaction, run_log: RunLogBuffer, task_id: str, root: NewRun | None, old_root: str, origin: Origin
) -> str:
    if root is None:
        tx.rows(REOPEN_RUN, run_id=old_root, dispatched_by=plain(origin.principal), is_foreign=int(origin.is_foreign))
        return old_root
    run_log.create(root, RunStatus.RUNNING)
    tx.rows(SET_ROOT_RUN, task_id=task_id, run_id=root.identity.run_id)
    return root.identity.run_id


def _open_again(
    tx: Transaction, run_log: RunLogBuffer, task_id: str, root_run_id: str, keys: Sequence[str], now_us: int
) -> None:
    """Count again what each step waits for, and open those that wait for nothing."""
    counted = {key: fields for key, *fields in tx.rows(COUNT_AGAIN, keys=keys)}
    for key in keys:
        kind, gate, run_id, open_deps = counted[key]
        if open_deps and StepKind(kind).traits.has_items and tx.value(CHILDREN, key=key):
            raise ConflictError(f"{key} waits again for its dependencies: it has to be expanded again")
        if not open_deps:
            open_step(tx, run_log, key, StepGate(gate), run_id or root_run_id)
            if StepKind(kind).traits.has_items:
                _wait_again(tx, run_log, task_id, key, now_us)


def _wait_again(tx: Transaction, run_log: RunLogBuffer, task_id: str, key: str, now_us: int) -> None:
    children, open_children = tx.rows(CHILDREN, key=key)[0]
    if not children:
        return
    if open_children:
        tx.rows(WAIT_AGAIN, key=key, open_deps=open_children)
    else:
        complete_map(tx, run_log, key, task_id, StepStatus.EXPANDING, now_us)
