"""The broker: the one place where questions of an owner's sessions become signed decisions (CARD-3, PER-01).

Owns a :class:`SessionApprovals` for each session that has questions or grants. A successor of a dead owner asks
the same questions under the same ids, reads the stored answers, and has none of its grants.
"""

from collections.abc import Sequence

from soong.orchestrator.approvals.session_approvals import ApprovalContext, SessionApprovals
from soong.shared.permissions.scope import Grant


class ApprovalBroker:
    """The broker of one owner. ``review`` may be called as often as one likes; nothing in it waits for people."""

    def __init__(self, context: ApprovalContext) -> None:
        self._context = context
        self._sessions: dict[str, SessionApprovals] = {}

    async def review(self, session_ids: Sequence[str]) -> None:
        """Look at the pending questions of these sessions, in tasks of the broker's own."""
        await self._context.key.current()
        self._sessions = {name: broker for name, broker in self._sessions.items() if not broker.is_idle}
        for session_id in session_ids:
            self._of(session_id).wake()

    async def look_at(self, session_id: str) -> None:
        """Look at a session of which a question was raised, answered or withdrawn."""
        await self._context.key.current()
        self._of(session_id).wake()

    def grants(self, session_id: str) -> Sequence[Grant]:
        """Return what has been allowed for the session, for showing."""
        return tuple(self._of(session_id).grants)

    async def close(self) -> None:
        """End every task; questions stay pending for a successor."""
        brokers, self._sessions = list(self._sessions.values()), {}
        for broker in brokers:
            await broker.close()

    def _of(self, session_id: str) -> SessionApprovals:
        return self._sessions.setdefault(session_id, SessionApprovals(self._context, session_id))
