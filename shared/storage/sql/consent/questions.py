"""Questions read from rows that workers write: identity from the run's row, ids from columns, and nothing believed.

A row that is not a question (an unknown word, a field of another kind, ids of another row, an unreadable body) is
shown to nobody. A reader skips it; the reader of pending questions closes it and logs that.
"""

import functools
from collections.abc import Sequence
from typing import Any, Final

from msgspec import convert

from soong.shared.core.errors import ForgedError, NotFoundError
from soong.shared.core.jsontext import parse_strict
from soong.shared.core.log import get_logger
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.sessions.session import Session
from soong.shared.permissions.audit_log import AuditKind, AuditNote
from soong.shared.permissions.request import PermissionRequest, Question, RequestState
from soong.shared.permissions.signing import check_proof
from soong.shared.permissions.store import ClosedQuestion, OpenQuestions
from soong.shared.storage.sql.engine.owned_writes import AuditTrail
from soong.shared.storage.sql.engine.row_mapper import RowMapper
from soong.shared.storage.sql.engine.rows import (
    ANSWERS,
    IDENTITIES,
    RESPONDERS,
    RUN_COLUMNS,
    SESSIONS,
    answer_of,
    decision_of,
)
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Reply, Row, Transaction
from soong.shared.storage.sql.people.keys import KEY, key_of_row

log = get_logger(__name__)

MAX_BODY_CHARS: Final = 1_000_000
"""A longer body is not a question that anybody could read; nobody loads it either."""

WITHDRAW: Final = Statement(
    "withdraw: those of these questions that are pending",
    """
    UPDATE permission_requests SET state = 'withdrawn' WHERE id IN @ids AND state = 'pending'
    RETURNING id, run_id, tool_call_id, session_id, created_us
    """,
)

_OF_RUN: Final = (*RUN_COLUMNS, "token", "end_reason")
"""The asking run's identity, its secret, and whether it has ended."""
_ASKED: Final = f"""
    q.id AS request_id, q.tool_call_id, q.state, {", ".join(f"runs.{name}" for name in _OF_RUN)},
    CASE WHEN length(q.body) <= {MAX_BODY_CHARS} THEN q.body ELSE '' END AS body
"""


def _columns(mapper: RowMapper[Any], table: str, *more: str) -> str:
    return ", ".join(f"{table}.{name}" for name in (*mapper.written, *more))


PENDING: Final = Statement(
    "pending: a session's undecided questions, oldest first",
    f"""
    SELECT {_ASKED} FROM permission_requests AS q JOIN runs ON runs.id = q.run_id
    WHERE q.session_id = :session_id AND q.state = 'pending' ORDER BY q.ordinal LIMIT :most
    """,  # noqa: S608  # our own columns, here and below
)
ANSWERED: Final = Statement(
    "answered: the answers to them",
    f"""
    SELECT {_columns(ANSWERS, "a", "metadata", "provenance")}
    FROM permission_requests AS q JOIN answers AS a ON a.request_id = q.id
    WHERE q.session_id = :session_id AND q.state = 'pending' ORDER BY q.ordinal LIMIT :most
    """,  # noqa: S608
)
SESSION: Final = Statement(
    "session: whose questions they are",
    f"SELECT {_columns(SESSIONS, 's')} FROM sessions AS s WHERE s.id = :session_id",  # noqa: S608
)
HELD_SESSIONS: Final = Statement(
    "held sessions: the same of several; held, so that nobody adopts them before we have committed",
    f"SELECT {_columns(SESSIONS, 's')} FROM sessions AS s WHERE s.id IN @ids ORDER BY s.id /*pg FOR SHARE */",  # noqa: S608
)
ATTENDING: Final = Statement(
    "attending: who is attached to a session, in the order in which they came",
    f"SELECT {_columns(RESPONDERS, 'r')} FROM responders AS r WHERE r.session_id = :session_id ORDER BY r.ordinal",  # noqa: S608
)
QUESTION: Final = Statement(
    "question: one of them, and what was decided",
    f"""
    SELECT {_ASKED}, d.body AS decision FROM permission_requests AS q JOIN runs ON runs.id = q.run_id
    LEFT JOIN decisions AS d ON d.request_id = q.id WHERE q.id = :id
    """,  # noqa: S608
)
STILL_PENDING: Final = Statement(
    "still pending: those of these questions that are undecided, and their runs not over",
    """
    SELECT q.id FROM permission_requests AS q JOIN runs ON runs.id = q.run_id
    WHERE q.id IN @ids AND q.state = 'pending' AND runs.end_reason IS NULL
    """,
)

