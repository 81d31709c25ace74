"""The broker: the one place where questions of an owner's sessions become signed decisions (CARD-3, PER-01).

Owns a :class:`SessionApprovals` for each session that has questions or grants. A successor of a dead owner asks
the same questions under the same ids, reads the stored answers, and has none of its grants.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from soong.orchestrator.approvals.deployment_key import DeploymentKey
from soong.orchestrator.approvals.session_approvals import ApprovalContext, RunEvents, SessionApprovals, UnheldRuns
from soong.shared.core import timing
from soong.shared.core.clock import Clock
from soong.shared.core.settings import Settings
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.permissions.scope import Grant
from soong.shared.sandbox.redact import Redactor
from soong.shared.storage.store import Store


class ApprovalBroker:
    """The broker of one owner. ``review`` may be called as often as one likes; nothing in it waits for people."""

    def __init__(
        self,
        store: Store,
        notifier: Notifier,
        key: DeploymentKey,
        clock: Clock,
        settings: Settings,
        *,
        owner_id: Callable[[], str],
        home: str = "",
        redactor: Redactor | None = None,
        events: RunEvents | None = None,
    ) -> None:
        home, redactor = home or str(Path.home()), redactor or Redactor()
        unheld = UnheldRuns(store, events)
        self._tools = ApprovalContext(store, notifier, key, clock, settings, owner_id, home, redactor, unheld)
        self._sessions: dict[str, SessionApprovals] = {}
        self._heard_s = -math.inf

    @property
    def is_busy(self) -> bool:
        """Say whether questions or answers come in: work for which nobody waits would hold them up."""
        return self._tools.clock.monotonic_s() - self._heard_s < timing.SETTLE_S

    async def review(self, session_ids: Sequence[str]) -> None:
        """Look at the pending questions of these sessions, in tasks of the broker's own."""
        await self._tools.key.current()
        self._sessions = {name: broker for name, broker in self._sessions.items() if not broker.is_idle}
        for session_id in session_ids:
            self._of(session_id).wake()

    async def look_at(self, session_id: str) -> None:
        """Look at a session of which a question was raised, answered or withdrawn."""
        self._heard_s = self._tools.clock.monotonic_s()
        await self._tools.key.current()
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
        return self._sessions.setdefault(session_id, SessionApprovals(self._tools, session_id))
