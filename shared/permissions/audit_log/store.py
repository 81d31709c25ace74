"""The port for the audit log. Entries are only ever added; workers have no right on it and leave reports instead."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from soong.shared.core.errors import ForgedError
from soong.shared.core.value import Value
from soong.shared.permissions.audit_log.entry import AuditEntry, AuditNote
from soong.shared.permissions.request import Decision
from soong.shared.permissions.signing import SigningKey, verify


class Use(Value):
    """One consumption. ``decision`` is None when no row of that id is one; ``input_digest`` is the call's own."""

    decision_id: str
    run_id: str
    tool_call_id: str
    consumed_us: int
    decision: Decision | None
    input_digest: str | None


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


def problem(use: Use, keys: Mapping[str, SigningKey]) -> str:
    """Return what is wrong with a use, in a sentence; empty when it holds."""
    decision = use.decision
    if decision is None:
        return "there is no such decision"
    if (decision.run_id, decision.tool_call_id) != (use.run_id, use.tool_call_id):
        return f"it was given to call {decision.tool_call_id} of run {decision.run_id}"
    if not decision.choice.is_allowed or decision.error is not None:
        return "it says no"
    if use.consumed_us >= decision.expires_us:
        return "it had expired"
    if use.input_digest is not None and use.input_digest != decision.input_digest:
        return "the call's input is another than the one that was allowed"
    key = keys.get(decision.key_id)
    if key is None:
        return f"its key {decision.key_id} is unknown"
    try:
        verify(decision, key.public_key)
        if key.revoked_us is None or use.consumed_us > key.revoked_us:  # used before: nothing can take that back
            key.check(decision)
    except ForgedError as error:
        return str(error)
    return ""
