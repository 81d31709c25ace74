"""Requests, answers and decisions. A request's identity is always its run's row, whatever the raiser sent."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from soong.shared.core.errors import AlreadyDecidedError, ConflictError, LeaseLostError, NotOwnerError
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.sessions.session import Ownership
from soong.shared.permissions.audit_log import of_dropped_questions, of_stale_owner, of_withdrawn
from soong.shared.permissions.request import Answer, Decision, PermissionRequest, Question, RequestState
from soong.shared.permissions.store import ClosedQuestion, DecisionReceipt, OpenQuestions
from soong.shared.storage.sql.claims.parking import note_withdrawn
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.consent.answering import (
    GIVEN,
    GivenAnswer,
    WantedDecision,
    note_late,
    write_answers,
    write_decisions,
)
from soong.shared.storage.sql.consent.questions import (
    STILL_PENDING,
    close_unread,
    open_questions_of,
    pending_of,
    question_of,
    questions_of,
    settled_of,
    withdrawn,
)
from soong.shared.storage.sql.engine.owned_writes import check_owned, report
from soong.shared.storage.sql.engine.rows import answer_of, decision_of, request_body
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.tasks.run_writes import RunWrite, append_held, check_held, send_writes
from soong.shared.tools.ports import ASK_MARK

DECISION: Final = Statement("decision: of a question", "SELECT body FROM decisions WHERE request_id = :request_id")
HELD_OF_CALL: Final = Statement(
    "held of call: its pending question, held before its run is, as by the one who decides it",
    """
    SELECT id FROM permission_requests
    WHERE run_id = :run_id AND tool_call_id = :tool_call_id AND state = 'pending' /*pg FOR UPDATE */
    """,
)
HELD_CUT_OFF: Final = Statement(
    "held cut off: the pending questions that calls of a run raised while they ran, held before the run is",
    """
    SELECT id FROM permission_requests
    WHERE run_id = :run_id AND state = 'pending' AND tool_call_id LIKE :asked ORDER BY id /*pg FOR UPDATE */
    """,
)
EXPIRE_DECISION: Final = Statement(
    "expire decision: the decided question of a call whose decision was not used",
    """
    UPDATE permission_requests SET state = 'expired'
    WHERE run_id = :run_id AND tool_call_id = :tool_call_id AND state = 'decided'
      AND NOT EXISTS (SELECT 1 FROM consumptions WHERE decision_id = (
          SELECT decisions.id FROM decisions WHERE decisions.request_id = permission_requests.id))
    RETURNING id
    """,
)
WITHDRAW_ORPHANS: Final = Statement(
    "withdraw orphans: the pending questions of runs that have ended",
    """
    UPDATE permission_requests SET state = 'withdrawn'
    WHERE session_id = :session_id AND state = 'pending'
      AND (SELECT end_reason FROM runs WHERE runs.id = permission_requests.run_id) IS NOT NULL
    RETURNING id, run_id, tool_call_id
    """,
)
DROP_EXCESS: Final = Statement(
    "drop excess: all that a run asks but what is kept; how much that is decides nothing about the cost of the answer",
    """
    UPDATE permission_requests SET state = 'withdrawn'
    WHERE session_id = :session_id AND run_id = :run_id AND state = 'pending' AND NOT (id IN @kept)
    """,
)

RAISE: Final = Statement(
    "raise: a question of a run while it is held, as row checks want it; no row then means that its id is another's",
    """
    INSERT INTO permission_requests (id, run_id, session_id, tool_call_id, created_us, body)
    SELECT :id, id, session_id, :tool_call_id, :created_us, :body FROM runs
    WHERE id = :run_id AND fence = :fence AND status = 'running'
    ON CONFLICT DO NOTHING RETURNING id
    """,
)
HOLD: Final = Statement(
    "hold: a run by its lease, so that its calls are asked about one after another",
    "SELECT id FROM runs WHERE id = :run_id AND fence = :fence AND status = 'running' /*pg FOR UPDATE */",
)
STANDING: Final = Statement(
    "standing: the question of a call that is open or decided",
    """
    SELECT id FROM permission_requests
    WHERE run_id = :run_id AND tool_call_id = :tool_call_id AND state IN ('pending', 'decided')
    """,
)


class SqlConsentStore(StorePart):
    """Implements :class:`soong.shared.permissions.store.ConsentStore`.

    Decisions, answers and closes are written with audit entries, or not at all.
    """

    async def raise_request(self, request: PermissionRequest, *, events: Sequence[NewEvent], now_us: int) -> str:
        return await self._database.write(lambda tx: raise_question(tx, request, events, now_us))

    async def request(self, request_id: str) -> tuple[PermissionRequest, RequestState]:
        return await self._database.read(lambda tx: question_of(tx, request_id))

    async def pending(self, session_id: str, *, limit: int = 10_000) -> Sequence[PermissionRequest]:
        found, unread = await self._database.read(lambda tx: pending_of(tx, session_id, limit))
        if unread:
            await self._database.write(lambda tx: close_unread(tx, self._trail, unread))
        return found

    async def open_questions(self, session_id: str, *, limit: int) -> OpenQuestions | None:
        found, unread = await self._database.read(lambda tx: open_questions_of(tx, session_id, limit))
        if unread:
            await self._database.write(lambda tx: close_unread(tx, self._trail, unread))
        return found

    async def settled(self, request_id: str) -> ClosedQuestion | None:
        return await self._database.read(lambda tx: settled_of(tx, request_id))

    async def still_pending(self, request_ids: Sequence[str]) -> frozenset[str]:
        ids = list(request_ids)
        return frozenset(await self._database.read(lambda tx: tx.column(STILL_PENDING, ids=ids)))

    async def questions(
        self, *, session_id: str = "", include_closed: bool = False, beyond: str = "", limit: int = 1000
    ) -> Sequence[Question]:
        return await self._database.read(lambda tx: questions_of(tx, session_id, include_closed, beyond, limit))

    async def drop_excess(self, ownership: Ownership, run_id: str, kept: Sequence[str], *, now_us: int) -> int:
        def write(tx: Transaction, run_log: RunLogBuffer) -> int:
            check_owned(tx, ownership)
            named = {"session_id": ownership.session_id, "run_id": run_id}
            closed = tx.count(DROP_EXCESS, kept=list(kept), **named)
            if closed:
                note = of_dropped_questions(ownership.session_id, run_id, closed)
                run_log.note(run_id, EventType.SECURITY, **note.data)
                self._trail.note(tx, [note], now_us)
            return closed

        return await self._write_logged(write, now_us)

    async def answer(self, answer: Answer) -> None:
        # Words may hold a key that was typed at the wrong place: neither a row nor the asker gets it.
        answer = replace(answer, reason=self._trail.redactor.text(answer.reason))
        try:
            await self._database.write_together(write_answers, GivenAnswer(self._trail, answer))
        except AlreadyDecidedError as error:
            state = error.state
            await self._database.write(lambda tx: note_late(tx, self._trail, answer, state))
            raise

    async def answer_of(self, request_id: str) -> Answer | None:
        row = await self._database.read(lambda tx: tx.first(GIVEN, request_id=request_id))
        return None if row is None else answer_of(row)

    async def decide(
        self,
        ownership: Ownership,
        decision: Decision,
        *,
        state: RequestState,
        events: Sequence[NewEvent],
        now_us: int,
        if_unanswered: bool = False,
    ) -> DecisionReceipt:
        wanted = WantedDecision(self._trail, ownership, decision, state, events, now_us, if_unanswered)
        try:
            return await self._database.write_together(write_decisions, wanted)
        except NotOwnerError:
            note = of_stale_owner(decision, ownership.owner_id, ownership.epoch)
            await self._database.write(lambda tx: self._trail.note(tx, [note], now_us))
            raise

    async def decision_of(self, request_id: str) -> Decision | None:
        body = await self._database.read(lambda tx: tx.value(DECISION, request_id=request_id))
        return None if body is None else decision_of(body)

    async def withdraw(self, run_id: str, tool_call_id: str, fence: int, *, reason: str, now_us: int) -> None:
        held = partial(Transaction.column, statement=HELD_OF_CALL, run_id=run_id, tool_call_id=tool_call_id)
        await self._withdraw(held, RunWrite(run_id, fence, now_us), reason)

    async def withdraw_cut_off(self, run_id: str, fence: int, *, reason: str, now_us: int) -> Sequence[str]:
        held = partial(Transaction.column, statement=HELD_CUT_OFF, run_id=run_id, asked=f"%{ASK_MARK}%")
        return await self._withdraw(held, RunWrite(run_id, fence, now_us), reason)

    async def _withdraw(self, hold: Callable[[Transaction], list[str]], own: RunWrite, reason: str) -> list[str]:
        """Withdraw questions of a run, which are held before it is. Raises: LeaseLostError."""

        def write(tx: Transaction) -> list[str]:
            ids = hold(tx)
            append_held(tx, own)
            rows = sorted(withdrawn(tx, ids))
            _note_withdrawn(tx, rows, reason, own.now_us)
            for request_id, run_id, tool_call_id in rows:
                data = {"request_id": request_id, "tool_call_id": tool_call_id, "reason": reason}
                report(tx, run_id, [NewEvent(EventType.PERMISSION_WITHDRAWN, data)], own.now_us)
            return [request_id for request_id, *_ in rows]

        return await self._database.write(write)

    async def expire_decision(self, run_id: str, tool_call_id: str, fence: int, *, now_us: int) -> bool:
        def write(tx: Transaction, run_log: RunLogBuffer) -> bool:
            append_held(tx, RunWrite(run_id, fence, now_us))
            rows = tx.rows(EXPIRE_DECISION, run_id=run_id, tool_call_id=tool_call_id)
            for (request_id,) in rows:
                run_log.note(run_id, EventType.PERMISSION_EXPIRED, request_id=request_id, tool_call_id=tool_call_id)
            return bool(rows)

        return await self._write_logged(write, now_us)

    async def withdraw_orphans(self, session_id: str, *, now_us: int) -> Sequence[str]:
        def write(tx: Transaction) -> list[str]:
            rows = sorted(tx.rows(WITHDRAW_ORPHANS, session_id=session_id))
            _note_withdrawn(tx, rows, "its run has ended", now_us)
            notes = [of_withdrawn(session_id, run, request, call, "its run has ended") for request, run, call in rows]
            self._trail.note(tx, notes, now_us)
            return [request_id for request_id, *_ in rows]

        return await self._database.write(write)


def _note_withdrawn(tx: Transaction, rows: Sequence[tuple[str, ...]], reason: str, now_us: int) -> None:
    run_log = RunLogBuffer(now_us)
    note_withdrawn(run_log, rows, reason)
    run_log.flush(tx)


def raise_question(tx: Transaction, request: PermissionRequest, events: Sequence[NewEvent], now_us: int) -> str:
    """Raise a question, or return the id of the one that its call has. Raises: LeaseLostError."""
    run_id = request.identity.run_id
    with tx.pipeline():
        held = tx.send(HOLD, run_id=run_id, fence=request.fence)
        standing_reply = tx.send(STANDING, run_id=run_id, tool_call_id=request.tool_call_id)
    if not held():
        raise LeaseLostError(run_id, request.fence)
    if standing := standing_reply():
        return str(standing[0][0])
    with tx.pipeline():
        outcomes = send_writes(tx, [RunWrite(run_id, request.fence, now_us, (), events)])
        reply = tx.send(
            RAISE,
            id=request.id,
            run_id=run_id,
            fence=request.fence,
            tool_call_id=request.tool_call_id,
            created_us=request.created_us,
            body=request_body(request),
        )
    check_held(outcomes())
    if not reply():
        raise ConflictError(f"question {request.id} cannot be raised: its id is another question's")
    return request.id
