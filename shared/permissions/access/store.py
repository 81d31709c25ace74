"""The port for API tokens. Only their makers and the HTTP server use it; workers have no right on the table."""

from collections.abc import Sequence
from typing import Protocol

from soong.shared.core.value import Value
from soong.shared.permissions.access.token import ApiToken


class AccessStore(Protocol):
    async def add_token(self, token: ApiToken) -> None:
        """Insert a token. Raises: ConflictError when one of that id exists."""
        ...

    async def token(self, token_id: str) -> ApiToken | None: ...

    async def tokens(self) -> Sequence[ApiToken]:
        """Return all tokens in the order they were made, those that are revoked or expired too."""
        ...

    async def sign_in(self, token_id: str, *, code_digest: str, digest: str, now_us: int) -> ApiToken | None:
        """Put a secret in the place of a sign-in's code, once; return the token, None when the code is worth nothing.

        ``code_digest`` and ``digest`` are the SHA-256 of both. Of several at the same moment one succeeds.
        """
        ...

    async def revoke_token(self, token_id: str, *, now_us: int) -> bool:
        """End a token for good; False when it was revoked before, which stays as it is.

        Raises: NotFoundError.
        """
        ...


class DatabaseRights(Value):
    """A database role. ``decides``: it may insert decisions or public keys, as an orchestrator's may."""

    role: str
    owns_tables: bool
    decides: bool
