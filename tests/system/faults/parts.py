"""The parts of the store in which a fault may be."""

from typing import Final

from soong.shared.storage.sql.store import (
    SqlAskStore,
    SqlClaimStore,
    SqlConsentStore,
    SqlOutbox,
    SqlRunStore,
    SqlSessionStore,
    SqlTaskStore,
)

PARTS: Final = (SqlSessionStore, SqlTaskStore, SqlAskStore, SqlClaimStore, SqlRunStore, SqlConsentStore, SqlOutbox)


def part_with(method: str) -> type | None:
    """Return the class of the part that has this method; None when none has."""
    return next((part for part in PARTS if hasattr(part, method)), None)
