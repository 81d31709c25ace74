"""The one store behind the ports: an adapter implements all of them over one database."""

from typing import Protocol

from shared.access.store import AccessStore
from shared.audit.store import AuditStore
from shared.permissions.store import ConsentStore
from shared.runs.store import RunPages, RunStore
from shared.sessions.store import Heart, SessionStore
from shared.tasks.store import TaskStore


class Store(SessionStore, TaskStore, RunStore, RunPages, ConsentStore, AccessStore, AuditStore, Protocol):
    """Sessions, tasks, runs, consent, API tokens and the audit log of one deployment."""

    def heart(self) -> Heart:
        """Return a heartbeat with a connection of its own."""
        ...

    async def close(self) -> None: ...
