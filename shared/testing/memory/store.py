"""The store in memory: the reference model that the SQL store is compared with, and a fast one for tests."""

import threading

from shared.sessions.store import Heart
from shared.testing.memory.access import MemoryAccess
from shared.testing.memory.auditing import MemoryAudit
from shared.testing.memory.changing import MemoryChanging
from shared.testing.memory.consent import MemoryConsent
from shared.testing.memory.further import MemoryFurther
from shared.testing.memory.keys import MemoryKeys
from shared.testing.memory.owning import MemoryOwning
from shared.testing.memory.retrying import MemoryRetrying
from shared.testing.memory.rows import Rows
from shared.testing.memory.runs import MemoryRuns
from shared.testing.memory.sessions import MemoryHeart, MemorySessions
from shared.testing.memory.steps import MemorySteps


class MemoryStore(
    MemorySessions,
    MemorySteps,
    MemoryFurther,
    MemoryOwning,
    MemoryChanging,
    MemoryRetrying,
    MemoryRuns,
    MemoryConsent,
    MemoryKeys,
    MemoryAccess,
    MemoryAudit,
):
    """Implements :class:`shared.store.Store` for one process; ends with it."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.lock = threading.RLock()

    def heart(self) -> Heart:
        return MemoryHeart(self.rows, self.lock)

    async def close(self) -> None:
        """Nothing to close."""
