"""Questions read from rows that workers write: identity from the run's row, ids from columns, and nothing believed.

A row that is no question (an unknown word, a field of another kind, ids of another row, a body that nobody could read)
is shown to nobody. A reader skips it; whoever reads what is pending closes it and says so.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import case, func, literal_column, select

from shared.adapters.sql.auditing import AuditTrail
from shared.adapters.sql.journal import Journal
from shared.adapters.sql.ordinals import ordinal_of
from shared.adapters.sql.rows import answer_of, decision_of, identity_of, responder_of, session_of, unpack
from shared.adapters.sql.statements import Statement
from shared.adapters.sql.tables import answers, decisions, permission_requests, responders, runs, sessions
from shared.adapters.sql.transaction import Transaction
from shared.audit.entry import AuditKind, AuditNote
from shared.errors import ForgedError, NotFoundError
from shared.jsontext import MAX_SAFE_INTEGER
from shared.log import get_logger
from shared.permissions.request import Choice, PermissionRequest, Question, RequestState
from shared.permissions.store import OpenQuestions
from shared.runs.events import EventType

log = get_logger(__name__)

MAX_BODY_CHARS: Final = 1_000_000
"""A longer body is no question that anybody could read; nobody loads it either."""

CLOSE_UNREAD: Final = Statement(
    "close unread: pending rows that are no questions",
    """
    UPDATE permission_requests SET state = 'withdrawn' WHERE id IN @ids AND state = 'pending'
    RETURNING id, run_id, session_id, created_us
    """,
)

_BODY: Final = permission_requests.c.body
_REQUESTS: Final = select(
    permission_requests.c.id.label("request_id"),
    permission_requests.c.tool_call_id,
    permission_requests.c.state,
    case((func.length(_BODY) <= MAX_BODY_CHARS, _BODY), else_="").label("body"),
    runs,
).join(runs, runs.c.id == permission_requests.c.run_id)
_PENDING: Final = permission_requests.c.state == literal_column("'pending'")

_TEXTS: Final = (
    *("id", "tool_call_id", "tool", "permission", "input_digest", "target_kind", "scope", "shown", "precondition"),
    *("cwd", "host", "risk", "risk_summary", "preview", "hook_result", "proof"),
)


def pending_of(tx: Transaction, session_id: str, limit: int) -> tuple[list[PermissionRequest], list[str]]:
    """Return a session's undecided questions, oldest first, and the ids of rows that are none."""
    wanted = _REQUESTS.where(permission_requests.c.session_id == session_id).where(_PENDING)
    rows = tx.execute(wanted.order_by(permission_requests.c.ordinal).limit(limit)).all()
    read = {row.request_id: _read(row) for row in rows}
    unread = [request_id for request_id, request in read.items() if request is None]
    return [request for request in read.values() if request is not None], unread


def open_questions_of(tx: Transaction, session_id: str, limit: int) -> tuple[OpenQuestions | None, list[str]]:
    """Return what waits in a session, None when nothing does, and the ids of rows that are no questions."""
    pending, unread = pending_of(tx, session_id, limit)
    if not pending:
        return None, unread
    session = tx.execute(select(sessions).where(sessions.c.id == session_id)).first()
    if session is None:
        raise NotFoundError("session", session_id)
    ids = [request.id for request in pending]
    said = tx.execute(select(answers).where(answers.c.request_id.in_(ids)))
    there = tx.execute(select(responders).where(responders.c.session_id == session_id).order_by(responders.c.ordinal))
    answered = {row.request_id: answer_of(row) for row in said}
    return OpenQuestions(session_of(session), pending, answered, [responder_of(row) for row in there]), unread


def close_unread(tx: Transaction, trail: AuditTrail, ids: Sequence[str]) -> None:
    """Withdraw pending rows that are no questions, and tell of each in its run's log and the audit log."""
    for request_id, run_id, session_id, created_us in sorted(tx.rows(CLOSE_UNREAD, ids=sorted(ids))):
        journal, what = Journal(created_us), "malformed_request"
        journal.note(run_id, EventType.SECURITY, what=what, request_id=request_id)
        journal.flush(tx)
        told = {"what": what, "request_id": request_id, "run": run_id}
        trail.note(tx, [AuditNote(AuditKind.SECURITY, told, session_id)], created_us)


def question_of(tx: Transaction, request_id: str) -> tuple[PermissionRequest, RequestState]:
    """Raises: NotFoundError; ForgedError when the row is no question."""
    row = tx.execute(_REQUESTS.where(permission_requests.c.id == request_id)).first()
    if row is None:
        raise NotFoundError("permission request", request_id)
    return _request_of(row), RequestState(row.state)


def questions_of(tx: Transaction, session_id: str, include_closed: bool, beyond: str, limit: int) -> list[Question]:
    """See :meth:`shared.permissions.store.ConsentStore.questions`."""
    wanted = _REQUESTS.limit(limit)
    if session_id:
        wanted = wanted.where(permission_requests.c.session_id == session_id)
    if beyond:
        place, last = permission_requests.c.ordinal, ordinal_of(permission_requests, beyond)
        wanted = wanted.where(place < last if include_closed else place > last)
    if include_closed:
        rows = tx.execute(wanted.order_by(permission_requests.c.ordinal.desc())).all()[::-1]
    else:
        rows = tx.execute(wanted.where(_PENDING).order_by(permission_requests.c.ordinal)).all()
    ids = [row.request_id for row in rows]
    said = {row.request_id: answer_of(row) for row in tx.execute(select(answers).where(answers.c.request_id.in_(ids)))}
    ruled = tx.execute(select(decisions).where(decisions.c.request_id.in_(ids)))
    decided = {row.request_id: decision_of(row.body) for row in ruled}
    read = [(row, _read(row)) for row in rows]
    return [
        Question(request, RequestState(row.state), said.get(row.request_id), decided.get(row.request_id))
        for row, request in read
        if request is not None
    ]


def _read(row: Any) -> PermissionRequest | None:
    try:
        return _request_of(row)
    except ForgedError as error:
        log.error(error.what, request=row.request_id, run=row.id, error=str(error))
        return None


def _request_of(row: Any) -> PermissionRequest:
    try:
        kept = unpack(row.body)
        _check(kept, row)
        kept.update(tags=tuple(kept["tags"]), env=tuple(kept["env"]), suggested=Choice(kept["suggested"]))
        kept["unknown_effects"] = tuple(kept.get("unknown_effects", ()))
        return PermissionRequest(identity=identity_of(row), **kept)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ForgedError(f"request {row.request_id!r} cannot be read: {error}", what="malformed_request") from error


def _check(kept: Any, row: Any) -> None:
    """Raises: TypeError, ValueError, KeyError, AttributeError when the fields are not those of a question."""
    if (kept["id"], kept["tool_call_id"]) != (row.request_id, row.tool_call_id):
        raise ValueError("it names another request or call than its row does")
    wrong = [name for name in _TEXTS if not isinstance(kept[name], str)]
    wrong += [name for name in ("tags", "env") if not all(isinstance(text, str) for text in kept[name])]
    wrong += [name for name in ("is_dangerous", "is_outward") if not isinstance(kept[name], bool)]
    wrong += [name for name in ("created_us", "fence") if not _is_number(kept[name])]
    wrong += [] if isinstance(kept["arguments"], dict) else ["arguments"]
    wrong += [] if all(isinstance(one, dict) for one in kept.get("unknown_effects", ())) else ["unknown_effects"]
    if wrong:
        raise TypeError(f"{', '.join(wrong)} are of another kind")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_SAFE_INTEGER
