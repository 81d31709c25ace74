"""The audit log read page by page: for its export, and for the check that nothing in it was changed."""

from collections.abc import AsyncIterator, Collection
from typing import Final

from soong.shared.core.value import Value
from soong.shared.permissions.audit_log import AuditEntry, AuditStore, Break, Verifier, problem
from soong.shared.permissions.signing import KeyStore

PAGE: Final = 1000


async def entries(
    store: AuditStore, *, session_id: str = "", kinds: Collection[str] = (), since_us: int = 0
) -> AsyncIterator[AuditEntry]:
    """Yield the entries that are asked for, oldest first."""
    after = 0
    while page := await store.audit_entries(
        after=after, session_id=session_id, kinds=kinds, since_us=since_us, limit=PAGE
    ):
        for entry in page:
            yield entry
        after = page[-1].ordinal


class Verification(Value):
    """The result of a check. ``heads`` are the last digests by chain, to be noted elsewhere."""

    entries: int
    heads: dict[str, str]
    broken: Break | None = None
    missing: tuple[str, ...] = ()
    """Digests that were noted elsewhere and are not there any more."""
    misused: tuple[str, ...] = ()
    """Uses of decisions that do not hold."""
    uses: int = 0

    @property
    def holds(self) -> bool:
        return self.broken is None and not self.missing and not self.misused


async def verify(store: AuditStore, keys: KeyStore, *, seen: Collection[str] = ()) -> Verification:
    """Check every chain to its first broken entry, then every use of a decision."""
    verifier, after = Verifier(), 0
    broken: Break | None = None
    while broken is None and (page := await store.audit_entries(after=after, limit=PAGE)):
        broken = verifier.check(page)
        after = page[-1].ordinal
    heads = {chain: digest for chain, (_, digest) in sorted(verifier.heads.items())}
    missing = tuple(digest for digest in seen if broken is None and not verifier.has_seen(digest))
    known = {key.id: key for key in await keys.signing_keys()}
    misused: list[str] = []
    uses, last = 0, ""
    while found := await store.uses(after=last, limit=PAGE):
        for use in found:
            if wrong := problem(use, known):
                call = f"used by call {use.tool_call_id} of run {use.run_id}"
                misused.append(f"decision {use.decision_id}, {call}: {wrong}")
        uses += len(found)
        last = found[-1].decision_id
    return Verification(verifier.count, heads, broken, missing, tuple(misused), uses)
