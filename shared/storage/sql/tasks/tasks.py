"""Tasks and steps: how they are made and read."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import select

from soong.shared.core.errors import ConflictError, NotFoundError, UnavailableError
from soong.shared.engine.runs.budgets import NO_BUDGET, task_scope
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import EVERYTHING, ListFilter, RunStatus
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.spec import StepStatus, TaskKind, TaskStatus
from soong.shared.engine.tasks.step import NewTask, Step, StepResult, Task
from soong.shared.engine.tasks.store import NO_PLANNER, StepSnapshot
from soong.shared.permissions.audit_log import of_session
from soong.shared.storage.sql.claims.claim_context import result_of
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.columns import ordinal_of
from soong.shared.storage.sql.engine.rows import NEW_TASKS, SESSIONS, TASKS, filtered, snapshot_of, step_of
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Insert, ReadyRows, Statement, batches_of, table_read
from soong.shared.storage.sql.engine.tables.service import sessions
from soong.shared.storage.sql.engine.tables.work import budgets, steps, tasks
from soong.shared.storage.sql.engine.transaction import Reply, Transaction
from soong.shared.storage.sql.tasks.inserts import note_steps, ready_steps
from soong.shared.storage.sql.tasks.sessions import REOPEN, added_row

INSERT_TASKS: Final = Insert(tasks, (*NEW_TASKS.written, "root_run_id"))
INSERT_LIMITS: Final = Insert(budgets, ("scope", "tokens", "microusd", "turns", "wall_us"))

HELD_SESSION: Final = Statement(
    "held session: of a task that is written; nobody closes or removes it meanwhile",
    "SELECT is_closed FROM sessions WHERE id = :session_id /*pg FOR SHARE */",
)
PLANNER: Final = Statement(
    "planner: whether the task of the agent that plans another is running; held, so that nobody stops it meanwhile",
    """
    SELECT 1 FROM tasks WHERE id = (SELECT task_id FROM runs WHERE id = :run_id) AND status || '' = 'running'
    /*pg FOR SHARE */
    """,
)


def steps_where(name: str, condition: str) -> Statement:
    """Return a read of steps in the order of their insertion. ``condition`` names columns of ``steps``."""
    rest = f"WHERE {condition} ORDER BY steps.ordinal"
    return table_read(f"{name}, in insertion order", steps, rest, without=("dependents",))


STEPS_OF_TASK: Final = steps_where("steps of task", "steps.task_id = :task_id")
STEP_PAGE: Final = steps_where(
    "step page: the next ones of a task, after one",
    """
    steps.key IN (
        SELECT next.key FROM steps AS next WHERE next.task_id = :task_id
          AND next.ordinal > coalesce((SELECT ordinal FROM steps WHERE key = :after), 0)
        ORDER BY next.ordinal LIMIT :limit
    )""",
)
STEPS_IN: Final = steps_where(
    "steps in statuses: the next ones of a task, after one",
    """
    steps.key IN (
        SELECT next.key FROM steps AS next WHERE next.task_id = :task_id AND next.status IN @statuses
          AND next.ordinal > coalesce((SELECT ordinal FROM steps WHERE key = :after), 0)
        ORDER BY next.ordinal LIMIT :limit
    )""",
)
STEP_STATES: Final = Statement(
    "step states: what changes of a task's steps while it runs, as a console reads it again and again",
    """
    SELECT key, status, outcome, run_id, worker_id, attempt, progress, error, started_us, ended_us,
        lost_leases, lost_to
    FROM steps WHERE task_id = :task_id ORDER BY ordinal
    """,
)
ONE_STEP: Final = steps_where("step", "steps.key = :key")
TASK: Final = table_read("task", tasks, "WHERE id = :task_id")
TASK_SESSION: Final = Statement("task session: that of a task", "SELECT session_id FROM tasks WHERE id = :task_id")
TASK_STATUS: Final = Statement("task status", "SELECT status, session_id FROM tasks WHERE id = :task_id")
STEP_COUNTS: Final = Statement(
    "step counts: of a task by status",
    "SELECT status, count(*) AS steps FROM steps WHERE task_id = :task_id GROUP BY status",
)
LEFT_OF_TASK: Final = Statement(
    "left of task: steps of one of that id that is being removed",
    "SELECT 1 FROM steps WHERE task_id = :task_id LIMIT 1",
)


class SqlTasks(StorePart):
    """The part of the task store that needs no ownership."""

    # -- making
    async def create_task(self, task: NewTask) -> None:
        rows = await asyncio.to_thread(_task_rows, task, is_postgres=self._database.is_postgres)
        await self._database.write(lambda tx: _create(tx, task, rows))

    async def submit(self, session: Session, task: NewTask) -> None:
        values = SESSIONS.values(session)
        rows = await asyncio.to_thread(_task_rows, task, is_postgres=self._database.is_postgres)
        is_retry = False

        def write(tx: Transaction) -> None:
            nonlocal is_retry
            # The task is new, unless it is submitted again: the server inserts it while the looks travel. If it was
            # there, all is undone and done again, looks first. On SQLite nothing travels.
            is_ahead, is_retry = tx.is_postgres and not is_retry, True
            with tx.pipeline():
                added = tx.send(added_row(sessions.name, tuple(values)), **values)
                head = self._trail.head(tx)
                found = _send_looks(tx, task)
                tx.flush()
                for ready in rows if is_ahead else ():
                    tx.put(*ready)
                is_new = _is_new(tx, task, *found)
                if is_ahead and not is_new:
                    raise ConflictError(f"task {task.id} is there already")  # undone: rows were sent
                if added():
                    self._trail.add(tx, head, [of_session(session)], session.created_us)
                for ready in rows if is_new and not is_ahead else ():
                    tx.put(*ready)

        await self._database.write(write)

    # -- reading
    async def task(self, task_id: str) -> Task:
        return await self._database.read(lambda tx: read_task(tx, task_id))

    async def list_tasks(
        self,
        *,
        session_id: str = "",
        kind: TaskKind | None = None,
        only: ListFilter = EVERYTHING,
        before: str = "",
        limit: int = 100,
    ) -> Sequence[Task]:
        wanted = filtered(select(tasks).order_by(tasks.c.ordinal.desc()).limit(limit), tasks, only)
        if before:
            wanted = wanted.where(tasks.c.ordinal < ordinal_of(tasks, before))
        if session_id:
            wanted = wanted.where(tasks.c.session_id == session_id)
        if kind is not None:
            wanted = wanted.where(tasks.c.kind == kind.value)
        return await self._database.read(lambda tx: [TASKS.read(row) for row in tx.execute(wanted)])

    async def steps(self, task_id: str) -> Sequence[Step]:
        return await self._database.read(lambda tx: read_steps(tx, STEPS_OF_TASK, task_id=task_id))

    async def step_page(
        self, task_id: str, *, after: str = "", statuses: Collection[StepStatus] = (), limit: int = 100
    ) -> Sequence[Step]:
        wanted: dict[str, Any] = {"task_id": task_id, "after": after, "limit": limit}
        if statuses:
            wanted["statuses"] = [status.value for status in statuses]
        return await self._database.read(lambda tx: read_steps(tx, STEPS_IN if statuses else STEP_PAGE, **wanted))

    async def step(self, step_key: str) -> Step:
        return await self._database.read(lambda tx: read_step(tx, step_key))

    async def step_states(self, task_id: str) -> Sequence[StepSnapshot]:
        return await self._database.read(lambda tx: [snapshot_of(row) for row in tx.rows(STEP_STATES, task_id=task_id)])

    async def result(self, step_key: str) -> StepResult:
        result = await self._database.read(lambda tx: result_of(tx, step_key))
        if result is None:
            raise NotFoundError("step", step_key)
        return result

    async def task_with_steps(self, task_id: str) -> tuple[Task, Sequence[Step]]:
        return await self._database.read(
            lambda tx: (read_task(tx, task_id), read_steps(tx, STEPS_OF_TASK, task_id=task_id))
        )

    async def status(self, task_id: str) -> tuple[TaskStatus, str]:
        for status, session_id in await self._database.read(lambda tx: tx.rows(TASK_STATUS, task_id=task_id)):
            return TaskStatus(status), session_id
        raise NotFoundError("task", task_id)

    async def counts(self, task_id: str) -> Mapping[StepStatus, int]:
        found = await self._database.read(lambda tx: tx.rows(STEP_COUNTS, task_id=task_id))
        return {StepStatus(status): number for status, number in found}


def _task_rows(task: NewTask, *, is_postgres: bool) -> Sequence[ReadyRows]:
    """Build all rows of a new task, in the order in which they are inserted."""
    root = task.root_run.identity.run_id
    row = INSERT_TASKS.row({**NEW_TASKS.values(task), "root_run_id": root})
    run_log = RunLogBuffer(task.created_us)
    run_log.create(task.root_run, RunStatus.RUNNING)
    run_log.note(root, EventType.TASK_CREATED, task=task.id)
    note_steps(run_log, task.steps, root)
    most = task.limits
    limits = [] if most == NO_BUDGET else [(task_scope(task.id), most.tokens, most.microusd, most.turns, most.wall_us)]
    return (
        (INSERT_TASKS, list(batches_of([row], is_postgres=is_postgres))),
        (INSERT_LIMITS, list(batches_of(limits, is_postgres=is_postgres))),
        ready_steps(task.steps, is_postgres=is_postgres),
        *run_log.ready(is_postgres=is_postgres),
    )


def _create(tx: Transaction, task: NewTask, rows: Sequence[ReadyRows]) -> None:
    with tx.pipeline():
        found = _send_looks(tx, task)
    if _is_new(tx, task, *found):
        with tx.pipeline():
            for ready in rows:
                tx.put(*ready)


def _send_looks(tx: Transaction, task: NewTask) -> tuple[Reply, Reply, Reply]:
    """Ask for what is there of a new task's session and of its id, in one round trip."""
    return (
        tx.send(HELD_SESSION, session_id=task.session_id),
        tx.send(TASK_SESSION, task_id=task.id),
        tx.send(LEFT_OF_TASK, task_id=task.id),
    )


