"""Who is there to answer: responders judged by their beats on our own monotonic clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from soong.shared.engine.sessions.session import Responder


@dataclass(slots=True)
class Presence:
    """The responders of one session as its owner sees them. A beat that has not moved for the lease is away."""

    lease: timedelta
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict)

    def observe(self, responders: Sequence[Responder], now_s: float) -> tuple[bool, frozenset[str]]:
        """Take the current rows; return whether anybody is there, and the ids of those that are away."""
        for responder in responders:
            beat, _ = self._seen.get(responder.id, (-1, 0.0))
            if responder.beat != beat:
                self._seen[responder.id] = (responder.beat, now_s)
        self._seen = {responder.id: self._seen[responder.id] for responder in responders}
        lease_s = self.lease.total_seconds()
        away = frozenset(name for name, (_, moved_at) in self._seen.items() if now_s - moved_at >= lease_s)
        return len(away) < len(self._seen), away
