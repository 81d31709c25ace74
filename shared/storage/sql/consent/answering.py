"""Answers as rows: what the clients of a process answer at once is one transaction.

Each transaction that holds several questions holds them in the order of their ids (``HELD_REQUESTS``): those who answer
and those who decide never wait for each other.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlalchemy import select

from soong.shared.core.errors import AlreadyDecidedError, NotFoundError, SoongError
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import EventType
from soong.shared.permissions.audit_log.notes import of_answer, of_late_answer
from soong.shared.permissions.request import Answer, RequestState
from soong.shared.storage.sql.engine.audit_log import AuditTrail
from soong.shared.storage.sql.engine.rows import answer_of, pack, plain
from soong.shared.storage.sql.engine.run_log_buffer import INSERT_EVENTS, LAST_SEQ
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.tables import answers, permission_requests, runs
from soong.shared.storage.sql.engine.transaction import Reply, Transaction

HELD_REQUESTS: Final = Statement(
    "held requests: their states, held while they are answered or decided, in the order of their ids; what an ended "
    "run asked is withdrawn, though its row may not say so yet",
    """
    SELECT id, CASE WHEN state = 'pending' AND (SELECT end_reason FROM runs WHERE runs.id = run_id) IS NOT NULL
                    THEN 'withdrawn' ELSE state END, run_id, session_id
    FROM permission_requests WHERE id IN @ids ORDER BY id /*pg FOR UPDATE */
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


class HeldRequest(NamedTuple):
    """A row of ``HELD_REQUESTS``."""

    id: str
    state: str
    run_id: str
    session_id: str


class GivenAnswer(Value):
    """An answer that a client of this process gives, and the chain that tells of it."""

    trail: AuditTrail
    answer: Answer


def held_requests(held: Reply) -> dict[str, HeldRequest]:
    """Return the rows of ``HELD_REQUESTS`` by id."""
    return {row[0]: HeldRequest._make(row) for row in held.rows()}


def problem_of(held: HeldRequest | None, request_id: str) -> SoongError | None:
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
        if problem is None and found is not None and reply.rows():
            notes.append(of_answer(answer, found.session_id, found.run_id))
            now_us = max(now_us, answer.answered_us)
        elif found is not None and _standing_answer(tx, answer.request_id) == answer:
            problem = None  # our own, told again after a commit that nobody confirmed: perhaps it is decided by now
        elif problem is None:
            problem = AlreadyDecidedError(answer.request_id, "answered")
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
        told = (asked.id, 0, EventType.SECURITY.value, answer.answered_us, pack(note.data), "")
        tx.insert(INSERT_EVENTS, [told])


def _send(tx: Transaction, answer: Answer) -> Reply:
    return tx.send(
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


def _standing_answer(tx: Transaction, request_id: str) -> Answer | None:
    row = tx.execute(select(answers).where(answers.c.request_id == request_id)).first()
    return None if row is None else answer_of(row)
