"""Tasks and steps: making and reading them, and a worker's side."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, func, select

from soong.shared.core.errors import ConflictError, LeaseLostError, NotFoundError, UnavailableError
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.status import RunStatus
from soong.shared.engine.tasks.lost_lease import WORKER_GONE
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import (
    Advance,
    Backlog,
    ConcurrencyLimit,
    Interrupt,
    Lease,
    NewTask,
    Step,
    StepEnd,
    StepResult,
    Task,
    TaskCounts,
    WaitingSteps,
)
from soong.shared.storage.sql.claims.advance import advance
from soong.shared.storage.sql.claims.claim_context import Contexts, result_of
from soong.shared.storage.sql.claims.claiming import (
    LIVE_LEASES,
    concurrency_limits_of,
    read_lanes,
    room_left,
    share_out,
)
from soong.shared.storage.sql.claims.completions import ClaimRequest
from soong.shared.storage.sql.claims.parking import park
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.ordinals import ordinal_of
from soong.shared.storage.sql.engine.rows import pack, plain, step_of, task_of
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Insert, ReadyRows, Statement
from soong.shared.storage.sql.engine.tables import concurrency_limits as limits_table
from soong.shared.storage.sql.engine.tables import edges, steps, tasks
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.engine.upsert import upsert
from soong.shared.storage.sql.tasks.cancel import expire_leases, free_steps
from soong.shared.storage.sql.tasks.inserts import MANY_STEPS, note_steps, ready_steps
from soong.shared.storage.sql.tasks.sessions import REOPEN

INSERT_TASKS: Final = Insert(
    "tasks",
    {
        "id": "text",
        "session_id": "text",
        "title": "text",
        "plan": "text",
        "inputs": "text",
        "root_run_id": "text",
        "created_us": "bigint",
    },
)

HELD_SESSION: Final = Statement(
    "held session: of a task that is written; nobody closes or removes it meanwhile",
    "SELECT is_closed FROM sessions WHERE id = :session_id /*pg FOR SHARE */",
)
LEFT_OF_TASK: Final = Statement(
    "left of task: steps of one of that id that is being removed",
    "SELECT 1 FROM steps WHERE task_id = :task_id LIMIT 1",
)

REPORT_PROGRESS: Final = Statement(
    "report progress: by the step's holder",
    """
    UPDATE steps SET progress = :progress
    WHERE key = :key AND run_id = :run_id AND fence = :fence AND worker_id = :worker_id
      AND status IN ('claimed', 'running')
    """,
)

INTERRUPTS: Final = Statement(
    "interrupts: held steps that were asked to stop, or whose task is paused",
    """
    SELECT s.run_id, s.key, s.fence, s.cancel_reason, t.reason
    FROM steps AS s JOIN tasks AS t ON t.id = s.task_id
    WHERE s.worker_id = :worker_id AND s.status IN ('claimed', 'running')
      AND (s.cancel_reason IS NOT NULL OR s.is_paused = 1)
    ORDER BY s.ordinal
    """,
)

LEASES: Final = Statement(
    "leases: all that a worker holds",
    """
    SELECT key, run_id, fence FROM steps WHERE worker_id = :worker_id AND status IN ('claimed', 'running')
    ORDER BY ordinal
    """,
)

EXPIRE_WORKER: Final = Statement(
    "expire worker: if its beat is still the one that was watched",
    "UPDATE workers SET state = 'gone' WHERE id = :worker_id AND beat = :beat AND state <> 'gone'",
)


class SqlTasks:
    """The part of the task store that needs no ownership."""

    _database: Database
    _contexts: Contexts

    # -- making
    async def create_task(self, task: NewTask) -> None:
        rows = await self._database.built(
            lambda: _task_rows(task, is_postgres=self._database.is_postgres), are_many=len(task.steps) > MANY_STEPS
        )
        await self._database.write(lambda tx: _create(tx, task, rows))

    async def set_concurrency_limits(self, concurrency_limits: Sequence[ConcurrencyLimit]) -> None:
        await self._database.write(lambda tx: _set_concurrency_limits(tx, concurrency_limits))

    # -- reading
    async def task(self, task_id: str) -> Task:
        return await self._database.read(lambda tx: read_task(tx, task_id))

    async def list_tasks(self, *, session_id: str = "", before: str = "", limit: int = 100) -> Sequence[Task]:
        wanted = select(tasks).order_by(tasks.c.ordinal.desc()).limit(limit)
        if before:
            wanted = wanted.where(tasks.c.ordinal < ordinal_of(tasks, before))
        if session_id:
            wanted = wanted.where(tasks.c.session_id == session_id)
        return await self._database.read(lambda tx: [task_of(row) for row in tx.execute(wanted)])

    async def steps(self, task_id: str) -> Sequence[Step]:
        return await self._database.read(lambda tx: read_steps(tx, steps.c.task_id == task_id))

    async def step(self, step_key: str) -> Step:
        return await self._database.read(lambda tx: read_step(tx, step_key))

    async def result(self, step_key: str) -> StepResult:
        result = await self._database.read(lambda tx: result_of(tx, step_key))
        if result is None:
            raise NotFoundError("step", step_key)
        return result

    async def counts(self, task_id: str) -> TaskCounts:
        counted = select(steps.c.status, func.count()).where(steps.c.task_id == task_id).group_by(steps.c.status)
        found: Sequence[Any] = await self._database.read(lambda tx: tx.execute(counted).all())
        return TaskCounts({StepStatus(status): number for status, number in found})

    # -- a worker's side
    async def advance(
        self,
        worker_id: str,
        ends: Sequence[StepEnd],
        *,
        claim: int,
        pools: Sequence[str],
        capabilities: Sequence[str],
        live_workers: int,
        now_us: int,
    ) -> Advance:
        wish = ClaimRequest(worker_id, claim, pools, capabilities, live_workers, now_us)
        return await self._database.write(lambda tx: advance(tx, self._contexts, ends, wish))

    async def release(self, worker_id: str, held: Sequence[Lease], *, reason: str, now_us: int) -> frozenset[str]:
        def write(tx: Transaction) -> frozenset[str]:
            run_log = RunLogBuffer(now_us)
            stale = free_steps(tx, run_log, worker_id, held, reason, now_us)
            run_log.flush(tx)
            return stale

        return await self._database.write(write)

    async def park(
        self, worker_id: str, held: Lease, request_ids: Sequence[str], *, max_parked: int, now_us: int
    ) -> bool:
        def write(tx: Transaction) -> bool:
            return park(tx, worker_id, held, request_ids, max_parked=max_parked, now_us=now_us)

        return await self._database.write(write)

    async def report_progress(self, worker_id: str, held: Lease, progress: str, *, now_us: int) -> None:
        def write(tx: Transaction) -> None:
            parameters = {"key": held.step_key, "run_id": held.run_id, "fence": held.fence, "worker_id": worker_id}
            if not tx.count(REPORT_PROGRESS, progress=plain(progress), **parameters):
                raise LeaseLostError(held.run_id, held.fence)
            run_log = RunLogBuffer(now_us)
            run_log.note(held.run_id, EventType.STEP_PROGRESS, step=held.step_key, progress=progress)
            run_log.flush(tx)

        await self._database.write(write)

    async def interrupts(self, worker_id: str) -> Sequence[Interrupt]:
        rows = await self._database.read(lambda tx: tx.rows(INTERRUPTS, worker_id=worker_id))
        return [
            Interrupt(run_id, key, fence, "pause", reason or "")
            if cancel is None
            else Interrupt(run_id, key, fence, "cancel", cancel)
            for run_id, key, fence, cancel, reason in rows
        ]

    async def leases(self, worker_id: str) -> Sequence[Lease]:
        rows = await self._database.read(lambda tx: tx.rows(LEASES, worker_id=worker_id))
        return [Lease(*row) for row in rows]

    async def backlog(self, *, limit: int = 1000) -> Backlog:
        return await self._database.read(lambda tx: _backlog(tx, limit))

    async def expire_worker(
        self, worker_id: str, beat: int, *, max_lost_leases: int, now_us: int, because: str = WORKER_GONE
    ) -> frozenset[str] | None:
        def write(tx: Transaction) -> frozenset[str] | None:
            if not tx.count(EXPIRE_WORKER, worker_id=worker_id, beat=beat):
                return None
            run_log = RunLogBuffer(now_us)
            concerned = expire_leases(tx, run_log, worker_id, max_lost_leases, now_us, because)
            run_log.flush(tx)
            return concerned

        return await self._database.write(write)


def _task_rows(task: NewTask, *, is_postgres: bool) -> Sequence[ReadyRows]:
    """Build all rows of a new task, in the order in which they are inserted."""
    root = task.root_run.identity.run_id
    row = (task.id, task.session_id, plain(task.title), pack(task.plan), pack(task.inputs), root, task.created_us)
    run_log = RunLogBuffer(task.created_us)
    run_log.create(task.root_run, RunStatus.RUNNING)
    run_log.note(root, EventType.TASK_CREATED, task=task.id)
    note_steps(run_log, task.steps, root)
    return (
        ReadyRows.of(INSERT_TASKS, [row], is_postgres=is_postgres),
        *ready_steps(task.steps, is_postgres=is_postgres),
        *run_log.ready(is_postgres=is_postgres),
    )


def _create(tx: Transaction, task: NewTask, rows: Sequence[ReadyRows]) -> None:
    found = tx.rows(HELD_SESSION, session_id=task.session_id)
    if not found:
        raise NotFoundError("session", task.session_id)
    stands = tx.execute(select(tasks.c.session_id).where(tasks.c.id == task.id)).first()
    if stands is not None:
        if stands.session_id != task.session_id:
            raise ConflictError(f"there is a task {task.id} in another session already")
        return
    if tx.rows(LEFT_OF_TASK, task_id=task.id):
        problem = f"a former task {task.id} is being removed; submit it again, after `soong gc` if that was interrupted"
        raise UnavailableError(problem)
    if found[0][0]:
        tx.count(REOPEN, session_id=task.session_id)
    for ready in rows:
        tx.put(ready)


def _set_concurrency_limits(tx: Transaction, concurrency_limits: Sequence[ConcurrencyLimit]) -> None:
    for bound in sorted(concurrency_limits, key=lambda bound: bound.scope):
        if bound.limit < 1:
            tx.execute(limits_table.delete().where(limits_table.c.scope == bound.scope))
            continue
        new = upsert(tx, limits_table).values(scope=bound.scope, slots=bound.limit)
        tx.execute(new.on_conflict_do_update(index_elements=["scope"], set_={"slots": bound.limit}))


def _backlog(tx: Transaction, limit: int) -> Backlog:
    """Count what could be claimed now, lane by lane, within the concurrency limits as they are."""
    lanes, last_turn = read_lanes(tx, most=limit)
    room = room_left(concurrency_limits_of(tx, lanes), tx.rows(LIVE_LEASES)) if lanes else {}
    ready: dict[str, int] = {}
    if not any(scope in room for lane in lanes for scope in lane.scopes):
        for lane in lanes:
            ready[lane.pool] = ready.get(lane.pool, 0) + lane.ready
    else:
        pools = {lane.key: lane.pool for lane in lanes}
        for key in share_out(lanes, limit * len(set(pools.values())), room, last_turn).order:
            ready[pools[key]] = ready.get(pools[key], 0) + 1
    waiting = frozenset(WaitingSteps(lane.session_id, lane.pool, lane.needs) for lane in lanes)
    return Backlog({pool: min(number, limit) for pool, number in ready.items()}, waiting)


def read_task(tx: Transaction, task_id: str) -> Task:
    """Raises: NotFoundError."""
    row = tx.execute(select(tasks).where(tasks.c.id == task_id)).first()
    if row is None:
        raise NotFoundError("task", task_id)
    return task_of(row)


def read_step(tx: Transaction, step_key: str) -> Step:
    """Raises: NotFoundError."""
    found = read_steps(tx, steps.c.key == step_key)
    if not found:
        raise NotFoundError("step", step_key)
    return found[0]


def read_steps(tx: Transaction, condition: ColumnElement[bool]) -> list[Step]:
    """Return the steps for which ``condition`` holds, in the order in which they were inserted."""
    needed = (
        select(edges.c.child_key, edges.c.parent_key)
        .join(steps, steps.c.key == edges.c.child_key)
        .where(condition)
        .order_by(edges.c.child_key, edges.c.position)
    )
    depends_on: dict[str, list[str]] = {}
    pairs: Sequence[Any] = tx.execute(needed).all()
    for child, parent in pairs:
        depends_on.setdefault(child, []).append(parent)
    rows = tx.execute(select(steps).where(condition).order_by(steps.c.ordinal))
    return [step_of(row, depends_on.get(row.key, ())) for row in rows]