def _is_new(tx: Transaction, task: NewTask, held: Reply, written: Reply, left: Reply) -> bool:
    """Say whether a task is to be written; a closed session is reopened for it.
    Raises: NotFoundError, ConflictError, UnavailableError.
    """
    sessions_held = held()
    if not sessions_held:
        raise NotFoundError("session", task.session_id)
    for (written_in,) in written():
        if written_in != task.session_id:
            raise ConflictError(f"there is a task {task.id} in another session already")
        return False
    planner = task.root_run.identity.parent_run_id
    if planner and not tx.rows(PLANNER, run_id=planner):
        raise ConflictError(NO_PLANNER)
    if left():
        problem = f"a former task {task.id} is being removed; submit it again, after `soong gc` if that was interrupted"
        raise UnavailableError(problem)
    if sessions_held[0][0]:
        tx.count(REOPEN, session_id=task.session_id)
    return True


def read_task(tx: Transaction, task_id: str) -> Task:
    """Raises: NotFoundError."""
    row = tx.first(TASK, task_id=task_id)
    if row is None:
        raise NotFoundError("task", task_id)
    return TASKS.read(row)


def read_step(tx: Transaction, step_key: str) -> Step:
    """Raises: NotFoundError."""
    found = read_steps(tx, ONE_STEP, key=step_key)
    if not found:
        raise NotFoundError("step", step_key)
    return found[0]


def read_steps(tx: Transaction, wanted: Statement, **parameters: Any) -> list[Step]:
    """Return the steps of a read in the order in which they were inserted."""
    return [step_of(row) for row in tx.rows(wanted, **parameters)]
