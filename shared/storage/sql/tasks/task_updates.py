"""The owner's changes of a running task: growth, more attempts, steps that are not to run (DESIGN: fan-out).

On PostgreSQL the steps concerned are locked first, leased ones before the others and each in key order, as everywhere.
A step that others are made to depend on is counted up (``growths``): an end of it that was under way meanwhile has not
seen the new edges, finds that out by the count, and is written again (see
:mod:`soong.shared.storage.sql.claims.postgres_hot_path`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from soong.shared.core.errors import ConflictError, InvalidTransitionError, NotFoundError
from soong.shared.core.identity import step_id_of, step_key
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import EndReason, RunStatus
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.change import TaskChange, check_no_circle, check_still_pending, must_wait
from soong.shared.engine.tasks.spec import FailurePolicy, StepEvent, StepKind, StepStatus, TaskStatus, advance_step
from soong.shared.engine.tasks.step import NewStep
from soong.shared.storage.sql.claims.parking import withdraw_of
from soong.shared.storage.sql.claims.readiness import tell_opened
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.owned_writes import command_done, owned_task
from soong.shared.storage.sql.engine.row_mapper import pack, plain
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Row, Transaction
from soong.shared.storage.sql.tasks.failures import start_again
from soong.shared.storage.sql.tasks.inserts import add_dependents, ids_of, ids_text, insert_steps, lane_of
from soong.shared.storage.sql.tasks.skipping import recount, skip_below

LOCK_NAMED: Final = Statement(
    "lock named: what a change has to know of the steps that it names; held until commit",
    """
    SELECT key, step_id, status, kind, gate, map_key, is_settled, on_failure, run_id, coalesce(worker_id, ''),
           CASE WHEN starts = 0 THEN ready_us END FROM steps
    WHERE task_id = :task_id AND key IN @keys
    ORDER BY CASE WHEN status = 'running' THEN 0 ELSE 1 END, key /*pg FOR UPDATE */
    """,
)
LOCK_OPEN: Final = Statement(
    "lock open: all steps of a task that have not ended, for a change that takes others with it",
    """
    SELECT key FROM steps WHERE task_id = :task_id
      AND status IN ('pending', 'ready', 'running', 'blocked', 'expanding', 'waiting')
    ORDER BY CASE WHEN status = 'running' THEN 0 ELSE 1 END, key /*pg FOR UPDATE */
    """,
)
TAKEN: Final = Statement("taken: which of these keys exist already", "SELECT key FROM steps WHERE key IN @keys")
DEPENDENCIES_OF: Final = Statement(
    "dependencies of: what these steps depend on", "SELECT key, depends_on FROM steps WHERE key IN @keys"
)
EDGES_OF_TASK: Final = Statement(
    "edges of task: what each of its steps depends on, to look for a circle",
    "SELECT key, depends_on FROM steps WHERE task_id = :task_id AND depends_on IS NOT NULL ORDER BY ordinal",
)
WAIT_FOR_MORE: Final = Statement(
    "wait for more: pending steps that got more dependencies",
    """
    UPDATE steps SET open_deps = open_deps + m.number, depends_on = m.depends_on
    FROM @more m(key text, number bigint, depends_on text)
    WHERE steps.key IN @keys AND steps.key = m.key AND steps.status || '' = 'pending'
    """,
)
COUNT_GROWTH: Final = Statement(
    "count growth: of the steps that others now depend on, so that an end which is under way sees it",
    "UPDATE steps SET growths = growths + 1 WHERE key IN @keys",
)
SET_PRIORITY: Final = Statement(
    "set priority", "UPDATE steps SET priority = :priority WHERE key = :key AND task_id = :task_id"
)
PLAN_AGAIN: Final = Statement(
    "plan again: what another attempt of a step is to do, and who may do it",
    """
    UPDATE steps SET title = :title, spec = :spec, definition = :definition, model = :model, pool = :pool,
        needs = :needs, lane = :lane, priority = :priority
    WHERE key = :key
    """,
)
OPEN_ATTEMPT: Final = Statement(
    "open attempt: a step that is tried again waits for nothing: what it depends on is done",
    "UPDATE steps SET status = 'ready', is_paused = :is_paused WHERE key = :key AND status || '' = 'pending'",
)
SETTLE_ONE: Final = Statement("settle one: its failure is final", "UPDATE steps SET is_settled = 1 WHERE key = :key")
ASK_ONE: Final = Statement(
    "ask one: a leased step, to stop",
    "UPDATE steps SET cancel_reason = :reason WHERE key = :key AND status = 'running'",
)
END_ONE: Final = Statement(
    "end one: a step that nobody holds",
    "UPDATE steps SET status = :status, ended_us = :now_us WHERE key = :key AND status = :was",
)
CHILDREN_OF: Final = Statement(
    "children of: a map step, those that have not ended; leased ones first, as always",
    """
    SELECT key, step_id, status, kind, gate, map_key, is_settled, on_failure, run_id, coalesce(worker_id, ''),
           CASE WHEN starts = 0 THEN ready_us END FROM steps
    WHERE map_key = :key AND map_key <> ''
      AND status IN ('pending', 'ready', 'running', 'blocked', 'expanding', 'waiting')
    ORDER BY CASE WHEN status = 'running' THEN 0 ELSE 1 END, key
    """,
)
LOCK_PENDING: Final = Statement(
    "lock pending: the steps of a task that wait for others",
    """
    SELECT key FROM steps WHERE task_id = :task_id AND status = 'pending' AND open_deps > 0
    ORDER BY key /*pg FOR UPDATE */
    """,
)


class _StepState(Value):
    """The state of an existing step that a change reads."""

    key: str
    step_id: str
    status: StepStatus
    kind: StepKind
    gate: str
    map_key: str
    is_settled: bool
    on_failure: FailurePolicy
    run_id: str
    worker_id: str
    ready_us: int | None
    """When a worker's end opened it, as long as no log has it."""


