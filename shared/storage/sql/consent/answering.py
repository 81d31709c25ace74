"""Answers as rows: simultaneous answers of a process's clients are one transaction.

Each transaction that holds several questions holds them in the order of their ids (``HELD_REQUESTS``): those who answer
and those who decide never wait for each other.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlalchemy import select

from soong.shared.core.errors import (
    ANSWERED,
    AlreadyDecidedError,
    ConflictError,
    NotFoundError,
    NotOwnerError,
    SoongError,
)
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.record import RunStatus
from soong.shared.engine.sessions.session import Ownership, Session
from soong.shared.permissions.audit_log import of_answer, of_decision, of_late_answer
from soong.shared.permissions.request import Answer, Decision, RequestState
from soong.shared.permissions.store import DecisionReceipt
from soong.shared.storage.sql.claims.parking import unpark
from soong.shared.storage.sql.consent.questions import HELD_SESSIONS, sessions_of
from soong.shared.storage.sql.engine.owned_writes import AuditTrail
from soong.shared.storage.sql.engine.row_mapper import pack
from soong.shared.storage.sql.engine.rows import ANSWERS, answer_of, decision_body
from soong.shared.storage.sql.engine.run_log_buffer import INSERT_EVENTS, LAST_SEQ, RunLogBuffer
from soong.shared.storage.sql.engine.statements import Insert, Statement
from soong.shared.storage.sql.engine.tables.service import decisions, permission_requests
from soong.shared.storage.sql.engine.tables.work import runs
from soong.shared.storage.sql.engine.transaction import Reply, Row, Transaction
from soong.shared.storage.sql.people.keys import ENDS, check_signs

HELD_REQUESTS: Final = Statement(
    "held requests: their states, held while they are answered or decided, in the order of their ids; what an ended "
    "run asked is withdrawn, though its row may not say so yet",
    """
    SELECT id, CASE WHEN state = 'pending' AND (SELECT end_reason FROM runs WHERE runs.id = run_id) IS NOT NULL
                    THEN 'withdrawn' ELSE state END AS state, run_id, session_id
    FROM permission_requests WHERE id IN @ids ORDER BY id /*pg FOR UPDATE */
    """,
)
GIVEN: Final = Statement("given: the answer to a question", "SELECT * FROM answers WHERE request_id = :request_id")
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

HOLDERS: Final = Statement(
    "holders: the runs that ask, each with its worker and its status; once its question is held, a run does not park",
    """
    SELECT q.id, runs.worker_id, runs.status FROM permission_requests AS q JOIN runs ON runs.id = q.run_id
    WHERE q.id IN @ids
    """,
)
CLOSE_REQUESTS: Final = Statement(
    "close requests: those that are held, and pending",
    """
    UPDATE permission_requests SET state = t.state FROM @closed t(id text, state text)
    WHERE permission_requests.id = t.id
    """,
)
ANSWERED_REQUESTS: Final = Statement(
    "answered requests: those that have an answer, read once they are held",
    "SELECT request_id FROM answers WHERE request_id IN @ids",
)
INSERT_DECISIONS: Final = Insert(decisions, ("request_id", "id", "body"))


class GivenAnswer(Value):
    """An answer that a client of this process gives, and the chain of its audit entry."""

    trail: AuditTrail
    answer: Answer


def held_requests(held: Reply) -> dict[str, Row]:
    """Return the rows of ``HELD_REQUESTS`` by id."""
    return {row.id: row for row in held()}


def problem_of(held: Row | None, request_id: str) -> SoongError | None:
    """Return why a request can be neither answered nor decided: a NotFoundError or an AlreadyDecidedError."""
    if held is None:
        return NotFoundError("permission request", request_id)
    return None if held.state == RequestState.PENDING else AlreadyDecidedError(request_id, held.state)


def write_answers(tx: Transaction, given: Sequence[GivenAnswer]) -> list[SoongError | None]:
    """Write answers; return the outcomes: an AlreadyDecidedError or a NotFoundError for one that was not written."""
    with tx.pipeline():
        held = tx.send(HELD_REQUESTS, ids=sorted({one.answer.request_id for one in given}))
        written = [_send(tx, one.answer) for one in given]
        head = given[0].trail.head(tx)
    requests = held_requests(held)
    outcomes: list[SoongError | None] = []
    notes, now_us = [], 0
    for answer, reply in zip((one.answer for one in given), written, strict=True):
        found = requests.get(answer.request_id)
        problem = problem_of(found, answer.request_id)
        if problem is None and found is not None and reply():
            notes.append(of_answer(answer, found.session_id, found.run_id))
            now_us = max(now_us, answer.answered_us)
        elif found is not None and answer in map(answer_of, tx.rows(GIVEN, request_id=answer.request_id)):
            problem = None  # our own, repeated after an unconfirmed commit: perhaps it is decided by now
        elif problem is None:
            problem = AlreadyDecidedError(answer.request_id, ANSWERED)
        outcomes.append(problem)
    if notes:
        given[0].trail.add(tx, head, notes, now_us)
    return outcomes


def note_late(tx: Transaction, trail: AuditTrail, answer: Answer, state: str) -> None:
    """Write down that somebody answered what was closed or answered: in the audit log, and in the log of a live run."""
    wanted = select(permission_requests.c.session_id, runs.c.id, runs.c.end_reason).where(
        permission_requests.c.id == answer.request_id, runs.c.id == permission_requests.c.run_id
    )
    asked = tx.execute(wanted).one()
    note = of_late_answer(answer, asked.session_id, asked.id, state)
    trail.note(tx, [note], answer.answered_us)
    if asked.end_reason is None:
        # Not by the journal, which may move the run as well: a responder has no right to that.
        tx.count(COUNT_LATE, run_id=asked.id)
        told = (asked.id, EventType.SECURITY.value, answer.answered_us, pack(note.data), "", 0)
        tx.insert(INSERT_EVENTS, [told])


def _send(tx: Transaction, answer: Answer) -> Reply:
    return tx.send(
        ANSWER, **ANSWERS.values(answer), metadata=pack(answer.metadata), provenance=pack(answer.provenance.as_json())
    )


class WantedDecision(Value):
    """A signed decision that an owner wants written: with the state that closes its request, and events of the run."""

    trail: AuditTrail
    ownership: Ownership
    decision: Decision
    state: RequestState
    events: Sequence[NewEvent]
    now_us: int
    if_unanswered: bool


class _Found(NamedTuple):
    """The rows that are held for the wanted decisions, as read."""

    sessions: dict[str, Session]
    requests: dict[str, Row]
    answered: frozenset[str]
    holders: dict[str, tuple[str, str]]
    key_ends: Sequence[tuple[str, int, int]]
    head: Reply


def write_decisions(tx: Transaction, wanted: Sequence[WantedDecision]) -> list[DecisionReceipt | SoongError]:
    """Decide requests; return a receipt for each, or the error that refused it."""
    found = _hold(tx, wanted)
    accepted: dict[str, WantedDecision] = {}
    outcomes: list[SoongError | None] = []
    for one in wanted:
        request_id = one.decision.request_id
        first = accepted.get(request_id)
        problem = _problem(one, found) if first is None else AlreadyDecidedError(request_id, first.state.value)
        if problem is None:
            accepted[request_id] = one
        outcomes.append(problem)
    receipts = _write(tx, accepted, found) if accepted else {}
    return [problem or receipts[one.decision.request_id] for one, problem in zip(wanted, outcomes, strict=True)]


def _hold(tx: Transaction, wanted: Sequence[WantedDecision]) -> _Found:
    ids = sorted({one.decision.request_id for one in wanted})
    with tx.pipeline():
        owned = tx.send(HELD_SESSIONS, ids=sorted({one.ownership.session_id for one in wanted}))
        held = tx.send(HELD_REQUESTS, ids=ids)
        answered = tx.send(ANSWERED_REQUESTS, ids=ids)
        holders = tx.send(HOLDERS, ids=ids)
        ends = tx.send(ENDS, ids=sorted({one.decision.key_id for one in wanted}))
        head = wanted[0].trail.head(tx)
    return _Found(
        sessions_of(owned),
        held_requests(held),
        frozenset(row.request_id for row in answered()),
        {request_id: (worker_id, status) for request_id, worker_id, status in holders()},
        [(str(key_id), int(is_revoked), int(retired_us)) for key_id, is_revoked, retired_us in ends()],
        head,
    )


def _problem(one: WantedDecision, found: _Found) -> SoongError | None:
    """Return why a decision may not be written."""
    session_id, request_id = one.ownership.session_id, one.decision.request_id
    session = found.sessions.get(session_id)
    if session is None:
        return NotFoundError("session", session_id)
    if not one.ownership.owner_id or session.ownership != one.ownership:
        return NotOwnerError(session_id, one.ownership.epoch)
    problem = problem_of(found.requests.get(request_id), request_id)
    if problem is None and found.requests[request_id].session_id != session_id:
        problem = NotFoundError("permission request", request_id)
    if problem is None and one.if_unanswered and request_id in found.answered:
        problem = AlreadyDecidedError(request_id, ANSWERED)
    return problem or _key_problem(one.decision, found.key_ends)


def _key_problem(decision: Decision, ends: Sequence[tuple[str, int, int]]) -> ConflictError | None:
    ended = [end for end in ends if end[0] == decision.key_id and (end[1] or end[2] < decision.decided_us)]
    try:
        check_signs(ended, decision.key_id)
    except ConflictError as error:
        return error
    return None


def _write(tx: Transaction, accepted: dict[str, WantedDecision], found: _Found) -> dict[str, DecisionReceipt]:
    now_us = max(one.now_us for one in accepted.values())
    run_log = RunLogBuffer(now_us)
    receipts: dict[str, DecisionReceipt] = {}
    for request_id, one in accepted.items():
        run_id = found.requests[request_id].run_id
        worker_id, status = found.holders[request_id]
        run_log.add(run_id, events=one.events)
        was_parked = status == RunStatus.PARKED and unpark(tx, run_log, run_id, request_id)
        receipts[request_id] = DecisionReceipt(was_parked, worker_id)
    with tx.pipeline():
        tx.send(CLOSE_REQUESTS, closed=[(request_id, one.state.value) for request_id, one in accepted.items()])
        rows = [(request_id, one.decision.id, decision_body(one.decision)) for request_id, one in accepted.items()]
        tx.insert(INSERT_DECISIONS, rows)
        notes = [note for one in accepted.values() for note in of_decision(one.decision, one.events)]
        next(iter(accepted.values())).trail.add(tx, found.head, notes, now_us)
        run_log.flush(tx)
    return receipts
