"""Public keys and how they end (PER-12): what a worker believes of a decision, once its signature holds.

A key is **retired** when another signs in its place: what it signed until then stays good until it expires, what it
signs later is refused. It is **revoked** when somebody else may have it: nothing that is signed with it counts any
more, whatever date it bears, since a thief writes the date himself.
"""

from collections.abc import Sequence
from typing import Protocol

from soong.shared.core.errors import ForgedError
from soong.shared.core.value import Value
from soong.shared.permissions.request import Decision


class SigningKey(Value):
    """A public key as stored in its rows. ``retired_us`` may lie ahead: until then both keys sign."""

    id: str
    public_key: bytes
    created_us: int
    retired_us: int | None = None
    revoked_us: int | None = None

    def state(self, now_us: int) -> str:
        """Return ``active``, ``retiring``, ``retired`` or ``revoked``."""
        if self.revoked_us is not None:
            return "revoked"
        if self.retired_us is None:
            return "active"
        return "retired" if self.retired_us <= now_us else "retiring"

    def check(self, decision: Decision) -> None:
        """Check that the key was good when it signed.

        Raises:
            ForgedError: it is revoked, or was retired before.
        """
        if self.revoked_us is not None:
            raise ForgedError(f"decision {decision.id!r} is signed with the revoked key {self.id}", what="revoked_key")
        if self.retired_us is not None and decision.decided_us > self.retired_us:
            raise ForgedError(
                f"decision {decision.id!r} is signed with the key {self.id} after that was retired", what="retired_key"
            )


class ExpiredDecision(Value):
    """A question whose decision a revoked key took away before it was used; it is asked again."""

    session_id: str
    run_id: str
    request_id: str


class KeyStore(Protocol):
    async def publish_key(
        self, key_id: str, public_key: bytes, *, now_us: int, principal: str = "", reason: str = ""
    ) -> None:
        """Insert a public key (32 bytes, Ed25519), once. For operators; workers only read.

        Raises: ConflictError when another key has that id.
        """
        ...

    async def publish_first_key(self, key_id: str, public_key: bytes, *, now_us: int) -> bool:
        """Insert a public key when there is none at all; return whether it was inserted.

        Two first owners that start at the same moment, each with a key of its own, may both insert theirs.
        """
        ...

    async def signing_key(self, key_id: str) -> SigningKey | None: ...

    async def signing_keys(self) -> Sequence[SigningKey]:
        """Return all keys in the order they were published."""
        ...

    async def retire_key(
        self, key_id: str, *, is_revoked: bool, at_us: int, principal: str, reason: str, now_us: int
    ) -> Sequence[ExpiredDecision]:
        """End a key from ``at_us`` on, or, revoked, for all that it ever signed; a second time changes nothing.

        Revoking closes the question of every decision by it that was not used, as expired, with permission_expired in
        the run's log; they are returned. Their calls ask again.

        Raises: NotFoundError when there is no such key.
        """
        ...
