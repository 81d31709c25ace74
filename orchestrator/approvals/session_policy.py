"""The policy of a session, read once: it never changes, and its row comes with every question."""

from dataclasses import dataclass, field

from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.sessions.session import Session
from soong.shared.permissions.policy import Policy, policy_for


@dataclass(slots=True)
class SessionPolicy:
    """The last policy that was read, and as what it is stored."""

    _stored: JsonObject | None = None
    _policy: Policy = field(default_factory=Policy)

    def of(self, session: Session, identity: RunIdentity) -> Policy:
        """Return the session's policy as it holds for one of its runs. Raises: InvalidConfigError."""
        if self._stored != session.policy:
            policy = Policy.from_json(session.policy)
            self._stored, self._policy = session.policy, policy
        return policy_for(self._policy, identity)
