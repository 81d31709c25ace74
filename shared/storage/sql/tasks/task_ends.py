"""The end of a task, as its owner writes it, with that of a session that is to end with it; asks and their ends."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import EndReason, RunStatus
from soong.shared.engine.runs.store import CallAbort
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.asks import OpenAsk, spec_of_ask
from soong.shared.engine.tasks.claims import ended_with_worker, poisoned
from soong.shared.engine.tasks.spec import StepStatus, TaskEvent, TaskStatus, advance_task
from soong.shared.engine.tasks.step import Claim, Lease, StepEnd
from soong.shared.storage.sql.claims.claim_context import CLAIM_CONTEXT
from soong.shared.storage.sql.claims.parking import withdraw_of
from soong.shared.storage.sql.claims.readiness import root_run_of, tell_opened
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.owned_writes import check_owned, owned_read, owned_task
from soong.shared.storage.sql.engine.row_mapper import pack, plain, unpack
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Row, Transaction
from soong.shared.storage.sql.tasks.run_writes import RunWrite, append_held

MOVE_TASK: Final = Statement(
    "move task: to its next status; its folders are to be written again, unless none is to be written",
    """
    UPDATE tasks SET status = :status, reason = :reason, ended_us = :ended_us, is_recorded = :is_recorded
    WHERE id = :task_id
    """,
)
FEW_RUNS: Final = 32
"""More are not read in the transaction that ends their task: their pending records are found later."""
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

FREE_STEPS: Final = Statement(
    "free steps: their holder gives them back; those that were asked to stop end instead",
    """
    UPDATE steps SET
        status = CASE WHEN cancel_reason IS NULL THEN 'ready' ELSE 'cancelled' END,
        ended_us = CASE WHEN cancel_reason IS NULL THEN ended_us ELSE :now_us END,
        error = NULL, worker_id = CASE WHEN cancel_reason IS NULL THEN '' ELSE steps.worker_id END,
        holder_run_id = CASE WHEN cancel_reason IS NULL THEN '' ELSE steps.holder_run_id END
    FROM @held h(key text, run_id text, fence bigint)
    WHERE steps.key = h.key AND steps.run_id = h.run_id AND steps.fence = h.fence
      AND steps.worker_id || '' = :worker_id AND steps.status = 'running'
    RETURNING steps.key, steps.run_id, steps.fence, status, session_id, coalesce(cancel_reason, '')
    """,
)

EXPIRE_LEASES: Final = Statement(
    "expire leases: all of a worker that is gone; each fence grows here already, so that nobody takes the next holder "
    "for this one; a step with an error had failed, and its function ended with the worker",
    """
    UPDATE steps SET
        lost_leases = lost_leases + 1, lost_to = :because, fence = fence + 1,
        status = CASE WHEN cancel_reason IS NOT NULL THEN 'cancelled'
                      WHEN error IS NOT NULL OR lost_leases + 1 >= :most THEN 'failed' ELSE 'ready' END,
        ended_us = CASE WHEN coalesce(cancel_reason, error) IS NOT NULL OR lost_leases + 1 >= :most
                        THEN :now_us ELSE ended_us END,
        worker_id = CASE WHEN coalesce(cancel_reason, error) IS NOT NULL OR lost_leases + 1 >= :most
                         THEN worker_id ELSE '' END,
        holder_run_id = CASE WHEN coalesce(cancel_reason, error) IS NOT NULL OR lost_leases + 1 >= :most
                             THEN holder_run_id ELSE '' END
    WHERE worker_id = :worker_id AND status = 'running'
    /*pg AND key IN (SELECT key FROM steps WHERE worker_id = :worker_id AND status = 'running'
                         ORDER BY key FOR UPDATE) */
    RETURNING key, run_id, fence, status, session_id, coalesce(cancel_reason, ''), lost_leases,
              coalesce(error, '') <> ''
    """,
)

SET_ERRORS: Final = Statement(
    "set errors: why steps failed",
    "UPDATE steps SET error = f.error FROM @failed f(key text, error text) WHERE steps.key = f.key",
)

CANCEL_STEPS: Final = Statement(
    "cancel steps: all of a task that neither ended nor are leased",
    """
    UPDATE steps SET status = 'cancelled', ended_us = :now_us
    WHERE task_id = :task_id AND status IN ('pending', 'ready', 'blocked', 'expanding', 'waiting')
    /*pg AND key IN (SELECT key FROM steps WHERE task_id = :task_id
                         AND status IN ('pending', 'ready', 'blocked', 'expanding', 'waiting')
                         ORDER BY key FOR UPDATE) */
    RETURNING key, run_id, gate, CASE WHEN starts = 0 THEN ready_us END
    """,
)
ASK_TO_STOP: Final = Statement(
    "ask to stop: all leased steps of a task",
    """
    UPDATE steps SET cancel_reason = :reason WHERE task_id = :task_id AND status = 'running'
    /*pg AND key IN (SELECT key FROM steps WHERE task_id = :task_id AND status = 'running'
                         ORDER BY key FOR UPDATE) */
    RETURNING worker_id
    """,
)
SETTLE_ALL: Final = Statement(
    "settle all: the failures of a task are final",
    "UPDATE steps SET is_settled = 1 WHERE task_id = :task_id AND status = 'failed' AND is_settled = 0",
)


def move_task(
    tx: Transaction, task_id: str, status: TaskStatus, reason: str, ended_us: int | None, *, is_recorded: bool = False
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
    *,
    end: StepEnd | None = None,
    is_recorded: bool = False,
) -> TaskStatus:
    """End a task with its root run, which the ``end`` of an ask's agent is of; return its status."""
    status = advance_task(was, event)
    move_task(tx, task_id, status, reason, now_us, is_recorded=is_recorded)
    note, run_status, end_reason = _ENDS[event]
    run_log.note(root_run_id, note, task=task_id, reason=reason)
    run_log.end(root_run_id, run_status, end.end_reason if end else end_reason, end.usage if end else None)
    return status


