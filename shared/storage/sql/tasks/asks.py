"""Asks: root runs that are agents, held by the owner of their session."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.store import CallAbort
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.asks import OpenAsk, spec_of_ask
from soong.shared.engine.tasks.spec import StepStatus, TaskEvent, TaskStatus
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.storage.sql.claims.claim_context import CLAIM_CONTEXT
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.owned_writes import check_owned, owned_read, owned_task
from soong.shared.storage.sql.engine.row_mapper import unpack
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.tasks.run_writes import RunWrite, append_held
from soong.shared.storage.sql.tasks.task_ends import cancel_all, end_task

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

_ENDS: Final = {
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
            end_task(tx, run_log, task_id, root_run_id, TaskStatus(was), _ENDS[end.status], reason, now_us, end=end)
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
