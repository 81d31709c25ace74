"""Starts of calls that a decision permits: each consumes its decision in the transaction that writes its row.

Those of the runs of a process that begin at once are one round trip on PostgreSQL.
"""

from collections.abc import Sequence
from typing import Final

from soong.shared.core.errors import AlreadyConsumedError, UnconfirmedDecisionError
from soong.shared.core.value import Value
from soong.shared.engine.runs.store import CallRow
from soong.shared.storage.sql.engine.rows import decision_of
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Reply, Transaction
from soong.shared.storage.sql.tasks.run_writes import RunWrite, appending

CONSUME: Final = Statement(
    "consume: a decision, once; no row means that it has been used",
    """
    INSERT INTO consumptions (decision_id, run_id, tool_call_id, consumed_us)
    VALUES (:decision_id, :run_id, :tool_call_id, :now_us) ON CONFLICT DO NOTHING RETURNING decision_id
    """,
)
CONSUME_NOTIFIED: Final = Statement(
    "consume notified: a decision that came in a notification, if its row states the same, of this call, and its key "
    "has not ended; no row means that one of this is not so, or that it has been used",
    """
    INSERT INTO consumptions (decision_id, run_id, tool_call_id, consumed_us)
    SELECT d.id, q.run_id, q.tool_call_id, :now_us
    FROM decisions AS d JOIN permission_requests AS q ON q.id = d.request_id
    WHERE d.id = :decision_id AND d.body = :notified
      AND q.run_id = :run_id AND q.tool_call_id = :tool_call_id AND q.state = 'decided'
      AND NOT EXISTS (SELECT 1 FROM key_retirements AS ended WHERE ended.key_id = :key_id
                      AND (ended.is_revoked = 1 OR ended.retired_us < :decided_us))
    ON CONFLICT DO NOTHING RETURNING decision_id
    """,
)
CONSUMED: Final = Statement(
    "consumed: whether a decision has been used", "SELECT 1 FROM consumptions WHERE decision_id = :decision_id"
)


class PermittedCall(Value):
    """The write that starts a call, its only one, and its decision as it was ``notified``; empty: it was read."""

    write: RunWrite
    notified: str

    @property
    def call(self) -> CallRow:
        return self.write.calls[0]


def start_permitted(tx: Transaction, starts: Sequence[PermittedCall]) -> list[None]:
    """Start calls, each by its own decision.

    Raises:
        LeaseLostError, AlreadyConsumedError, UnconfirmedDecisionError: of one of them; all is to be undone.
    """
    with appending(tx, [start.write for start in starts]):
        consumed = [_consume(tx, start) for start in starts]
    for start, reply in zip(starts, consumed, strict=True):
        if reply.rows():
            continue
        decision_id = start.call.decision_id
        if start.notified and not tx.rows(CONSUMED, decision_id=decision_id):
            raise UnconfirmedDecisionError(decision_id)
        raise AlreadyConsumedError(decision_id)
    return [None] * len(starts)


def _consume(tx: Transaction, start: PermittedCall) -> Reply:
    call, now_us = start.call, start.write.now_us
    names = {"run_id": call.run_id, "tool_call_id": call.tool_call_id, "decision_id": call.decision_id}
    if not start.notified:
        return tx.send(CONSUME, now_us=now_us, **names)
    decision = decision_of(start.notified)
    signed = {"key_id": decision.key_id, "decided_us": decision.decided_us}
    return tx.send(CONSUME_NOTIFIED, now_us=now_us, notified=start.notified, **signed, **names)
