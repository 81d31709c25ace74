"""The parts of an orchestrator: the ports that it drives, the objects that bootstrap builds for it, the sessions of one
incarnation, and its work in the background.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from soong.orchestrator.owner.commands import Commands, SessionMemory
from soong.orchestrator.owner.scheduler import Scheduler
from soong.orchestrator.owner.workers import Dispatcher
from soong.shared.core.errors import UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.engine.sessions.session import Ownership, Session, SessionStore
from soong.shared.engine.wire.notifier import Notifier, Subscriber
from soong.shared.storage.store import Store

log = get_logger(__name__)

T = TypeVar("T")
Routine = Callable[[], Coroutine[Any, Any, None]]
"""A part of an owner's work. It is called when it starts: what is stopped before leaves no coroutine behind."""


class OwnedSessions(dict[str, Ownership]):
    """By id, what this owner writes with in each of its sessions."""

    def __init__(self, sessions: SessionStore) -> None:
        super().__init__()
        self._sessions = sessions
        self.active: set[str] = set()
        """Those in which a task runs."""
        self.closing: set[str] = set()
        """Those that the end of their task closes."""

    async def adopt(self, owner_id: str) -> set[str]:
        """Adopt the sessions that have no owner; return their ids."""
        adopted = await self._sessions.adopt_sessions(owner_id)
        for session in adopted:
            self._remember(session)
            log.info("session_adopted", session=session.id, epoch=session.owner_epoch)
        return {session.id for session in adopted}

    async def busy(self, owner_id: str) -> set[str]:
        """Return the sessions with open work whose rows name this owner, whether we remember them or not."""
        busy = set(await self._sessions.busy_sessions(owner_id))
        for session_id in sorted(busy - self.keys()):
            session = await self._sessions.session(session_id)
            if session.owner_id == owner_id:
                self._remember(session)
        return busy

    def forget(self, ownership: Ownership) -> bool:
        """Forget a session, unless it has become ours again in the meantime; say whether it was forgotten."""
        session_id = ownership.session_id
        if self.get(session_id) != ownership:
            return False
        del self[session_id]
        self.active.discard(session_id)
        self.closing.discard(session_id)
        return True

    def clear(self) -> None:
        """Forget all: another owner may have them."""
        super().clear()
        self.active.clear()
        self.closing.clear()

    def _remember(self, session: Session) -> None:
        self[session.id] = session.ownership
        if session.closes_with_task:
            self.closing.add(session.id)


class BackgroundWork:
    """The tasks and timers of one owner. After :meth:`stop` nothing begins any more, also from a timer set before."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        """In the order they began: they are stopped in it."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_stopped = False

    def begin(self, work: Routine) -> None:
        """Begin a part; one that fails is logged."""
        if self._is_stopped:
            return
        task = asyncio.get_running_loop().create_task(_safely(work))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def begin_later(self, name: str, delay_s: float, work: Routine, *, replaces: bool = True) -> None:
        """Begin a part after a time; it ``replaces`` one of this name that is to begin, or does not begin itself."""
        if name in self._timers and not replaces:
            return
        self.cancel_later(name)

        def begin() -> None:
            self._timers.pop(name, None)
            self.begin(work)

        self._timers[name] = asyncio.get_running_loop().call_later(delay_s, begin)

    def cancel_later(self, name: str) -> None:
        """Have the part of this name not begin, if it is still to."""
        if (planned := self._timers.pop(name, None)) is not None:
            planned.cancel()

    async def stop(self) -> None:
        """Cancel every part, in the order they began, and wait for their ends."""
        self._is_stopped = True
        for name in list(self._timers):
            self.cancel_later(name)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _safely(work: Routine) -> None:
    await within(work(), None)


async def within(work: Awaitable[T], instead: T) -> T:
    """Return what one part of a look finds, or ``instead`` when it fails.

    A failure is logged, ends no other part and is made good by the next sweep: an owner never stops looking.
    """
    try:
        return await work
    except UnavailableError as error:
        log.warning("reconcile_unanswered", error=str(error))
    except Exception:  # a fault in one session's look must not end the loops that all sessions live by
        log.exception("reconcile_failed")
    return instead


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

    async def look(self, ownership: Ownership) -> None: ...

    def next_waiting(self) -> str:
        """Return a session with an ask that waits for room, if there is room now; empty: none."""

    def drop(self, session_id: str) -> None: ...

    async def stop(self, *, is_abandoned: bool = False) -> None: ...


class Recorder(Protocol):
    """Writes the folders of runs (soong.orchestrator.owner.run_archive), in the background."""

    async def write(self, task_id: str) -> None:
        """Write those of a task that has ended."""

    async def write_ended(self, owner_id: str) -> None:
        """Write those of runs that ended a while ago in open tasks of this owner."""

    def set_aside(self) -> Collection[str]:
        """Return the tasks that need not be named to it now."""


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
