"""The parts of the store in which a fault may be."""

from typing import Final

from soong.shared.storage.sql.consent.consent import SqlConsentStore
from soong.shared.storage.sql.store import SqlClaimStore, SqlRunStore, SqlTaskStore
from soong.shared.storage.sql.tasks.event_feed import SqlOutbox
from soong.shared.storage.sql.tasks.sessions import SqlSessionStore
from soong.shared.storage.sql.tasks.task_ends import SqlAskStore

PARTS: Final = (SqlSessionStore, SqlTaskStore, SqlAskStore, SqlClaimStore, SqlRunStore, SqlConsentStore, SqlOutbox)


def part_with(method: str) -> type | None:
    """Return the class of the part that has this method; None when none has."""
    return next((part for part in PARTS if hasattr(part, method)), None)
