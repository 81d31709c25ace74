"""The limit of a run's open questions: those beyond it are closed unseen, many in one transaction (threat 15).

A worker that has turned bad can raise as many questions as its database takes. A person is shown a bounded number of
them, and none holds back the questions of others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from soong.shared.core.clock import Clock
from soong.shared.core.log import get_logger
from soong.shared.engine.sessions.session import Ownership
from soong.shared.permissions.request import PermissionRequest
from soong.shared.permissions.signing import check_proof
from soong.shared.permissions.store import ConsentStore, OpenQuestions

log = get_logger(__name__)

MAX_OPEN: Final = 100
"""Questions that one run may have open: as many as reading calls of one turn may ever run at once."""
MAX_READ: Final = 2_000
"""Questions of a session that one look reads, the oldest; what lies behind them is seen once those are closed."""


@dataclass(slots=True)
class QuestionLimiter:
    """Closes a run's questions beyond the limit. Keeps such runs for its own life: they ask nothing new."""

    store: ConsentStore
    clock: Clock
    flooding: set[str] = field(default_factory=set)

    async def bounded(
        self, ownership: Ownership, found: OpenQuestions, shown: Mapping[str, object]
    ) -> Sequence[PermissionRequest]:
        """Return the questions that stay, in their order; ``shown`` are those that the broker has already.

        Raises: NotOwnerError.
        """
        pending = found.pending
        by_run: dict[str, list[PermissionRequest]] = {}
        for request in pending:
            by_run.setdefault(request.identity.run_id, []).append(request)
        gone: set[str] = set()
        for run_id, asked in by_run.items():
            if run_id in self.flooding or len(asked) > MAX_OPEN:
                kept = self._kept(found.tokens[run_id], run_id, asked, shown)
                closed = await self.store.drop_excess(ownership, run_id, kept, now_us=self.clock.now_us())
                if closed:
                    log.error("questions_dropped", session=ownership.session_id, run=run_id, closed=closed)
                gone |= {request.id for request in asked} - set(kept)
        return [request for request in pending if request.id not in gone] if gone else pending

    def _kept(
        self, token: str, run_id: str, asked: Sequence[PermissionRequest], shown: Mapping[str, object]
    ) -> Sequence[str]:
        """Return the ids of those that stay: of a run that floods what is shown, else the oldest that it proved."""
        if run_id in self.flooding:
            return [request.id for request in asked if request.id in shown]
        proven = [request.id for request in asked if check_proof(token, request)]
        if len(proven) > MAX_OPEN:
            self.flooding.add(run_id)  # not for what others raised in its name
        return proven[:MAX_OPEN]
