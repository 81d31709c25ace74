"""Public keys and their ends in memory."""

from collections.abc import Sequence

from msgspec.structs import replace

from soong.shared.core.errors import ConflictError, NotFoundError
from soong.shared.engine.runs.events import EventType
from soong.shared.permissions.access.token import ApiToken
from soong.shared.permissions.audit_log import (
    of_key_published,
    of_key_retired,
    of_sign_in,
    of_token_made,
    of_token_revoked,
)
from soong.shared.permissions.request import RequestState
from soong.shared.permissions.signing import ExpiredDecision, SigningKey
from tests.model.memory.logs import add_notes, note_run
from tests.model.memory.rows import Part, Rows, transaction


class MemoryKeys(Part):
    """The part of the store that keeps public keys."""

    @transaction
    def publish_key(
        self, key_id: str, public_key: bytes, *, now_us: int, principal: str = "", reason: str = ""
    ) -> None:
        if key_id not in self.rows.keys:
            self.rows.keys[key_id] = SigningKey(key_id, public_key, now_us)
            add_notes(self.rows, [of_key_published(key_id, public_key, principal, reason)], now_us)
        elif self.rows.keys[key_id].public_key != public_key:
            raise ConflictError(f"another key has the id {key_id}; a new key takes a new id")

    @transaction
    def publish_first_key(self, key_id: str, public_key: bytes, *, now_us: int) -> bool:
        if self.rows.keys:
            return False
        self.rows.keys[key_id] = SigningKey(key_id, public_key, now_us)
        add_notes(self.rows, [of_key_published(key_id, public_key, "", "the first key")], now_us)
        return True

    @transaction
    def signing_key(self, key_id: str) -> SigningKey | None:
        return self.rows.keys.get(key_id)

    @transaction
    def signing_keys(self) -> Sequence[SigningKey]:
        return sorted(self.rows.keys.values(), key=lambda key: (key.created_us, key.id))

    @transaction
    def retire_key(
        self, key_id: str, *, is_revoked: bool, at_us: int, principal: str, reason: str, now_us: int
    ) -> Sequence[ExpiredDecision]:
        key = self.rows.keys.get(key_id)
        if key is None:
            raise NotFoundError("key", key_id)
        if (key.revoked_us if is_revoked else key.retired_us) is not None:
            return []
        self.rows.keys[key_id] = replace(key, revoked_us=at_us) if is_revoked else replace(key, retired_us=at_us)
        expired = [self._expire(request_id, now_us) for request_id in self._unused(key_id)] if is_revoked else []
        add_notes(self.rows, of_key_retired(key_id, is_revoked, at_us, principal, reason, expired), now_us)
        return expired

    def _unused(self, key_id: str) -> list[str]:
        return [
            request_id
            for request_id, decision in sorted(self.rows.decisions.items())
            if decision.key_id == key_id
            and decision.id not in self.rows.consumed
            and self.rows.request_states[request_id] is RequestState.DECIDED
        ]

    def _expire(self, request_id: str, now_us: int) -> ExpiredDecision:
        self.rows.request_states[request_id] = RequestState.EXPIRED
        identity, decision = self.rows.requests[request_id].identity, self.rows.decisions[request_id]
        told = {"request_id": request_id, "decision_id": decision.id, "reason": "its key was revoked"}
        note_run(self.rows, identity.run_id, EventType.PERMISSION_EXPIRED, now_us, **told)
        return ExpiredDecision(identity.session_id, identity.run_id, request_id)


def check_signs(rows: Rows, key_id: str, decided_us: int) -> None:
    """Refuse a decision by a key that has ended. Raises: ConflictError."""
    key = rows.keys.get(key_id)
    if key is None:
        return
    if key.revoked_us is not None or (key.retired_us is not None and key.retired_us < decided_us):
        raise ConflictError(f"the key {key_id} has been retired and signs nothing any more; run `soong keys rotate`")


class MemoryAccess(Part):
    """The access part of the store."""

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
