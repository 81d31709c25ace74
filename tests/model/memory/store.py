"""The store in memory: the reference model that the SQL store is compared with, and a fast one for tests."""

import threading
from typing import Self

from soong.shared.engine.sessions.session import HeartbeatWriter
from tests.model.memory.consent import MemoryAccess, MemoryConsent, MemoryKeys
from tests.model.memory.ending import MemoryAdditionalClaims
from tests.model.memory.outbox import MemoryEventFeed, MemoryNotificationOutbox
from tests.model.memory.owning import MemoryChanging, MemoryOwning, MemoryRetrying
from tests.model.memory.rows import MemoryAudit, Rows
from tests.model.memory.runs import MemoryBudgets, MemoryRuns
from tests.model.memory.sessions import MemoryAsks, MemoryHeartbeatWriter, MemorySessions
from tests.model.memory.steps import MemorySteps


class MemoryStore(
    MemorySessions,
    MemorySteps,
    MemoryAdditionalClaims,
    MemoryOwning,
    MemoryChanging,
    MemoryRetrying,
    MemoryAsks,
    MemoryRuns,
    MemoryConsent,
    MemoryKeys,
    MemoryAccess,
    MemoryAudit,
):
    """Implements :class:`soong.shared.storage.store.Store` for one process; ends with it."""

    def __init__(self) -> None:
        super().__init__(Rows(), threading.RLock())

    @property
    def sessions(self) -> Self:
        return self

    @property
    def tasks(self) -> Self:
        return self

    @property
    def asks(self) -> Self:
        return self

    @property
    def claims(self) -> Self:
        return self

    @property
    def runs(self) -> Self:
        return self

    @property
    def budgets(self) -> MemoryBudgets:
        """Return a part of its own: one of its methods has this name, too."""
        return MemoryBudgets(self.rows, self.lock)

    @property
    def consent(self) -> Self:
        return self

    @property
    def keys(self) -> Self:
        return self

    @property
    def access(self) -> Self:
        return self

    @property
    def audit(self) -> Self:
        return self

    @property
    def feed(self) -> MemoryEventFeed:
        """Return a part of its own: its methods have general names."""
        return MemoryEventFeed(self.rows, self.lock)

    @property
    def outbox(self) -> MemoryNotificationOutbox:
        """Return a part of its own, as above."""
        return MemoryNotificationOutbox(self.rows, self.lock)

    def heartbeat_writer(self) -> HeartbeatWriter:
        return MemoryHeartbeatWriter(self.rows, self.lock)

    async def close(self) -> None:
        """Nothing to close."""
