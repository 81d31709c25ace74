"""The parts of an orchestrator: the ports that it drives, and the objects that bootstrap builds for it."""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from soong.orchestrator.owner.commands import Commands, SessionMemory
from soong.orchestrator.owner.dispatcher import Dispatcher
from soong.orchestrator.owner.scheduler import Scheduler
from soong.shared.core.timing import Clock
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.wire.notifier import Notifier, Subscriber
from soong.shared.storage.store import Store


class SessionReviewer(Protocol):
    """The approval broker, as the service uses it (soong.orchestrator.approvals.broker)."""

    async def review(self, session_ids: Sequence[str]) -> None: ...

    async def close(self) -> None: ...


Ended = Callable[[str, str], None]
"""Gets the session and the task of an agent whose run here is over, or was stopped."""


class SessionAgents(Protocol):
    """Runs the agents of a session's asks (soong.orchestrator.owner.asks)."""

    def on_end(self, ended: Ended) -> None: ...

    def holds(self, session_id: str, /) -> bool:
        """Say whether an agent of the session runs here."""
        ...

    async def look(self, ownership: Ownership) -> None: ...

    def next_waiting(self) -> str:
        """Return a session with an ask that waits for room, if there is room now; empty: none."""
        ...

    def drop(self, session_id: str) -> None: ...

    async def stop(self, *, is_abandoned: bool = False) -> None: ...


class Recorder(Protocol):
    """Writes the folders of runs (soong.orchestrator.owner.run_archive), in the background."""

    async def write(self, task_id: str) -> None:
        """Write those of a task that has ended."""
        ...

    async def write_ended(self, owner_id: str) -> None:
        """Write those of runs that ended a while ago in open tasks of this owner."""
        ...

    def set_aside(self) -> Collection[str]:
        """Return the tasks that need not be named to it now."""
        ...


@dataclass(slots=True)
class Parts:
    """The objects that bootstrap builds and the service drives."""

    store: Store
    notifier: Notifier
    subscriber: Subscriber
    clock: Clock
    scheduler: Scheduler
    commands: Commands
    dispatcher: Dispatcher
    broker: SessionReviewer
    recorder: Recorder
    agents: SessionAgents
    memory: SessionMemory | None = None
    closers: Sequence[Callable[[], Awaitable[None]]] = ()
    background: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    """Other tasks from start to stop, cancelled at the stop."""