def free_steps(
    tx: Transaction, run_log: RunLogBuffer, worker_id: str, held: Sequence[Lease], reason: str, now_us: int
) -> frozenset[str]:
    """Return leased steps to ready; the run ids of those that are not held (any more) are returned."""
    ordered = sorted({(lease.step_key, lease.run_id, lease.fence) for lease in held})
    rows = tx.rows(FREE_STEPS, held=ordered, worker_id=worker_id, now_us=now_us)
    for row in rows:
        _note_freed(run_log, row, EventType.STEP_RELEASED, reason)
    freed = {(key, run_id, fence) for key, run_id, fence, *_ in rows}
    return frozenset(run_id for key, run_id, fence in ordered if (key, run_id, fence) not in freed)


def expire_leases(
    tx: Transaction, run_log: RunLogBuffer, worker_id: str, max_lost_leases: int, now_us: int, because: str
) -> frozenset[str]:
    """End all leases of a worker that is gone, ``because`` of what; return the sessions concerned."""
    because = plain(because)
    rows = tx.rows(EXPIRE_LEASES, worker_id=worker_id, most=max_lost_leases, now_us=now_us, because=because)
    failed = []
    for row in tx.paced(rows):
        key, run_id, fence, status, *_, lost, had_failed = row
        if status != "failed":
            _note_freed(run_log, row, EventType.STEP_LEASE_EXPIRED, because)
            continue
        error = poisoned(lost, because) if not had_failed else ended_with_worker(because)
        failed.append((key, pack(error.as_json())))
        run_log.note(run_id, EventType.STEP_LEASE_EXPIRED, step=key, reason=because, fence=fence)
        run_log.note(run_id, EventType.STEP_FAILED, step=key, **error.as_json())
        run_log.end(run_id, RunStatus.FAILED, EndReason.LEASE_LOST)
    if failed:
        tx.rows(SET_ERRORS, failed=failed)
    return frozenset(session_id for _, _, _, _, session_id, *_ in rows)


