"""The owner's side of steps: growing maps, retrying, settling failures."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, assert_never

from sqlalchemy import select

from soong.shared.core.errors import InvalidTransitionError
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import EndReason, NewRun, RunStatus
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.spec import FailurePolicy, StepEvent, StepStatus, advance_step
from soong.shared.engine.tasks.step import NewStep, Outcome, Step, StepError
from soong.shared.engine.tasks.verdict import FailStep, GrowMap, OpenStep, SkipStep, StepVerdict
from soong.shared.storage.sql.claims.readiness import SET_MAP_OUTCOME, root_run_of, tell_opened, unlock_after
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.owned_writes import check_owned, owned_read, owned_step
from soong.shared.storage.sql.engine.row_mapper import pack
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import ReadyRows, Statement
from soong.shared.storage.sql.engine.tables.work import steps, tasks
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.tasks.inserts import note_steps, ready_steps
from soong.shared.storage.sql.tasks.skipping import skip_below
from soong.shared.storage.sql.tasks.task_ends import cancel_all
from soong.shared.storage.sql.tasks.tasks import read_steps, steps_where

MOVE_MAP: Final = Statement(
    "move map: a step that its owner moves to its next status, guarded by the one it has",
    """
    UPDATE steps SET status = :status, open_deps = :open_deps, error = :error, ready_us = NULL, starts = 0,
        outcome = CASE WHEN :status = 'skipped' THEN 'clean' ELSE outcome END,
        ended_us = CASE WHEN :status IN ('completed', 'failed', 'skipped') THEN :now_us ELSE NULL END
    WHERE key = :key AND status = :was
    """,
)

BEGIN_EXPANSION: Final = Statement(
    "begin expansion: count the starts of a map step, which nobody claims",
    "UPDATE steps SET starts = starts + :change WHERE key = :key AND status = 'expanding' RETURNING starts",
)

START_AGAIN: Final = Statement(
    "start again: put an ended step back to pending, with the run of its next attempt (a map step has none)",
    """
    UPDATE steps SET
        status = 'pending', starts = 0, worker_id = '', outcome = NULL, output = NULL, error = NULL, progress = '',
        started_us = NULL, ended_us = NULL, ready_us = NULL, is_settled = 0, cancel_reason = NULL, is_paused = 0,
        is_unparked = 0, holder_run_id = '',
        run_id = CASE WHEN a.run_id = '' THEN steps.run_id ELSE a.run_id END,
        attempt = coalesce(a.attempt, steps.attempt), max_attempts = coalesce(a.max_attempts, steps.max_attempts),
        not_before_us = a.not_before_us
    FROM @again a(key text, run_id text, attempt bigint, max_attempts bigint, not_before_us bigint)
    WHERE steps.key = a.key AND steps.status IN ('completed', 'failed', 'cancelled', 'skipped')
    """,
)

SETTLE: Final = Statement(
    "settle: a failure is final",
    "UPDATE steps SET is_settled = 1 WHERE key = :key AND status = 'failed' AND is_settled = 0",
)

PAUSE_CHILDREN: Final = Statement(
    "pause children: of a map step whose task is paused when it expands",
    "UPDATE steps SET is_paused = 1 WHERE map_key = :key AND map_key <> ''",
)

NEXT_DUE: Final = Statement(
    "next due: when the session's next retry is, of those that wait for their time alone",
    """
    SELECT min(not_before_us) FROM steps
    WHERE session_id = :session_id AND status = 'pending' AND not_before_us IS NOT NULL AND open_deps = 0
    """,
)

PROMOTE: Final = Statement(
    "promote: retries whose time has come become ready",
    """
    UPDATE steps SET status = 'ready', not_before_us = NULL
    WHERE session_id = :session_id AND status = 'pending' AND not_before_us IS NOT NULL
      AND not_before_us <= :now_us AND open_deps = 0
    RETURNING key, run_id
    """,
)


UNSETTLED: Final = steps_where(
    "unsettled failures of a session",
    "steps.session_id = :session_id AND steps.status = 'failed' AND steps.is_settled = 0",
)

OVERDUE: Final = steps_where(
    "overdue steps of a task: those that have failed while their functions still run",
    "steps.task_id = :task_id AND steps.status = 'running' AND steps.error IS NOT NULL",
)


@cache
def _steps_that_are(status: StepStatus) -> Statement:
    """Return the read of a session's steps of one status, written out as the partial indexes have it."""
    return steps_where(f"{status} steps of a session", f"steps.session_id = :session_id AND steps.status = '{status}'")