ANSWERS_TO: Final = Statement(
    "answers to: these questions",
    f"SELECT {_columns(ANSWERS, 'a', 'metadata', 'provenance')} FROM answers AS a WHERE a.request_id IN @ids",  # noqa: S608
)


@functools.cache
def _listed(*, is_of_session: bool, include_closed: bool, is_beyond: bool) -> Statement:
    """Return the statement for a page of questions: the oldest that wait, or the newest of all, newest first."""
    terms = [] if include_closed else ["q.state = 'pending'", "runs.end_reason IS NULL"]
    if is_of_session:
        terms.append("q.session_id = :session_id")
    if is_beyond:
        side = "<" if include_closed else ">"
        terms.append(f"q.ordinal {side} (SELECT p.ordinal FROM permission_requests AS p WHERE p.id = :beyond)")  # noqa: S608
    return Statement(
        f"listed: questions {' and '.join(terms)}",
        f"""
        SELECT {_ASKED}, d.body AS decision FROM permission_requests AS q JOIN runs ON runs.id = q.run_id
        LEFT JOIN decisions AS d ON d.request_id = q.id {"WHERE" if terms else ""} {" AND ".join(terms)}
        ORDER BY q.ordinal {"DESC" if include_closed else ""} LIMIT :most
        """,  # noqa: S608
    )


def pending_of(tx: Transaction, session_id: str, limit: int) -> tuple[list[PermissionRequest], list[str]]:
    """Return a session's undecided questions, oldest first, and the ids of rows that are none."""
    rows = tx.rows(PENDING, session_id=session_id, most=limit)
    read = {row.request_id: _read(row) for row in rows}
    waiting = [read[row.request_id] for row in rows if _state_of(row) is RequestState.PENDING]
    return [request for request in waiting if request is not None], [one for one in read if read[one] is None]


def open_questions_of(tx: Transaction, session_id: str, limit: int) -> tuple[OpenQuestions | None, list[str]]:
    """Return what waits in a session, None when nothing does, and the ids of rows that are not questions."""
    with tx.pipeline():
        asked = tx.send(PENDING, session_id=session_id, most=limit)
        said = tx.send(ANSWERED, session_id=session_id, most=limit)
        whose = tx.send(SESSION, session_id=session_id)
        there = tx.send(ATTENDING, session_id=session_id)
    rows = asked()
    read = {row.request_id: _read(row) for row in rows}
    unread = [request_id for request_id, request in read.items() if request is None]
    if len(unread) == len(rows):
        return None, unread
    orphans = {row.request_id for row in rows if _state_of(row) is RequestState.WITHDRAWN}
    sessions = whose()
    if not sessions:
        raise NotFoundError("session", session_id)
    return OpenQuestions(
        SESSIONS.read(sessions[0]),
        [request for request in read.values() if request is not None and request.id not in orphans],
        {row.request_id: answer_of(row) for row in said() if row.request_id in read},
        [RESPONDERS.read(row) for row in there()],
        {row.id: row.token for row in rows},
        bool(orphans - set(unread)),
    ), unread


def sessions_of(held: Reply) -> dict[str, Session]:
    """Return the sessions of ``HELD_SESSIONS`` by id."""
    return {row.id: SESSIONS.read(row) for row in held()}


def withdrawn(tx: Transaction, ids: Sequence[str]) -> list[tuple[str, str, str]]:
    """Withdraw questions that are held, and return (id, run id, tool call id) of those that were pending."""
    return [(row.id, row.run_id, row.tool_call_id) for row in (tx.rows(WITHDRAW, ids=ids) if ids else ())]