def _note_freed(run_log: RunLogBuffer, row: Row, type_: EventType, reason: str) -> None:
    key, run_id, fence, status, _, stop, *_ = row
    run_log.note(run_id, type_, step=key, reason=reason, fence=fence)
    if status == "cancelled":
        run_log.note(run_id, EventType.STEP_CANCELLED, step=key, reason=stop)
        run_log.end(run_id, RunStatus.CANCELLED, EndReason.CANCELLED)
    else:
        run_log.release(run_id)


def cancel_all(tx: Transaction, run_log: RunLogBuffer, task_id: str, reason: str, now_us: int) -> frozenset[str]:
    """Cancel what is not leased, ask for the rest; return the workers that hold it. Failures become final."""
    asked = {"task_id": task_id, "reason": plain(reason)}
    tx.rows(ASK_TO_STOP, **asked)
    tx.rows(SETTLE_ALL, task_id=task_id)
    root_run_id = root_run_of(tx, task_id)
    _cancel_unheld(tx, run_log, task_id, root_run_id, reason, now_us)
    # Once more for what was claimed, parked and what failed, between these; nothing can be claimed any more.
    workers = frozenset(tx.column(ASK_TO_STOP, **asked))
    _cancel_unheld(tx, run_log, task_id, root_run_id, reason, now_us)
    tx.rows(SETTLE_ALL, task_id=task_id)
    return workers


def cancel_unheld(tx: Transaction, run_log: RunLogBuffer, task_id: str, reason: str, now_us: int) -> None:
    """Cancel what is not leased, and leave the rest to end by itself. Failures become final."""
    root_run_id = root_run_of(tx, task_id)
    tx.rows(SETTLE_ALL, task_id=task_id)
    _cancel_unheld(tx, run_log, task_id, root_run_id, reason, now_us)
    tx.rows(SETTLE_ALL, task_id=task_id)


def _cancel_unheld(
    tx: Transaction, run_log: RunLogBuffer, task_id: str, root_run_id: str, reason: str, now_us: int
) -> None:
    """Cancel what nobody holds, with its run and the questions that wait."""
    cancelled = sorted(tx.rows(CANCEL_STEPS, task_id=task_id, now_us=now_us))
    withdraw_of(tx, run_log, task_id, [run_id for _, run_id, *_ in cancelled if run_id], "its step was cancelled")
    for key, run_id, gate, ready_us in tx.paced(cancelled):
        tell_opened(run_log, run_id or root_run_id, key, gate, ready_us)
        run_log.note(run_id or root_run_id, EventType.STEP_CANCELLED, step=key, reason=reason)
        if run_id:
            run_log.end(run_id, RunStatus.CANCELLED, EndReason.CANCELLED)


OPEN_ASKS: Final = Statement(
    "open asks: of a session, with the calls of their agents that were aborted",
    """
    SELECT t.id, t.root_run_id, t.status, a.tool_call_id, a.reason
    FROM tasks AS t LEFT JOIN call_aborts AS a ON a.run_id = t.root_run_id
    WHERE t.session_id = :session_id AND t.status IN ('running', 'paused') AND t.kind = 'ask' ORDER BY t.ordinal
    """,
)
TAKE_UP: Final = Statement(
    "take up: hold the root run of an ask under a new fence; no row means that it has ended",
    """
    UPDATE runs SET fence = fence + 1, worker_id = :owner_id, status = 'running',
        started_us = CASE WHEN fence = 0 THEN :now_us ELSE started_us END
    WHERE id = :run_id AND end_reason IS NULL RETURNING fence
    """,
)
PUT_DOWN: Final = Statement(
    "put down: a run that this owner holds goes back to the queue",
    """
    UPDATE runs SET status = 'queued', worker_id = ''
    WHERE id = :run_id AND fence = :fence AND status = 'running' AND worker_id = :owner_id
    """,
)
ASKED: Final = Statement("asked: what the agent of an ask is to do", "SELECT plan FROM tasks WHERE id = :task_id")

