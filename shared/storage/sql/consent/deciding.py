"""Decisions as rows: what an owner decides at once is one transaction of few statements, of whichever sessions."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from soong.shared.core.errors import AlreadyDecidedError, ConflictError, NotFoundError, NotOwnerError, SoongError
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.runs.status import RunStatus
from soong.shared.engine.sessions.session import Ownership, Session
from soong.shared.permissions.audit_log.notes import of_decision
from soong.shared.permissions.request import Decision, RequestState
from soong.shared.permissions.store import DecisionReceipt
from soong.shared.storage.sql.claims.parking import unpark
from soong.shared.storage.sql.consent.answering import HELD_REQUESTS, HeldRequest, held_requests, problem_of
from soong.shared.storage.sql.consent.questions import HELD_SESSIONS, sessions_of
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


class WantedDecision(Value):
    """A signed decision that an owner wants written: with the state that closes its request, and events of the run."""

    trail: AuditTrail
    ownership: Ownership
    decision: Decision
    state: RequestState
    events: Sequence[NewEvent]
    now_us: int


class _Found(NamedTuple):
    """What is held for the wanted decisions, and what was read of it."""

    sessions: dict[str, Session]
    requests: dict[str, HeldRequest]
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
        holders = tx.send(HOLDERS, ids=ids)
        ends = tx.send(ENDS, ids=sorted({one.decision.key_id for one in wanted}))
        head = wanted[0].trail.head(tx)
    return _Found(
        sessions_of(owned),
        held_requests(held),
        {request_id: (worker_id, status) for request_id, worker_id, status in holders.rows()},
        [(str(key_id), int(is_revoked), int(retired_us)) for key_id, is_revoked, retired_us in ends.rows()],
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
        receipts[request_id] = DecisionReceipt(was_parked, worker_id, decision_body(one.decision))
    with tx.pipeline():
        tx.send(CLOSE_REQUESTS, closed=[(request_id, one.state.value) for request_id, one in accepted.items()])
        rows = [(request_id, one.decision.id, receipts[request_id].text) for request_id, one in accepted.items()]
        tx.insert(INSERT_DECISIONS, rows)
        notes = [note for one in accepted.values() for note in of_decision(one.decision, one.events)]
        next(iter(accepted.values())).trail.add(tx, found.head, notes, now_us)
        run_log.flush(tx)
    return receipts
