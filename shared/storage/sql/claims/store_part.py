"""A part of the store: it implements one port over the rows, or some of it, and shares its means with the others."""

from collections.abc import Callable
from typing import TypeVar

from soong.shared.storage.sql.claims.claim_context import Contexts
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.owned_writes import AuditTrail
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.transaction import Transaction

T = TypeVar("T")


class StorePart:
    """The means of every part: one database, one audit trail, one cache of claims' contexts."""

    def __init__(self, database: Database, trail: AuditTrail, contexts: Contexts) -> None:
        self._database = database
        self._trail = trail
        self._contexts = contexts

    async def _write_logged(self, write: Callable[[Transaction, RunLogBuffer], T], now_us: int) -> T:
        """Run a write in a transaction, and write what it gathered for the logs of runs at its end."""

        def logged(tx: Transaction) -> T:
            run_log = RunLogBuffer(now_us)
            result = write(tx, run_log)
            run_log.flush(tx)
            return result

        return await self._database.write(logged)
