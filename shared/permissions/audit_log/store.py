"""The port for the audit log. Entries are only ever added; workers have no right on it and leave reports instead."""

from collections.abc import Collection, Sequence
from typing import Protocol

from soong.shared.permissions.audit_log.entry import AuditEntry, AuditNote
from soong.shared.permissions.audit_log.uses import Use


class AuditStore(Protocol):
    async def note(self, notes: Sequence[AuditNote], *, now_us: int) -> None:
        """Add entries of their own, for what has no other transaction that they could be part of."""
        ...

    async def audit_entries(
        self, *, after: int = 0, session_id: str = "", kinds: Collection[str] = (), since_us: int = 0, limit: int = 1000
    ) -> Sequence[AuditEntry]:
        """Return entries in the order of their insertion, those with a higher ordinal than ``after``."""
        ...

    async def uses(self, *, after: str = "", limit: int = 1000) -> Sequence[Use]:
        """Return the decisions that were used, in the order of their ids, those beyond ``after``."""
        ...

    async def take_reports(self, owner_id: str, *, now_us: int, limit: int = 200) -> int:
        """Make entries of what workers reported of the owner's and nobody's sessions, each once; return how many.

        A worker reports what it refused in its run's log, and in the same transaction in a row that it cannot read.
        """
        ...
