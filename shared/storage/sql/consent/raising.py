"""Questions as rows: raised while their run is held by its lease, one for each call."""

from collections.abc import Sequence
from typing import Final

from soong.shared.core.errors import ConflictError, LeaseLostError
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import NewEvent, NewNode
from soong.shared.permissions.request import PermissionRequest
from soong.shared.storage.sql.engine.audit_log import report
from soong.shared.storage.sql.engine.rows import request_body
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Reply, Transaction
from soong.shared.storage.sql.tasks.run_writes import RunWrite, appending

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


class RaisedQuestion(Value):
    """What a run asks, with its ``events``, which are written with a new question only.

    Its ``nodes``, and the events ``before`` them, are written in any case.
    """

    request: PermissionRequest
    nodes: Sequence[NewNode]
    before: Sequence[NewEvent]
    events: Sequence[NewEvent]
    now_us: int


def raise_question(tx: Transaction, raised: RaisedQuestion) -> str:
    """Raise a question, or return the id of the one that its call has. Raises: LeaseLostError."""
    request = raised.request
    run_id = request.identity.run_id
    with tx.pipeline():
        held = tx.send(HOLD, run_id=run_id, fence=request.fence)
        standing_reply = tx.send(STANDING, run_id=run_id, tool_call_id=request.tool_call_id)
    if not held.rows():
        raise LeaseLostError(run_id, request.fence)
    standing = standing_reply.rows()
    events = [*raised.before, *(() if standing else raised.events)]
    with appending(tx, [RunWrite(run_id, request.fence, raised.now_us, raised.nodes, events)]):
        report(tx, run_id, raised.before, raised.now_us)
        reply = None if standing else _send(tx, request)
    if reply is not None and not reply.rows():
        raise ConflictError(f"question {request.id} cannot be raised: its id is another question's")
    return str(standing[0][0]) if standing else request.id


def _send(tx: Transaction, request: PermissionRequest) -> Reply:
    return tx.send(
        RAISE,
        id=request.id,
        run_id=request.identity.run_id,
        fence=request.fence,
        tool_call_id=request.tool_call_id,
        created_us=request.created_us,
        body=request_body(request),
    )