_ASK_ENDS: Final = {
    StepStatus.COMPLETED: TaskEvent.COMPLETE,
    StepStatus.FAILED: TaskEvent.FAIL,
    StepStatus.CANCELLED: TaskEvent.CANCEL,
}


class SqlAskStore(StorePart):
    """Implements :class:`soong.shared.engine.tasks.asks.AskStore`."""

    async def open_asks(self, ownership: Ownership) -> Sequence[OpenAsk]:
        def read(tx: Transaction) -> list[OpenAsk]:
            return _open_asks(tx.rows(OPEN_ASKS, session_id=ownership.session_id))

        return await self._database.read(owned_read(ownership, read))

    async def take_up(self, ownership: Ownership, task_id: str, *, now_us: int) -> Claim | None:
        def write(tx: Transaction) -> Claim | None:
            status, run_id, _ = owned_task(tx, ownership, task_id)
            if status != TaskStatus.RUNNING.value:
                return None
            held = tx.rows(TAKE_UP, run_id=run_id, owner_id=ownership.owner_id, now_us=now_us)
            return self._claim(tx, task_id, run_id, held[0][0], now_us) if held else None

        return await self._database.write(write)

    async def put_down(self, ownership: Ownership, run_id: str, fence: int) -> None:
        def write(tx: Transaction) -> None:
            check_owned(tx, ownership)
            tx.count(PUT_DOWN, run_id=run_id, fence=fence, owner_id=ownership.owner_id)

        await self._database.write(write)

    async def end_ask(self, ownership: Ownership, task_id: str, end: StepEnd, *, now_us: int) -> frozenset[str]:
        def write(tx: Transaction, run_log: RunLogBuffer) -> frozenset[str]:
            was, root_run_id, _ = owned_task(tx, ownership, task_id)
            if TaskStatus(was).is_terminal:
                return frozenset()
            append_held(tx, RunWrite(end.run_id, end.fence, now_us, end.nodes, end.events))
            reason = end.error.message if end.error else ""
            workers = cancel_all(tx, run_log, task_id, "the run that started it has ended", now_us)
            end_task(tx, run_log, task_id, root_run_id, TaskStatus(was), _ASK_ENDS[end.status], reason, now_us, end=end)
            return workers

        return await self._write_logged(write, now_us)

    def _claim(self, tx: Transaction, task_id: str, run_id: str, fence: int, now_us: int) -> Claim:
        run_log = RunLogBuffer(now_us)
        run_log.note(run_id, EventType.RUN_STARTED if fence == 1 else EventType.RUN_RESUMED, fence=fence)
        run_log.flush(tx)
        context = self._contexts.of_runs(tx, tx.rows(CLAIM_CONTEXT, run_ids=[run_id]))
        run = context.runs[run_id]
        return context.claim_of(
            run,
            step_key="",
            fence=fence,
            spec=spec_of_ask(unpack(tx.value(ASKED, task_id=task_id))),
            dependencies={},
            attempt=1,
            is_resumed=run.last_node > 0,
        )


def _open_asks(rows: Iterable[tuple[Any, ...]]) -> list[OpenAsk]:
    found: dict[str, OpenAsk] = {}
    for task_id, run_id, status, tool_call_id, reason in rows:
        ask = found.setdefault(task_id, OpenAsk(task_id, run_id, TaskStatus(status)))
        if tool_call_id is not None:
            found[task_id] = replace(ask, aborts=(*ask.aborts, CallAbort(run_id, tool_call_id, reason)))
    return list(found.values())