class SqlChanging(StorePart):
    """The part of the task store in which the owner changes running tasks."""

    async def update_task(
        self, ownership: Ownership, task_id: str, change: TaskChange, *, now_us: int, command_id: str = ""
    ) -> frozenset[str]:
        def write(tx: Transaction, run_log: RunLogBuffer) -> frozenset[str]:
            was, root_run_id, _ = owned_task(tx, ownership, task_id)
            if TaskStatus(was).is_terminal:
                raise InvalidTransitionError("task", was, "update")
            changing = _Changing(tx, run_log, task_id, root_run_id, change, now_us, was == TaskStatus.PAUSED)
            workers = changing.write()
            command_done(tx, command_id)
            return workers

        return await self._write_logged(write, now_us)

    async def recount(self, ownership: Ownership, task_id: str, *, now_us: int) -> int:
        def write(tx: Transaction, run_log: RunLogBuffer) -> int:
            _, root_run_id, _ = owned_task(tx, ownership, task_id)
            return recount(tx, run_log, tx.column(LOCK_PENDING, task_id=task_id), root_run_id)

        return await self._write_logged(write, now_us)


@dataclass(slots=True)
class _Changing:
    """One change being written; nothing of it is stored unless all of it is."""

    tx: Transaction
    run_log: RunLogBuffer
    task_id: str
    root_run_id: str
    change: TaskChange
    now_us: int
    is_paused: bool

    def write(self) -> frozenset[str]:
        """Write it; return the workers that hold a step which is to stop."""
        standing = self._standing()
        self._grow(standing)
        for step in self.change.attempts:
            self._try_again(step, standing[step.key])
        for key, priority in sorted(self.change.priorities.items()):
            self.tx.rows(SET_PRIORITY, key=key, task_id=self.task_id, priority=priority)
        workers: set[str] = set()
        for key in sorted(self.change.skipped):
            self._take_out(standing[key], StepEvent.SKIP, workers)
        for key in sorted(self.change.cancelled):
            self._take_out(standing[key], StepEvent.CANCEL, workers)
        self._note()
        return frozenset(workers)

    def _standing(self) -> Mapping[str, _StepState]:
        """Lock what the change touches and return the named steps. Raises: NotFoundError; ConflictError."""
        if self.change.skipped or self.change.cancelled:
            self.tx.rows(LOCK_OPEN, task_id=self.task_id)
        named = sorted(self.change.named)
        rows = self.tx.rows(LOCK_NAMED, task_id=self.task_id, keys=named)
        standing = {step.key: step for step in map(_standing_of, rows)}
        missing = [key for key in named if key not in standing]
        if missing:
            raise NotFoundError("step", missing[0])
        taken = self.tx.value(TAKEN, keys=[step.key for step in self.change.steps])
        if taken is not None:
            raise ConflictError(f"there is a step {taken.partition('/')[2]!r} already")
        return standing

    def _grow(self, standing: Mapping[str, _StepState]) -> None:
        needed = {parent for step in self.change.steps for parent in step.depends_on}
        needed.update(parent for _, parent in self.change.edges)
        joined = self.change.joined
        found = (step for key, step in standing.items() if key in needed)
        done = frozenset(step.key for step in found if not _must_wait(step, is_joined=step.key in joined))
        insert_steps(self.tx, self.run_log, self.change.steps, self.root_run_id, is_paused=self.is_paused, done=done)
        awaited = sorted(needed & standing.keys() - done)
        if awaited:
            self.tx.rows(COUNT_GROWTH, keys=awaited)
        if self.change.edges:
            self._add_edges(standing, done)

    def _add_edges(self, standing: Mapping[str, _StepState], done: frozenset[str]) -> None:
        children = sorted({child for child, _ in self.change.edges})
        for child in children:
            check_still_pending(standing[child].step_id, standing[child].status)
        parents = {key: ids_of(text) for key, text in self.tx.rows(DEPENDENCIES_OF, keys=children)}
        open_: dict[str, int] = {}
        dependents: dict[str, list[str]] = {}
        for child, parent in dict.fromkeys(self.change.edges):
            if (step_id := step_id_of(parent)) in parents[child]:
                continue
            parents[child].append(step_id)
            open_[child] = open_.get(child, 0) + (parent not in done)
            dependents.setdefault(parent, []).append(step_id_of(child))
        more = [(child, number, ids_text(parents[child])) for child, number in sorted(open_.items())]
        self.tx.rows(WAIT_FOR_MORE, keys=sorted(open_), more=more)
        add_dependents(self.tx, dependents)
        edges = self.tx.rows(EDGES_OF_TASK, task_id=self.task_id)
        check_no_circle({key: [step_key(self.task_id, step_id) for step_id in ids_of(text)] for key, text in edges})

    def _try_again(self, step: NewStep, was: _StepState) -> None:
        if was.status is not StepStatus.FAILED or was.is_settled or step.run is None:
            status = f"{was.status}, settled" if was.is_settled else was.status
            raise InvalidTransitionError("step", status, StepEvent.RETRY)
        self.tx.rows(PLAN_AGAIN, **_planned(step))
        self.run_log.create(step.run, RunStatus.QUEUED)
        start_again(self.tx, self.run_log, [(step.key, step.run, None)])
        self.tx.rows(OPEN_ATTEMPT, key=step.key, is_paused=int(self.is_paused))
        self.run_log.note(step.run.identity.run_id, EventType.STEP_READY, step=step.key)

    def _take_out(self, step: _StepState, event: StepEvent, workers: set[str]) -> None:
        """Let a step run no more, and nothing that waits for it."""
        if step.map_key:
            raise ConflictError(f"step {step.step_id!r} is an item of a map step; skip or cancel the map step")
        if step.status is StepStatus.FAILED and not step.is_settled:
            self.tx.rows(SETTLE_ONE, key=step.key)
        else:
            self._stop(step, event, workers)
        skip_below(self.tx, self.run_log, self.task_id, step.key, self.now_us)

    def _stop(self, step: _StepState, event: StepEvent, workers: set[str]) -> None:
        status = advance_step(step.status, event)
        if step.status.is_leased:
            self.tx.rows(ASK_ONE, key=step.key, reason=plain(self.change.reason))
            workers.add(step.worker_id)
            return
        for row in self.tx.rows(CHILDREN_OF, key=step.key) if step.kind.traits.has_items else ():
            self._stop(_standing_of(row), StepEvent.CANCEL, workers)
        if self.tx.count(END_ONE, key=step.key, status=status.value, was=step.status.value, now_us=self.now_us):
            if step.run_id:
                withdraw_of(self.tx, self.run_log, self.task_id, [step.run_id], f"its step was {status}")
            tell_opened(self.run_log, step.run_id or self.root_run_id, step.key, step.gate, step.ready_us)
            type_ = EventType.STEP_SKIPPED if event is StepEvent.SKIP else EventType.STEP_CANCELLED
            self.run_log.note(step.run_id or self.root_run_id, type_, step=step.key, reason=self.change.reason)
            if step.run_id:
                self.run_log.end(step.run_id, RunStatus.CANCELLED, EndReason.CANCELLED)

    def _note(self) -> None:
        change = self.change
        self.run_log.note(
            self.root_run_id,
            EventType.TASK_UPDATED,
            task=self.task_id,
            reason=change.reason,
            added=len(change.steps),
            edges=len(change.edges),
            retried=[step.key for step in change.attempts],
            skipped=list(change.skipped),
            cancelled=list(change.cancelled),
            priorities=dict(change.priorities),
        )


def _standing_of(row: Row) -> _StepState:
    key, step_id, status, kind, gate, map_key, is_settled, on_failure, run_id, worker_id, ready_us = row
    place = (gate, map_key, bool(is_settled), FailurePolicy(on_failure), run_id, worker_id, ready_us)
    return _StepState(key, step_id, StepStatus(status), StepKind(kind), *place)


def _must_wait(step: _StepState, *, is_joined: bool) -> bool:
    place = {"is_settled": step.is_settled, "is_map_child": bool(step.map_key), "is_joined": is_joined}
    return must_wait(step.step_id, step.status, step.on_failure, **place)


def _planned(step: NewStep) -> dict[str, object]:
    return {
        "key": step.key,
        "title": plain(step.title),
        "spec": pack(step.spec.as_json()),
        "definition": step.definition,
        "model": step.model,
        "pool": step.pool,
        "needs": pack(step.needs),
        "lane": lane_of(step.session_id, step.pool, step.needs, step.definition, step.model, step.claim_mode),
        "priority": step.priority,
    }
