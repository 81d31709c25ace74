"""The sessions of one incarnation of an owner, as its rows name them."""

from collections.abc import Iterator, Mapping

from soong.shared.core.log import get_logger
from soong.shared.engine.sessions.session import Ownership, Session
from soong.shared.engine.sessions.store import SessionStore

log = get_logger(__name__)


class OwnedSessions(Mapping[str, Ownership]):
    """By id, what this owner writes with in each of its sessions."""

    def __init__(self, sessions: SessionStore) -> None:
        self._sessions = sessions
        self._owned: dict[str, Ownership] = {}
        self.active: set[str] = set()
        """Those in which a task runs."""
        self.closing: set[str] = set()
        """Those that the end of their task closes."""

    def __getitem__(self, session_id: str, /) -> Ownership:
        return self._owned[session_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._owned)

    def __len__(self) -> int:
        return len(self._owned)

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
        for session_id in sorted(busy - self._owned.keys()):
            session = await self._sessions.session(session_id)
            if session.owner_id == owner_id:
                self._remember(session)
        return busy

    def forget(self, ownership: Ownership) -> bool:
        """Forget a session, unless it has become ours again in the meantime; say whether it was forgotten."""
        session_id = ownership.session_id
        if self._owned.get(session_id) != ownership:
            return False
        del self._owned[session_id]
        self.active.discard(session_id)
        self.closing.discard(session_id)
        return True

    def clear(self) -> None:
        """Forget all: another owner may have them."""
        for known in (self._owned, self.active, self.closing):
            known.clear()

    def _remember(self, session: Session) -> None:
        self._owned[session.id] = session.ownership
        if session.closes_with_task:
            self.closing.add(session.id)