class SqlFailures(StorePart):
    """The part of the task store in which the owner grows, retries and settles steps."""

    async def steps_in(self, ownership: Ownership, status: StepStatus) -> Sequence[Step]:
        return await self._steps(ownership, _steps_that_are(status), session_id=ownership.session_id)

    async def failures(self, ownership: Ownership) -> Sequence[Step]:
        return await self._steps(ownership, UNSETTLED, session_id=ownership.session_id)

    async def overdue(self, ownership: Ownership, task_id: str) -> Sequence[Step]:
        return await self._steps(ownership, OVERDUE, task_id=task_id)

    async def _steps(self, ownership: Ownership, wanted: Statement, **named: str) -> Sequence[Step]:
        return await self._database.read(owned_read(ownership, lambda tx: read_steps(tx, wanted, **named)))

    async def begin_expansion(self, ownership: Ownership, step_key: str, *, is_taken_back: bool = False) -> int:
        def write(tx: Transaction) -> int:
            owned_step(tx, ownership, step_key)
            return int(tx.value(BEGIN_EXPANSION, key=step_key, change=-1 if is_taken_back else 1) or 0)

        return await self._database.write(write)

    async def write_verdict(self, ownership: Ownership, step_key: str, verdict: StepVerdict, *, now_us: int) -> bool:
        children = verdict.children if isinstance(verdict, GrowMap) else ()
        ready = await asyncio.to_thread(_child_rows, children, now_us, is_postgres=self._database.is_postgres)

        def write(tx: Transaction, run_log: RunLogBuffer) -> bool:
            status, gate, task_id, *_, run_id, _, ready_us = owned_step(tx, ownership, step_key)
            if status != StepStatus.EXPANDING:
                return False
            writer = _VerdictWriter(tx, run_log, step_key, task_id, run_id or root_run_of(tx, task_id), now_us)
            tell_opened(run_log, writer.log_run_id, step_key, gate, ready_us)
            writer.write(verdict, ready, has_run=bool(run_id))
            return True

        return await self._write_logged(write, now_us)

    async def retry_step(
        self, ownership: Ownership, step_key: str, run: NewRun, *, not_before_us: int, now_us: int
    ) -> None:
        def write(tx: Transaction, run_log: RunLogBuffer) -> None:
            status, *_, is_settled, _, _, _ = owned_step(tx, ownership, step_key)
            if is_settled:
                raise InvalidTransitionError("step", f"{status}, settled", StepEvent.RETRY)
            if status != StepStatus.FAILED:
                advance_step(StepStatus(status), StepEvent.RETRY)
                raise InvalidTransitionError("step", status, StepEvent.RETRY)
            run_log.create(run, RunStatus.QUEUED)
            start_again(tx, run_log, [(step_key, run, not_before_us)])
            paused = select(tasks.c.id).where((tasks.c.id == steps.c.task_id) & (tasks.c.status == "paused")).exists()
            tx.execute(steps.update().where((steps.c.key == step_key) & paused).values(is_paused=1))

        await self._write_logged(write, now_us)

    async def promote_due(self, ownership: Ownership, *, now_us: int) -> int | None:
        due_us = await self._database.read(owned_read(ownership, lambda tx: _next_due(tx, ownership)))
        if due_us is None or due_us > now_us:
            return due_us

        def write(tx: Transaction, run_log: RunLogBuffer) -> int | None:
            check_owned(tx, ownership)
            for key, run_id in tx.paced(tx.rows(PROMOTE, session_id=ownership.session_id, now_us=now_us)):
                run_log.note(run_id, EventType.STEP_READY, step=key)
            return _next_due(tx, ownership)

        return await self._write_logged(write, now_us)

    async def settle_failure(self, ownership: Ownership, step_key: str, policy: FailurePolicy, *, now_us: int) -> None:
        def write(tx: Transaction, run_log: RunLogBuffer) -> None:
            status, _, task_id, step_id, map_key, is_settled, *_ = owned_step(tx, ownership, step_key)
            if status != StepStatus.FAILED:
                raise InvalidTransitionError("step", status, "settle")
            if is_settled or not tx.count(SETTLE, key=step_key):
                return
            match policy:
                case FailurePolicy.KEEP:
                    unlock_after(tx, [step_key], now_us)
                case FailurePolicy.SKIP_DEPENDENTS:
                    skip_below(tx, run_log, task_id, step_key, now_us)
                    if map_key:
                        error = StepError("failed", f"its item {step_id} failed")
                        _fail_map(tx, run_log, map_key, task_id, StepStatus.WAITING, error, now_us)
                case FailurePolicy.FAIL_TASK:
                    cancel_all(tx, run_log, task_id, f"step {step_id} failed", now_us)
                case _:
                    assert_never(policy)

        await self._write_logged(write, now_us)


def _next_due(tx: Transaction, ownership: Ownership) -> int | None:
    due_us: int | None = tx.rows(NEXT_DUE, session_id=ownership.session_id)[0][0]
    return due_us