def close_unread(tx: Transaction, trail: AuditTrail, ids: Sequence[str]) -> None:
    """Withdraw pending rows that are not questions, and tell of each in its run's log and the audit log."""
    for request_id, run_id, _, session_id, created_us in sorted(tx.rows(WITHDRAW, ids=sorted(ids))):
        run_log, what = RunLogBuffer(created_us), "malformed_request"
        run_log.note(run_id, EventType.SECURITY, what=what, request_id=request_id)
        run_log.flush(tx)
        told = {"what": what, "request_id": request_id, "run": run_id}
        trail.note(tx, [AuditNote(AuditKind.SECURITY, told, session_id)], created_us)


def question_of(tx: Transaction, request_id: str) -> tuple[PermissionRequest, RequestState]:
    """Raises: NotFoundError; ForgedError when the row is not a question."""
    row = _question(tx, request_id)
    return _request_of(row), _state_of(row)


def settled_of(tx: Transaction, request_id: str) -> ClosedQuestion | None:
    """See :meth:`soong.shared.permissions.store.ConsentStore.settled`."""
    row = _question(tx, request_id)
    _request_of(row)
    if _state_of(row) is RequestState.PENDING:
        return None
    if row.decision is None:
        return ClosedQuestion()
    decision = decision_of(row.decision)
    keys = tx.rows(KEY, id=decision.key_id)
    return ClosedQuestion(decision, key_of_row(keys[0]) if keys else None)


def questions_of(tx: Transaction, session_id: str, include_closed: bool, beyond: str, limit: int) -> list[Question]:
    """See :meth:`soong.shared.permissions.store.ConsentStore.questions`."""
    wanted = _listed(is_of_session=bool(session_id), include_closed=include_closed, is_beyond=bool(beyond))
    given = {"session_id": session_id, "beyond": beyond}
    rows = tx.rows(wanted, most=limit, **{name: value for name, value in given.items() if value})
    if include_closed:
        rows = rows[::-1]
    ids = [row.request_id for row in rows]
    said = {row.request_id: answer_of(row) for row in tx.rows(ANSWERS_TO, ids=ids)} if ids else {}
    read = [(row, _read(row)) for row in rows]
    return [
        Question(
            request,
            _state_of(row),
            said.get(row.request_id),
            None if row.decision is None else decision_of(row.decision),
            check_proof(row.token, request),
        )
        for row, request in read
        if request is not None
    ]


def _question(tx: Transaction, request_id: str) -> Row:
    """Return a question's row with that of its decision. Raises: NotFoundError."""
    row = tx.first(QUESTION, id=request_id)
    if row is None:
        raise NotFoundError("permission request", request_id)
    return row


def _state_of(row: Row) -> RequestState:
    """Return the state of a question: one of an ended run is withdrawn, also before its row has that state."""
    state = RequestState(row.state)
    return RequestState.WITHDRAWN if state is RequestState.PENDING and row.end_reason is not None else state


def _read(row: Row) -> PermissionRequest | None:
    try:
        return _request_of(row)
    except ForgedError as error:
        log.error(error.what, request=row.request_id, run=row.id, error=str(error))
        return None


def _request_of(row: Row) -> PermissionRequest:
    try:
        kept: Any = parse_strict(row.body)
        if "identity" in kept:
            raise ValueError("it names its identity itself")
        request = convert({**kept, "identity": IDENTITIES.read(row)}, PermissionRequest)
        if (request.id, request.tool_call_id) != (row.request_id, row.tool_call_id):
            raise ValueError("it names another request or call than its row does")
        # Its answer is kept with this text as it is, in a column that takes no NUL.
        if "\0" in request.input_digest:
            raise ValueError("its input_digest holds NUL")
    except (ValueError, TypeError, RecursionError) as error:
        raise ForgedError(f"request {row.request_id!r} cannot be read: {error}", what="malformed_request") from error
    return request
