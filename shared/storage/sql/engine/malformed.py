"""Rows that are not what a program of ours leaves behind: their messages, and the log that gets them.

Some worker wrote them. Who reads one fails, passes over or closes that row alone, and says so (OPS-12).
"""

from collections.abc import Iterable

from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.tasks.step import MALFORMED, Claim
from soong.shared.storage.sql.engine.audit_log import report
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.transaction import Transaction


def tell_malformed(tx: Transaction, run_log: RunLogBuffer, claims: Iterable[Claim], now_us: int) -> None:
    """Tell of claims whose rows are malformed, in their runs' logs and, by the owner, in the audit log."""
    for claim in claims:
        if claim.malformed:
            told: dict[str, Json] = {"what": MALFORMED, "step": claim.step_key, "reason": claim.malformed}
            event = NewEvent(EventType.SECURITY, told)
            report(tx, claim.identity.run_id, [event], now_us)
            run_log.add(claim.identity.run_id, events=[event])
