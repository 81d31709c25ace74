"""Requests, answers and decisions. A request's identity is always its run's row, whatever the raiser said."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from sqlalchemy import select

from soong.shared.core.errors import AlreadyDecidedError, LeaseLostError, NotFoundError, NotOwnerError
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.status import RunStatus
from soong.shared.engine.sessions.session import Ownership
from soong.shared.permissions.audit_log.notes import (
    of_answer,
    of_decision,
    of_dropped_questions,
    of_late_answer,
    of_stale_owner,
    of_withdrawn,
)
from soong.shared.permissions.request import Answer, Decision, PermissionRequest, Question, RequestState
from soong.shared.permissions.store import AnswerRule, ClosedQuestion, DecisionReceipt, OpenQuestions, Ruling
from soong.shared.storage.sql.claims.parking import note_withdrawn, unpark
from soong.shared.storage.sql.consent.questions import (
    ANSWER_TO,
    HELD_SESSION,
    STILL_PENDING,
    answer_to_of,
    close_unread,
    held_session_of,
    open_questions_of,
    pending_of,
    question_of,
    questions_of,
    settled_of,
)
from soong.shared.storage.sql.engine.audit_log import AuditTrail, report
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.ownership import OWNED, check_owned, check_owner
from soong.shared.storage.sql.engine.rows import (
    answer_of,
    decision_body,
    decision_of,
    pack,
    plain,
    request_body,
)
from soong.shared.storage.sql.engine.run_log_buffer import INSERT_EVENTS, LAST_SEQ, RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.tables import answers, decisions, permission_requests, runs
from soong.shared.storage.sql.engine.transaction import Reply, Row, Transaction
from soong.shared.storage.sql.people.keys import ENDED, check_signs
from soong.shared.storage.sql.tasks.run_writes import RunWrite, append_held, appending
from soong.shared.tools.ports import ASK_MARK

RAISE: Final = Statement(
    "raise: a question of a run that is held, of a call that has none",
    """
    INSERT INTO permission_requests (id, run_id, session_id, tool_call_id, created_us, body)
    SELECT :id, id, session_id, :tool_call_id, :created_us, :body FROM runs WHERE id = :run_id
    """,
)
HELD_REQUEST: Final = Statement(
    "held request: its state, held while it is answered or decided; what an ended run asked is withdrawn, though its "
    "row may not say so yet",
    """
    SELECT CASE WHEN state = 'pending' AND (SELECT end_reason FROM runs WHERE runs.id = run_id) IS NOT NULL
                THEN 'withdrawn' ELSE state END, run_id, session_id
    FROM permission_requests WHERE id = :id /*pg FOR UPDATE */
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
ANSWER: Final = Statement(
    "answer: of a question that is held; the first one wins, and no row means that there is another, or that the "
    "question is not pending",
    """
    INSERT INTO answers
        (request_id, choice, principal, channel, input_digest, answered_us, reason, metadata, provenance)
    SELECT id, :choice, :principal, :channel, :input_digest, :answered_us, :reason, :metadata, :provenance
    FROM permission_requests
    WHERE id = :request_id AND state = 'pending' AND (SELECT end_reason FROM runs WHERE runs.id = run_id) IS NULL
    ON CONFLICT DO NOTHING RETURNING request_id
    """,
)
COUNT_LATE: Final = Statement(
    "count late: one event more in a run's log, and nothing else of the run",
    f"UPDATE runs SET last_seq = /*pg {LAST_SEQ} - last_seq + */ last_seq + 1 WHERE id = :run_id",  # noqa: S608
)
CLOSE_REQUEST: Final = Statement(
    "close request: a pending one",
    "UPDATE permission_requests SET state = :state WHERE id = :id AND state = 'pending'",
)
DECIDE: Final = Statement(
    "decide: write the signed decision of a request",
    "INSERT INTO decisions (request_id, id, body) VALUES (:request_id, :id, :body)",
)
HOLDER: Final = Statement(
    "holder: the worker of the run that asks, and its status",
    "SELECT worker_id, status FROM runs WHERE id = (SELECT run_id FROM permission_requests WHERE id = :id)",
)
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
WITHDRAW_CUT_OFF: Final = Statement(
    "withdraw cut off: these",
    """
    UPDATE permission_requests SET state = 'withdrawn'
    WHERE run_id = :run_id AND state = 'pending' AND tool_call_id LIKE :asked
    RETURNING id, run_id, tool_call_id
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
WITHDRAW: Final = Statement(
    "withdraw: the pending question of a call",
    """
    UPDATE permission_requests SET state = 'withdrawn'
    WHERE run_id = :run_id AND tool_call_id = :tool_call_id AND state = 'pending'
    RETURNING id, run_id, tool_call_id
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


class _HeldRequest(NamedTuple):
    """What was asked for of a question that is decided, and the end of the audit log."""

    request: Reply
    ended: Reply
    holder: Reply
    head: Reply


class SqlConsent:
    """The consent part of the store. What decides, answers or closes is in the audit log with it, or is not done."""

    _database: Database
    _trail: AuditTrail

    async def raise_request(
        self,
        request: PermissionRequest,
        *,
        events: Sequence[NewEvent],
        now_us: int,
        before: Sequence[NewEvent] = (),
    ) -> str:
        return await self._database.write(lambda tx: _raise(tx, request, before, events, now_us))

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
        def write(tx: Transaction) -> int:
            check_owned(tx, ownership)
            named = {"session_id": ownership.session_id, "run_id": run_id}
            closed = tx.count(DROP_EXCESS, kept=list(kept), **named)
            if closed:
                run_log = RunLogBuffer(now_us)
                note = of_dropped_questions(ownership.session_id, run_id, closed)
                run_log.note(run_id, EventType.SECURITY, **note.data)
                run_log.flush(tx)
                self._trail.note(tx, [note], now_us)
            return closed

        return await self._database.write(write)

    async def answer(self, answer: Answer, *, before_commit: Callable[[], object] | None = None) -> None:
        try:
            await self._database.write(lambda tx: _answer(tx, self._trail, answer), before_commit=before_commit)
        except AlreadyDecidedError as error:
            state = error.state
            await self._database.write(lambda tx: _note_late(tx, self._trail, answer, state))
            raise

    async def answer_of(self, request_id: str) -> Answer | None:
        wanted = select(answers).where(answers.c.request_id == request_id)
        row = await self._database.read(lambda tx: tx.execute(wanted).first())
        return None if row is None else answer_of(row)

    async def decide(
        self,
        ownership: Ownership,
        decision: Decision,
        *,
        state: RequestState,
        events: Sequence[NewEvent],
        now_us: int,
    ) -> DecisionReceipt:
        def write(tx: Transaction) -> DecisionReceipt:
            return _decide(tx, self._trail, ownership, decision, state, events, now_us)

        try:
            return await self._database.write(write)
        except NotOwnerError:
            note = of_stale_owner(decision, ownership.owner_id, ownership.epoch)
            await self._database.write(lambda tx: self._trail.note(tx, [note], now_us))
            raise

    async def decide_by_answer(
        self, ownership: Ownership, request_id: str, rule: AnswerRule, *, key_id: str, now_us: int
    ) -> tuple[Decision, DecisionReceipt] | None:
        return await self._database.write(
            lambda tx: _decide_by_answer(tx, self._trail, ownership, request_id, rule, key_id, now_us)
        )

    async def decision_of(self, request_id: str) -> Decision | None:
        wanted = select(decisions.c.body).where(decisions.c.request_id == request_id)
        body = await self._database.read(lambda tx: tx.execute(wanted).scalar())
        return None if body is None else decision_of(body)

    async def withdraw(self, run_id: str, tool_call_id: str, fence: int, *, reason: str, now_us: int) -> None:
        def write(tx: Transaction) -> None:
            tx.rows(HELD_OF_CALL, run_id=run_id, tool_call_id=tool_call_id)
            append_held(tx, run_id, fence, (), (), now_us)
            rows = tx.rows(WITHDRAW, run_id=run_id, tool_call_id=tool_call_id)
            _note_closed(tx, rows, reason, now_us)

        await self._database.write(write)

    async def withdraw_cut_off(self, run_id: str, fence: int, *, reason: str, now_us: int) -> Sequence[str]:
        def write(tx: Transaction) -> list[str]:
            named = {"run_id": run_id, "asked": f"%{ASK_MARK}%"}
            tx.rows(HELD_CUT_OFF, **named)
            append_held(tx, run_id, fence, (), (), now_us)
            rows = sorted(tx.rows(WITHDRAW_CUT_OFF, **named))
            _note_closed(tx, rows, reason, now_us)
            return [request_id for request_id, *_ in rows]

        return await self._database.write(write)

    async def expire_decision(self, run_id: str, tool_call_id: str, fence: int, *, now_us: int) -> bool:
        def write(tx: Transaction) -> bool:
            append_held(tx, run_id, fence, (), (), now_us)
            rows = tx.rows(EXPIRE_DECISION, run_id=run_id, tool_call_id=tool_call_id)
            run_log = RunLogBuffer(now_us)
            for (request_id,) in rows:
                run_log.note(run_id, EventType.PERMISSION_EXPIRED, request_id=request_id, tool_call_id=tool_call_id)
            run_log.flush(tx)
            return bool(rows)

        return await self._database.write(write)

    async def withdraw_orphans(self, session_id: str, *, now_us: int) -> Sequence[str]:
        def write(tx: Transaction) -> list[str]:
            rows = sorted(tx.rows(WITHDRAW_ORPHANS, session_id=session_id))
            _note_withdrawn(tx, rows, "its run has ended", now_us)
            notes = [of_withdrawn(session_id, run, request, call, "its run has ended") for request, run, call in rows]
            self._trail.note(tx, notes, now_us)
            return [request_id for request_id, *_ in rows]

        return await self._database.write(write)


def _raise(
    tx: Transaction, request: PermissionRequest, before: Sequence[NewEvent], events: Sequence[NewEvent], now_us: int
) -> str:
    run_id, call_id = request.identity.run_id, request.tool_call_id
    with tx.pipeline():
        held = tx.send(HOLD, run_id=run_id, fence=request.fence)
        stands = tx.send(STANDING, run_id=run_id, tool_call_id=call_id)
    if not held.rows():
        raise LeaseLostError(run_id, request.fence)
    standing = stands.rows()
    told = [*before, *(() if standing else events)]
    with appending(tx, RunWrite(run_id, request.fence, now_us, events=told)):
        report(tx, run_id, before, now_us)
        if not standing:
            tx.send(
                RAISE,
                id=request.id,
                run_id=run_id,
                tool_call_id=call_id,
                created_us=request.created_us,
                body=request_body(request),
            )
    return str(standing[0][0]) if standing else request.id


def _check_pending(rows: Sequence[Row], request_id: str) -> tuple[str, str]:
    """Return the run and session of a pending request. Raises: NotFoundError, AlreadyDecidedError."""
    if not rows:
        raise NotFoundError("permission request", request_id)
    state, run_id, session_id = rows[0]
    if state != RequestState.PENDING:
        raise AlreadyDecidedError(request_id, state)
    return run_id, session_id


def _answer(tx: Transaction, trail: AuditTrail, answer: Answer) -> None:
    with tx.pipeline():
        held = tx.send(HELD_REQUEST, id=answer.request_id)
        written = tx.send(
            ANSWER,
            request_id=answer.request_id,
            choice=None if answer.choice is None else answer.choice.value,
            principal=plain(answer.principal),
            channel=answer.channel,
            input_digest=answer.input_digest,
            answered_us=answer.answered_us,
            reason=plain(answer.reason),
            metadata=pack(answer.metadata),
            provenance=pack(answer.provenance.as_json()),
        )
        head = trail.head(tx)
    run_id, session_id = _check_pending(held.rows(), answer.request_id)
    if written.rows():
        trail.add(tx, head, [of_answer(answer, session_id, run_id)], answer.answered_us)
    elif _standing_answer(tx, answer.request_id) != answer:  # our own, told again after a commit nobody confirmed
        raise AlreadyDecidedError(answer.request_id, "answered")


def _standing_answer(tx: Transaction, request_id: str) -> Answer | None:
    row = tx.execute(select(answers).where(answers.c.request_id == request_id)).first()
    return None if row is None else answer_of(row)


def _note_late(tx: Transaction, trail: AuditTrail, answer: Answer, state: str) -> None:
    """Write down that somebody answered what was closed or answered: in the audit log, and in the log of a live run."""
    wanted = select(permission_requests.c.session_id, runs.c.id, runs.c.end_reason).where(
        permission_requests.c.id == answer.request_id, runs.c.id == permission_requests.c.run_id
    )
    asked = tx.execute(wanted).one()
    note = of_late_answer(answer, asked.session_id, asked.id, state)
    trail.note(tx, [note], answer.answered_us)
    if asked.end_reason is None:
        # Not by the journal, which may move the run as well: whoever answers has no right to that.
        tx.count(COUNT_LATE, run_id=asked.id)
        told = (asked.id, 0, EventType.SECURITY.value, answer.answered_us, pack(note.data), "")
        tx.insert(INSERT_EVENTS, [told])


def _decide(
    tx: Transaction,
    trail: AuditTrail,
    ownership: Ownership,
    decision: Decision,
    state: RequestState,
    events: Sequence[NewEvent],
    now_us: int,
) -> DecisionReceipt:
    with tx.pipeline():
        owned = tx.send(OWNED, session_id=ownership.session_id)
        held = _hold(tx, trail, decision.request_id, decision.key_id, decision.decided_us)
    check_owner(owned.rows(), ownership)
    run_id, session_id = _check_pending(held.request.rows(), decision.request_id)
    if session_id != ownership.session_id:
        raise NotFoundError("permission request", decision.request_id)
    return _write_ruling(tx, trail, held, run_id, Ruling(decision, state, events), now_us)


def _decide_by_answer(
    tx: Transaction,
    trail: AuditTrail,
    ownership: Ownership,
    request_id: str,
    rule: AnswerRule,
    key_id: str,
    now_us: int,
) -> tuple[Decision, DecisionReceipt] | None:
    with tx.pipeline():
        owned = tx.send(HELD_SESSION, session_id=ownership.session_id)
        held = _hold(tx, trail, request_id, key_id, now_us)
        answered = tx.send(ANSWER_TO, id=request_id)
    session, answer = held_session_of(owned, ownership), answer_to_of(answered)
    ((state, run_id, session_id),) = held.request.rows() or [("", "", "")]
    if answer is None or (state, session_id) != (RequestState.PENDING, ownership.session_id):
        return None
    ruling = rule(session, answer)
    return None if ruling is None else (ruling.decision, _write_ruling(tx, trail, held, run_id, ruling, now_us))


def _hold(tx: Transaction, trail: AuditTrail, request_id: str, key_id: str, decided_us: int) -> _HeldRequest:
    """Ask for what a decision looks at. Once its question is held, its run does not park."""
    held = tx.send(HELD_REQUEST, id=request_id)
    ended = tx.send(ENDED, key_id=key_id, decided_us=decided_us)
    return _HeldRequest(held, ended, tx.send(HOLDER, id=request_id), trail.head(tx))


def _write_ruling(
    tx: Transaction, trail: AuditTrail, held: _HeldRequest, run_id: str, ruling: Ruling, now_us: int
) -> DecisionReceipt:
    decision, events = ruling.decision, ruling.events
    check_signs(held.ended.rows(), decision.key_id)
    worker_id, status = held.holder.rows()[0]
    run_log = RunLogBuffer(now_us)
    run_log.add(run_id, events=events)
    body = decision_body(decision)
    was_parked = status == RunStatus.PARKED and unpark(tx, run_log, run_id, decision.request_id)
    with tx.pipeline():
        tx.send(CLOSE_REQUEST, id=decision.request_id, state=ruling.state.value)
        tx.send(DECIDE, request_id=decision.request_id, id=decision.id, body=body)
        trail.add(tx, held.head, of_decision(decision, events), now_us)
        run_log.flush(tx)
    return DecisionReceipt(was_parked, worker_id, body)


def _note_closed(tx: Transaction, rows: Sequence[tuple[str, ...]], reason: str, now_us: int) -> None:
    """Note questions that their asker has withdrawn, in its log and for those who follow it."""
    _note_withdrawn(tx, rows, reason, now_us)
    for request_id, run_id, tool_call_id in rows:
        data = {"request_id": request_id, "tool_call_id": tool_call_id, "reason": reason}
        report(tx, run_id, [NewEvent(EventType.PERMISSION_WITHDRAWN, data)], now_us)


def _note_withdrawn(tx: Transaction, rows: Sequence[tuple[str, ...]], reason: str, now_us: int) -> None:
    run_log = RunLogBuffer(now_us)
    note_withdrawn(run_log, rows, reason)
    run_log.flush(tx)
