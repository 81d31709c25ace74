"""The one store behind the ports: an adapter implements all of them over one database."""

from typing import Protocol

from shared.permissions.store import ConsentStore
from shared.runs.store import RunStore
from shared.sessions.store import Heart, SessionStore
from shared.tasks.store import TaskStore


class Store(SessionStore, TaskStore, RunStore, ConsentStore, Protocol):
    """Sessions, tasks, runs and consent of one deployment."""

    def heart(self) -> Heart:
        """Return a heartbeat with a connection of its own."""
        ...

    async def close(self) -> None: ...
