"""API tokens in memory."""

import threading
from collections.abc import Sequence

from msgspec.structs import replace

from soong.shared.core.errors import ConflictError, NotFoundError
from soong.shared.permissions.access.token import ApiToken
from soong.shared.permissions.audit_log.notes import of_sign_in, of_token_made, of_token_revoked
from tests.model.memory.auditing import add_notes
from tests.model.memory.rows import Rows, transaction


class MemoryAccess:
    """The access part of the store."""

    rows: Rows
    lock: threading.RLock

    @transaction
    def add_token(self, token: ApiToken) -> None:
        if self.rows.tokens.setdefault(token.id, token) is not token:
            raise ConflictError(f"there is a token {token.id} already")
        add_notes(self.rows, [of_token_made(token)], token.created_us)

    @transaction
    def token(self, token_id: str) -> ApiToken | None:
        return self.rows.tokens.get(token_id)

    @transaction
    def tokens(self) -> Sequence[ApiToken]:
        return list(self.rows.tokens.values())

    @transaction
    def sign_in(self, token_id: str, *, code_digest: str, digest: str, now_us: int) -> ApiToken | None:
        token = self.rows.tokens.get(token_id)
        if token is None or token.digest != code_digest or token.revoked_us is not None:
            return None
        if token.sign_in_by_us is None or token.sign_in_by_us <= now_us:
            return None
        self.rows.tokens[token_id] = replace(token, digest=digest, sign_in_by_us=None)
        add_notes(self.rows, [of_sign_in(token)], now_us)
        return self.rows.tokens[token_id]

    @transaction
    def revoke_token(self, token_id: str, *, now_us: int) -> bool:
        token = self.rows.tokens.get(token_id)
        if token is None:
            raise NotFoundError("token", token_id)
        if token.revoked_us is not None:
            return False
        self.rows.tokens[token_id] = replace(token, revoked_us=now_us)
        add_notes(self.rows, [of_token_revoked(token)], now_us)
        return True
