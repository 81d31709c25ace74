"""API tokens as rows: the digest of a secret, never the secret."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import select

from soong.shared.core.errors import ConflictError, NotFoundError
from soong.shared.permissions.access.token import ApiToken, Right
from soong.shared.permissions.audit_log.notes import of_sign_in, of_token_made, of_token_revoked
from soong.shared.storage.sql.engine.audit_log import AuditTrail
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.row_mapper import RowMapper
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.tables.service import api_tokens
from soong.shared.storage.sql.engine.texts import pack, unpack
from soong.shared.storage.sql.engine.transaction import Transaction

_TOKENS: Final = RowMapper(
    ApiToken, api_tokens, own={"rights": lambda row: frozenset(Right(right) for right in unpack(row.rights))}
)
ADD_TOKEN: Final = Statement(
    "add token: no row means that one of that id exists",
    """
    INSERT INTO api_tokens (id, principal, rights, digest, created_us, expires_us, sign_in_by_us)
    VALUES (:id, :principal, :rights, :digest, :created_us, :expires_us, :sign_in_by_us)
    ON CONFLICT (id) DO NOTHING RETURNING id
    """,
)
SIGN_IN: Final = Statement(
    "sign in: a secret in the place of a code, once and in time",
    """
    UPDATE api_tokens SET digest = :digest, sign_in_by_us = NULL
    WHERE id = :id AND digest = :code_digest AND sign_in_by_us > :now_us AND revoked_us IS NULL
    """,
)
REVOKE_TOKEN: Final = Statement(
    "revoke token: once",
    "UPDATE api_tokens SET revoked_us = :now_us WHERE id = :id AND revoked_us IS NULL",
)


class SqlAccess:
    """The access part of the store."""

    _database: Database
    _trail: AuditTrail

    async def add_token(self, token: ApiToken) -> None:
        def write(tx: Transaction) -> None:
            if not tx.rows(ADD_TOKEN, **_TOKENS.values(token), rights=pack(sorted(token.rights))):
                raise ConflictError(f"there is a token {token.id} already")
            self._trail.note(tx, [of_token_made(token)], token.created_us)

        await self._database.write(write)

    async def token(self, token_id: str) -> ApiToken | None:
        wanted = select(api_tokens).where(api_tokens.c.id == token_id)
        row = await self._database.read(lambda tx: tx.execute(wanted).first())
        return None if row is None else _TOKENS.read(row)

    async def tokens(self) -> Sequence[ApiToken]:
        wanted = select(api_tokens).order_by(api_tokens.c.ordinal)
        return await self._database.read(lambda tx: [_TOKENS.read(row) for row in tx.execute(wanted)])

    async def sign_in(self, token_id: str, *, code_digest: str, digest: str, now_us: int) -> ApiToken | None:
        def write(tx: Transaction) -> ApiToken | None:
            if not tx.count(SIGN_IN, id=token_id, code_digest=code_digest, digest=digest, now_us=now_us):
                return None
            token = _TOKENS.read(tx.execute(select(api_tokens).where(api_tokens.c.id == token_id)).one())
            self._trail.note(tx, [of_sign_in(token)], now_us)
            return token

        return await self._database.write(write)

    async def revoke_token(self, token_id: str, *, now_us: int) -> bool:
        def write(tx: Transaction) -> bool:
            row = tx.execute(select(api_tokens).where(api_tokens.c.id == token_id)).first()
            if row is None:
                raise NotFoundError("token", token_id)
            if not tx.count(REVOKE_TOKEN, id=token_id, now_us=now_us):
                return False
            self._trail.note(tx, [of_token_revoked(_TOKENS.read(row))], now_us)
            return True

        return await self._database.write(write)
