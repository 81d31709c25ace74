"""A part of the store: it implements one port over the rows, or some of it, and shares its means with the others."""

from soong.shared.storage.sql.claims.claim_context import Contexts
from soong.shared.storage.sql.engine.audit_log import AuditTrail
from soong.shared.storage.sql.engine.database import Database


class StorePart:
    """The means of every part: one database, one audit trail, one cache of claims' contexts."""

    def __init__(self, database: Database, trail: AuditTrail, contexts: Contexts) -> None:
        self._database = database
        self._trail = trail
        self._contexts = contexts
