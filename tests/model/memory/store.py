"""The store in memory: the reference model that the SQL store is compared with, and a fast one for tests."""

import threading

from soong.shared.engine.sessions.store import HeartbeatWriter
from tests.model.memory.access import MemoryAccess
from tests.model.memory.auditing import MemoryAudit
from tests.model.memory.changing import MemoryChanging
from tests.model.memory.consent import MemoryConsent
from tests.model.memory.further import MemoryFurther
from tests.model.memory.keys import MemoryKeys
from tests.model.memory.owning import MemoryOwning
from tests.model.memory.retrying import MemoryRetrying
from tests.model.memory.rows import Rows
from tests.model.memory.runs import MemoryRuns
from tests.model.memory.sessions import MemoryHeart, MemorySessions
from tests.model.memory.steps import MemorySteps


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
    """Implements :class:`soong.shared.storage.store.Store` for one process; ends with it."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.lock = threading.RLock()

    def heart(self) -> HeartbeatWriter:
        return MemoryHeart(self.rows, self.lock)

    async def close(self) -> None:
        """Nothing to close."""
