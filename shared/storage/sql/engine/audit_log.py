"""The audit log as rows: one chain per process, so that no writer waits for another's entry.

An entry is read and linked in the transaction of its subject. Only this process adds to its chain, so reading its end
takes no lock; a transaction that was undone, or applied and not confirmed, is seen by the next reading.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from soong.shared.core.identity import new_id
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import NewEvent
from soong.shared.permissions.audit_log.entry import AuditEntry, AuditNote, Head, linked
from soong.shared.permissions.audit_log.notes import REPORTED, redacted
from soong.shared.sandbox.redact import Redactor
from soong.shared.storage.sql.engine.row_mapper import RowMapper
from soong.shared.storage.sql.engine.statements import Insert, Statement
from soong.shared.storage.sql.engine.tables.service import audit, reports
from soong.shared.storage.sql.engine.texts import pack
from soong.shared.storage.sql.engine.transaction import Reply, Transaction

HEAD: Final = Statement(
    "head: the end of our chain, and the newest entry of all",
    """
    SELECT (SELECT max(number) FROM audit WHERE chain = :chain),
           (SELECT digest FROM audit WHERE chain = :chain ORDER BY number DESC LIMIT 1),
           (SELECT digest FROM audit ORDER BY ordinal DESC LIMIT 1)
    """,
)
ENTRIES: Final = RowMapper(AuditEntry, audit)
INSERT_ENTRIES: Final = Insert(audit, [name for name in ENTRIES.written if name != "ordinal"])
INSERT_REPORTS: Final = Insert(reports, ("run_id", "type", "data", "time_us"))


class AuditTrail(Value):
    """This process's chain. Made with the store; ``redactor`` takes secrets out before anything is linked."""

    redactor: Redactor = msgspec.field(default_factory=Redactor)
    chain: str = msgspec.field(default_factory=lambda: new_id("aud"))

    def note(self, tx: Transaction, notes: Sequence[AuditNote], now_us: int) -> None:
        """Add entries in the caller's transaction."""
        if notes:
            self.add(tx, self.head(tx), notes, now_us)

    def head(self, tx: Transaction) -> Reply:
        """Ask for the end of our chain; nothing else may be added to it before what is linked to the answer."""
        return tx.send(HEAD, chain=self.chain)

    def add(self, tx: Transaction, head_reply: Reply, notes: Sequence[AuditNote], now_us: int) -> None:
        """Add entries behind a head that was asked for in the same transaction."""
        number, last, newest = head_reply()[0]
        head = Head(number or 0, last or "", newest if newest and newest != last else "")
        rows = []
        for note in notes:
            entry = linked(redacted(note, self.redactor), self.chain, head, now_us)
            rows.append(INSERT_ENTRIES.row(ENTRIES.values(entry)))
            head = Head(entry.number, entry.digest)
        tx.insert(INSERT_ENTRIES, rows)


def report(tx: Transaction, run_id: str, events: Sequence[NewEvent], now_us: int) -> None:
    """Leave the events that belong into the audit log for the owner; most often there are none."""
    told = [event for event in events if event.type in REPORTED]
    if told:
        rows = [(run_id, str(event.type), pack(event.data), event.time_us or now_us) for event in told]
        tx.insert(INSERT_REPORTS, rows)
