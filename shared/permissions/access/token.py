"""API tokens as values: a principal, its rights, and a secret of which only the digest is ever kept.

A token is shown once, to its creator. Its form (``soong_tok_<id>_<secret>``) names the row to compare it with, and lets
secret scanners and our own redaction recognize it anywhere.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

from soong.shared.core.errors import UsageError
from soong.shared.core.identity import new_id
from soong.shared.core.value import Value


class Right(StrEnum):
    """A right of a token's principal (DESIGN: tenancy)."""

    READ = "read"
    """See every session, task, run and question of the deployment: one deployment is one tenant."""
    RUN = "run"
    """Submit tasks, and pause, resume, retry, cancel and close what is its principal's own."""
    APPROVE = "approve"
    """Answer questions; and submit with rules that allow, which is an answer given beforehand."""
    ADMIN = "admin"
    """Pause, resume, retry, cancel and close what is others', too. It answers no question."""


IMPLIED: Final[Mapping[Right, frozenset[Right]]] = {
    Right.READ: frozenset(),
    Right.RUN: frozenset({Right.READ}),
    Right.APPROVE: frozenset({Right.READ}),
    # Not approve: running the service is no reason to speak for the people who use it.
    Right.ADMIN: frozenset({Right.READ, Right.RUN}),
}
"""The rights that each right includes."""

_PRINCIPAL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_TOKEN: Final = re.compile(r"soong_(tok_(?:[0-9a-v]{26}|[0-9a-f]{32}))_([A-Za-z0-9_-]{43})")
_SECRET_BYTES: Final = 32


class ApiToken(Value):
    """A token as stored. ``digest`` is the SHA-256 of the secret, in hexadecimal."""

    id: str
    principal: str
    rights: frozenset[Right]
    digest: str
    created_us: int
    expires_us: int | None = None
    revoked_us: int | None = None
    sign_in_by_us: int | None = None
    """Until when its text is the code of one sign-in, and no token; None: it is a token."""

    def allows(self, right: Right) -> bool:
        """Say whether the token carries a right, by itself or because another brings it."""
        return any(right is held or right in IMPLIED[held] for held in self.rights)

    def is_proved_by(self, secret: str) -> bool:
        """Say whether that is its secret, in a time that does not tell how much of it was right."""
        return hmac.compare_digest(digest_of(secret), self.digest)

    def problem(self, now_us: int) -> str:
        """Return why the token is worth nothing now: ``revoked``, ``expired``; empty when it is good."""
        if self.revoked_us is not None:
            return "revoked"
        if self.sign_in_by_us is not None:
            return "the code of a sign-in"
        return "expired" if self.expires_us is not None and self.expires_us <= now_us else ""


def digest_of(secret: str) -> str:
    """Return what is kept of a secret. It has 256 random bits, so a plain digest cannot be searched."""
    return hashlib.sha256(secret.encode()).hexdigest()


def make_token(
    principal: str,
    rights: Iterable[Right],
    *,
    now_us: int,
    expires_us: int | None = None,
    sign_in_by_us: int | None = None,
) -> tuple[ApiToken, str]:
    """Return a new token and its text, which is to be shown once and kept nowhere.

    With ``sign_in_by_us`` the text is the code of a sign-in: its first sender puts another secret in its place
    (``AccessStore.sign_in``), so an address or a history that contains the code opens nothing afterwards.
    Raises: UsageError, the principal is not a plain name, or no right is given.
    """
    held = frozenset(rights)
    if not _PRINCIPAL.fullmatch(principal):
        raise UsageError(
            f"the principal {principal!r} is not a name; use 1 to 64 letters, digits and . _ @ + -, "
            "beginning with a letter or digit"
        )
    if not held:
        raise UsageError("a token needs a right; name one of " + ", ".join(Right))
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    token = ApiToken(new_id("tok"), principal, held, digest_of(secret), now_us, expires_us, sign_in_by_us=sign_in_by_us)
    return token, f"soong_{token.id}_{secret}"


def read_token(text: str) -> tuple[str, str] | None:
    """Return the id and the secret that a token's text names; None when it is not a token."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else (found[1], found[2])


class AccessStore(Protocol):
    async def add_token(self, token: ApiToken) -> None:
        """Insert a token. Raises: ConflictError when one of that id exists."""

    async def token(self, token_id: str) -> ApiToken | None: ...

    async def tokens(self) -> Sequence[ApiToken]:
        """Return all tokens in the order they were made, those that are revoked or expired too."""

    async def sign_in(self, token_id: str, *, code_digest: str, digest: str, now_us: int) -> ApiToken | None:
        """Put a secret in the place of a sign-in's code, once; return the token, None when the code is worth nothing.
        ``code_digest`` and ``digest`` are the SHA-256 of both. Only one of several calls at the same moment succeeds.
        """

    async def revoke_token(self, token_id: str, *, now_us: int) -> bool:
        """End a token for good; False when it was revoked before, which stays as it is. Raises: NotFoundError."""


class DatabaseRights(Value):
    """A database role. ``decides``: it may insert decisions or public keys, as an orchestrator's may."""

    role: str
    owns_tables: bool
    decides: bool
