"""The audit log in memory: one chain, since there is one process."""

import threading
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from soong.shared.engine.runs.events import NewEvent
from soong.shared.permissions.audit_log.entry import AuditEntry, AuditNote, Head, Use, linked
from soong.shared.permissions.audit_log.notes import REPORTED, of_report, redacted
from soong.shared.sandbox.redact import Redactor
from tests.model.memory.rows import Rows, transaction

_CHAIN = "aud_memory"


class MemoryAudit:
    """The audit part of the store."""

    rows: Rows
    lock: threading.RLock

    @transaction
    def note(self, notes: Sequence[AuditNote], *, now_us: int) -> None:
        add_notes(self.rows, notes, now_us)

    @transaction
    def audit_entries(
        self, *, after: int = 0, session_id: str = "", kinds: Collection[str] = (), since_us: int = 0, limit: int = 1000
    ) -> Sequence[AuditEntry]:
        found = [
            entry
            for entry in self.rows.audit.values()
            if entry.ordinal > after
            and session_id in {"", entry.session_id}
            and (not kinds or entry.kind in {str(kind) for kind in kinds})
            and entry.time_us >= since_us
        ]
        return found[:limit]

    @transaction
    def uses(self, *, after: str = "", limit: int = 1000) -> Sequence[Use]:
        given = {decision.id: decision for decision in self.rows.decisions.values()}
        found = []
        for decision_id, (run_id, call_id, used_us) in sorted(self.rows.consumed.items()):
            call = self.rows.calls.get((run_id, call_id))
            used = None if call is None else call.input_digest
            found.append(Use(decision_id, run_id, call_id, used_us, given.get(decision_id), used))
        return [use for use in found if use.decision_id > after][:limit]

    @transaction
    def take_reports(self, owner_id: str, *, now_us: int, limit: int = 200) -> int:
        taken = [
            number
            for number, (run_id, _) in self.rows.reports.items()
            if self.rows.session(self.rows.run(run_id).identity.session_id).owner_id in ("", owner_id)
        ][:limit]
        for number in taken:
            run_id, event = self.rows.reports.pop(number)
            identity = self.rows.run(run_id).identity
            add_notes(self.rows, [of_report(identity, event.type, event.data)], now_us)
        return len(taken)


def add_notes(rows: Rows, notes: Sequence[AuditNote], now_us: int) -> None:
    """Link notes to the end of the chain."""
    for note in notes:
        last = rows.audit.get(len(rows.audit))
        head = Head() if last is None else Head(last.number, last.digest)
        entry = linked(redacted(note, Redactor()), _CHAIN, head, now_us)
        rows.audit[entry.number] = replace(entry, ordinal=entry.number)


def add_reports(rows: Rows, run_id: str, events: Sequence[NewEvent]) -> None:
    """Leave the events that belong into the audit log for the run's owner."""
    for event in events:
        if event.type in REPORTED:
            rows.reports[max(rows.reports, default=0) + 1] = (run_id, event)