def start_again(tx: Transaction, run_log: RunLogBuffer, again: Sequence[tuple[str, NewRun | None, int | None]]) -> None:
    """Put ended steps back to pending, each with its new run, if it has one, until its time, if it has one."""
    ordered = sorted(again, key=lambda item: item[0])
    tx.rows(
        START_AGAIN,
        again=[
            (
                key,
                run.identity.run_id if run else "",
                run.attempt if run else None,
                run.max_attempts if run else None,
                not_before_us,
            )
            for key, run, not_before_us in ordered
        ],
    )
    for key, run, _ in tx.paced(ordered):
        if run is not None:
            run_log.note(run.identity.run_id, EventType.STEP_RETRIED, step=key, attempt=run.attempt)


def _child_rows(children: Sequence[NewStep], now_us: int, *, is_postgres: bool) -> Sequence[ReadyRows]:
    """Build the rows of a map step's children, and of their runs and logs, if they have runs."""
    run_log = RunLogBuffer(now_us)
    note_steps(run_log, [child for child in children if child.run is not None], "")
    return (ready_steps(children, is_postgres=is_postgres), *run_log.ready(is_postgres=is_postgres))


@dataclass(slots=True)
class _VerdictWriter:
    """Writes the verdict on an expanding step, which is locked."""

    tx: Transaction
    run_log: RunLogBuffer
    key: str
    task_id: str
    log_run_id: str
    now_us: int

    def write(self, verdict: StepVerdict, rows: Sequence[ReadyRows], *, has_run: bool) -> None:
        match verdict:
            case OpenStep():
                self._move(StepStatus.READY)
                self.run_log.note(self.log_run_id, EventType.STEP_READY, step=self.key)
            case SkipStep(reason=reason):
                self._move(StepStatus.SKIPPED, error=StepError("condition", reason))
                self.run_log.note(self.log_run_id, EventType.STEP_SKIPPED, step=self.key, reason=reason)
                if has_run:
                    self.run_log.end(self.log_run_id, RunStatus.CANCELLED, EndReason.CANCELLED)
                skip_below(self.tx, self.run_log, self.task_id, self.key, self.now_us, outcome=Outcome.CLEAN)
            case FailStep(error=error):
                self._move(StepStatus.FAILED, error=error)
                self.run_log.note(self.log_run_id, EventType.STEP_FAILED, step=self.key, **error.as_json())
                if has_run:
                    self.run_log.end(self.log_run_id, RunStatus.FAILED, EndReason.FAILED)
            case GrowMap(children=children):
                self._grow(children, rows)
            case _:
                assert_never(verdict)

    def _move(self, status: StepStatus, *, open_deps: int = 0, error: StepError | None = None) -> None:
        move_map(self.tx, self.key, StepStatus.EXPANDING, status, self.now_us, open_deps=open_deps, error=error)

    def _grow(self, children: Sequence[NewStep], rows: Sequence[ReadyRows]) -> None:
        self.run_log.note(self.log_run_id, EventType.STEP_EXPANDED, step=self.key, items=len(children))
        if not children:
            complete_map(self.tx, self.run_log, self.key, self.task_id, StepStatus.EXPANDING, self.now_us)
            return
        self._move(StepStatus.WAITING, open_deps=len(children))
        note_steps(self.run_log, [child for child in children if child.run is None], self.log_run_id)
        for ready in rows:
            self.tx.put(*ready)
        if self.tx.execute(select(tasks.c.status).where(tasks.c.id == self.task_id)).scalar_one() == "paused":
            self.tx.rows(PAUSE_CHILDREN, key=self.key)


def move_map(
    tx: Transaction,
    step_key: str,
    was: StepStatus,
    status: StepStatus,
    now_us: int,
    *,
    open_deps: int = 0,
    error: StepError | None = None,
) -> bool:
    """Move a map step if it still is what it ``was``."""
    text = None if error is None else pack(error.as_json())
    parameters = {"key": step_key, "was": was.value, "status": status.value, "open_deps": open_deps}
    return tx.count(MOVE_MAP, error=text, now_us=now_us, **parameters) > 0


def complete_map(
    tx: Transaction, run_log: RunLogBuffer, step_key: str, task_id: str, was: StepStatus, now_us: int
) -> None:
    """Complete a map step all of whose children have ended, or that has none, and unlock what waits for it."""
    if move_map(tx, step_key, was, StepStatus.COMPLETED, now_us):
        tx.rows(SET_MAP_OUTCOME, keys=[step_key])
        run_log.note(root_run_of(tx, task_id), EventType.STEP_COMPLETED, step=step_key)
        unlock_after(tx, [step_key], now_us)


def _fail_map(
    tx: Transaction, run_log: RunLogBuffer, step_key: str, task_id: str, was: StepStatus, error: StepError, now_us: int
) -> None:
    if move_map(tx, step_key, was, StepStatus.FAILED, now_us, error=error):
        run_log.note(root_run_of(tx, task_id), EventType.STEP_FAILED, step=step_key, **error.as_json())
