"""Decisions as rows: what an owner decides at once is one transaction of few statements, of whichever sessions."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from soong.shared.core.errors import AlreadyDecidedError, ConflictError, NotFoundError, NotOwnerError, SoongError
from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.engine.runs.status import RunStatus
from soong.shared.engine.sessions.session import Ownership, Session
from soong.shared.permissions.audit_log.notes import of_decision
from soong.shared.permissions.store import AnsweredQuestion, AnswerRule, Decided, DecisionReceipt, Ruling
from soong.shared.storage.sql.claims.parking import unpark
from soong.shared.storage.sql.consent.answering import HELD_REQUESTS, HeldRequest, held_requests, problem_of
from soong.shared.storage.sql.consent.questions import (
    ANSWERED_QUESTIONS,
    HELD_SESSIONS,
    AnsweredRow,
    answered_of,
    sessions_of,
)
from soong.shared.storage.sql.engine.audit_log import AuditTrail
from soong.shared.storage.sql.engine.rows import decision_body
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Insert, Statement
from soong.shared.storage.sql.engine.transaction import Reply, Transaction
from soong.shared.storage.sql.people.keys import ENDS, check_signs

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
INSERT_DECISIONS: Final = Insert("decisions", {"request_id": "text", "id": "text", "body": "text"})


@dataclass(frozen=True, slots=True)
class WantedDecision:
    """What an owner wants of one request: a ruling that it has made, or what its rule makes of the answer.

    ``key_id`` and ``decided_us`` are what the decision is or will be signed with.
    """

    trail: AuditTrail
    ownership: Ownership
    request_id: str
    key_id: str
    decided_us: int
    now_us: int
    ruling: Ruling | None = None
    rule: AnswerRule | None = None


class _Found(NamedTuple):
    """What is held for the wanted decisions, and what was read of it."""

    sessions: dict[str, Session]
    requests: dict[str, HeldRequest]
    answered: dict[str, AnsweredRow]
    holders: dict[str, tuple[str, str]]
    key_ends: Sequence[tuple[str, int, int]]
    head: Reply


def write_decisions(tx: Transaction, wanted: Sequence[WantedDecision]) -> list[Decided | SoongError | None]:
    """Decide requests; return for each the decision, the error that refused it, or None.

    None: it has no answer, or its rule leaves it to a look.
    """
    found = _hold(tx, wanted)
    ruled: dict[str, Ruling] = {}
    outcomes: list[Decided | SoongError | Ruling | None] = []
    for one in wanted:
        outcome = _ruled(one, found) if one.request_id not in ruled else _second(one, ruled[one.request_id])
        if isinstance(outcome, Ruling):
            ruled[one.request_id] = outcome
        outcomes.append(outcome)
    written = _write(tx, wanted, found, ruled) if ruled else {}
    return [
        written[one.request_id] if isinstance(out, Ruling) else out for one, out in zip(wanted, outcomes, strict=True)
    ]


def _hold(tx: Transaction, wanted: Sequence[WantedDecision]) -> _Found:
    ids = sorted({one.request_id for one in wanted})
    to_be_read = sorted({one.request_id for one in wanted if one.rule is not None})
    with tx.pipeline():
        owned = tx.send(HELD_SESSIONS, ids=sorted({one.ownership.session_id for one in wanted}))
        held = tx.send(HELD_REQUESTS, ids=ids)
        holders = tx.send(HOLDERS, ids=ids)
        asked = tx.send(ANSWERED_QUESTIONS, ids=to_be_read) if to_be_read else None
        ends = tx.send(ENDS, ids=sorted({one.key_id for one in wanted}))
        head = wanted[0].trail.head(tx)
    return _Found(
        sessions_of(owned),
        held_requests(held),
        answered_of(asked) if asked is not None else {},
        {request_id: (worker_id, status) for request_id, worker_id, status in holders.rows()},
        [(str(key_id), int(is_revoked), int(retired_us)) for key_id, is_revoked, retired_us in ends.rows()],
        head,
    )


def _ruled(one: WantedDecision, found: _Found) -> Ruling | SoongError | None:
    session_id = one.ownership.session_id
    session = found.sessions.get(session_id)
    if session is None:
        return NotFoundError("session", session_id)
    if not one.ownership.owner_id or session.ownership != one.ownership:
        return NotOwnerError(session_id, one.ownership.epoch)
    request = found.requests.get(one.request_id)
    problem = problem_of(request, one.request_id)
    if problem is None and request is not None and request.session_id != session_id:
        problem = NotFoundError("permission request", one.request_id)
    if problem is not None:
        return problem if one.rule is None else None
    ruling = one.ruling if one.rule is None else _by_rule(one.rule, session, found.answered.get(one.request_id))
    return ruling and (_key_problem(one, found.key_ends) or ruling)


def _second(one: WantedDecision, first: Ruling) -> AlreadyDecidedError | None:
    """Of two that want the same request decided the first has decided it."""
    return AlreadyDecidedError(one.request_id, first.state.value) if one.rule is None else None


def _by_rule(rule: AnswerRule, session: Session, asked: AnsweredRow | None) -> Ruling | None:
    return None if asked is None else rule(AnsweredQuestion(session, asked.request, asked.answer, asked.token))


def _key_problem(one: WantedDecision, ends: Sequence[tuple[str, int, int]]) -> ConflictError | None:
    ended = [end for end in ends if end[0] == one.key_id and (end[1] or end[2] < one.decided_us)]
    try:
        check_signs(ended, one.key_id)
    except ConflictError as error:
        return error
    return None


def _write(
    tx: Transaction, wanted: Sequence[WantedDecision], found: _Found, ruled: dict[str, Ruling]
) -> dict[str, Decided]:
    now_us = max(one.now_us for one in wanted)
    run_log = RunLogBuffer(now_us)
    decided: dict[str, Decided] = {}
    for request_id, ruling in ruled.items():
        run_id = found.requests[request_id].run_id
        worker_id, status = found.holders[request_id]
        run_log.add(run_id, events=ruling.events)
        was_parked = status == RunStatus.PARKED and unpark(tx, run_log, run_id, request_id)
        decided[request_id] = ruling.decision, DecisionReceipt(was_parked, worker_id, decision_body(ruling.decision))
    with tx.pipeline():
        tx.send(CLOSE_REQUESTS, closed=[(request_id, ruling.state.value) for request_id, ruling in ruled.items()])
        tx.insert(INSERT_DECISIONS, [(made.request_id, made.id, receipt.text) for made, receipt in decided.values()])
        notes = [note for one in ruled.values() for note in of_decision(one.decision, one.events)]
        wanted[0].trail.add(tx, found.head, notes, now_us)
        run_log.flush(tx)
    return decided
