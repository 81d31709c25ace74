"""Tokens, public keys and the audit log as rows. A key's row never changes: that it has ended is a row of its own.

The audit log is read here, and takes in what workers have reported.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import and_, case, func, literal_column, select

from soong.shared.core.errors import ConflictError, ForgedError, InvalidJsonError, NotFoundError
from soong.shared.core.jsontext import parse_strict
from soong.shared.engine.runs.events import EventType
from soong.shared.permissions.access.token import ApiToken, Right
from soong.shared.permissions.audit_log import (
    AuditEntry,
    AuditNote,
    Use,
    of_key_published,
    of_key_retired,
    of_malformed_report,
    of_report,
    of_sign_in,
    of_token_made,
    of_token_revoked,
)
from soong.shared.permissions.signing import ExpiredDecision, SigningKey
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.columns import MAX_TEXT_CHARS
from soong.shared.storage.sql.engine.owned_writes import ENTRIES
from soong.shared.storage.sql.engine.row_mapper import MAX_SHOWN_CHARS, RowMapper, pack, plain, unpack
from soong.shared.storage.sql.engine.rows import IDENTITIES, decision_of
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.tables.service import (
    api_tokens,
    audit,
    consumptions,
    decisions,
    reports,
    sessions,
    signing_keys,
)
from soong.shared.storage.sql.engine.tables.work import calls, runs
from soong.shared.storage.sql.engine.transaction import Row, Transaction

PUBLISH: Final = Statement(
    "publish: a public key, once",
    """
    INSERT INTO signing_keys (id, public_key, created_us) VALUES (:id, :public_key, :created_us)
    ON CONFLICT DO NOTHING RETURNING id
    """,
)
PUBLISH_FIRST: Final = Statement(
    # Two transactions do not see each other's row; the one that is_first refuses waits for the other's end.
    "publish first: the key of a deployment that has none",
    """
    INSERT INTO signing_keys (id, public_key, created_us, is_first)
    SELECT :id, :public_key, :created_us, 1 WHERE NOT EXISTS (SELECT 1 FROM signing_keys)
    ON CONFLICT DO NOTHING RETURNING id
    """,
)
RETIRE: Final = Statement(
    "retire: the end of a key, once of each kind; no row means that it exists already",
    """
    INSERT INTO key_retirements (key_id, is_revoked, retired_us, principal, reason)
    VALUES (:key_id, :is_revoked, :retired_us, :principal, :reason)
    ON CONFLICT DO NOTHING RETURNING key_id
    """,
)
TOKEN: Final = Statement("token: one by its id", "SELECT * FROM api_tokens WHERE id = :id")
UNUSED: Final = Statement(
    "unused: decided questions whose decision was not consumed; held, so that none is used while its key is revoked",
    """
    SELECT r.id AS request_id, r.run_id, r.session_id, d.id AS decision_id, d.body FROM permission_requests AS r
    JOIN decisions AS d ON d.request_id = r.id
    WHERE r.state = 'decided' AND NOT EXISTS (SELECT 1 FROM consumptions AS c WHERE c.decision_id = d.id)
    ORDER BY r.id /*pg FOR UPDATE OF r */
    """,
)
EXPIRE_ALL: Final = Statement(
    # By id: "state || ''" keeps PostgreSQL from walking all questions that were ever decided.
    "expire decisions: their calls may be asked about again",
    "UPDATE permission_requests SET state = 'expired' WHERE id IN @ids AND state || '' = 'decided'",
)
ENDS: Final = Statement(
    "ends: when keys ended, and how", "SELECT key_id, is_revoked, retired_us FROM key_retirements WHERE key_id IN @ids"
)

_KEYS: Final = """
    SELECT k.id, k.public_key, k.created_us,
           (SELECT max(retired_us) FROM key_retirements WHERE key_id = k.id AND is_revoked = 0) AS retired_us,
           (SELECT max(retired_us) FROM key_retirements WHERE key_id = k.id AND is_revoked = 1) AS revoked_us
    FROM signing_keys AS k
"""
KEY: Final = Statement("key: a public key and its ends", f"{_KEYS} WHERE k.id = :id")
KEYS: Final = Statement("keys: all of them, with their ends", f"{_KEYS} ORDER BY k.created_us, k.id")

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
    "revoke token: once", "UPDATE api_tokens SET revoked_us = :now_us WHERE id = :id AND revoked_us IS NULL"
)


class SqlKeyStore(StorePart):
    """Implements :class:`soong.shared.permissions.signing.KeyStore`."""

    async def publish_key(
        self, key_id: str, public_key: bytes, *, now_us: int, principal: str = "", reason: str = ""
    ) -> None:
        def write(tx: Transaction) -> None:
            if tx.rows(PUBLISH, id=key_id, public_key=public_key, created_us=now_us):
                self._trail.note(tx, [of_key_published(key_id, public_key, plain(principal), plain(reason))], now_us)
                return
            found = tx.execute(select(signing_keys.c.public_key).where(signing_keys.c.id == key_id)).scalar_one()
            if bytes(found) != public_key:
                raise ConflictError(f"another key has the id {key_id}; a new key takes a new id")

        await self._database.write(write)

    async def publish_first_key(self, key_id: str, public_key: bytes, *, now_us: int) -> bool:
        def write(tx: Transaction) -> bool:
            is_first = bool(tx.rows(PUBLISH_FIRST, id=key_id, public_key=public_key, created_us=now_us))
            if is_first:
                self._trail.note(tx, [of_key_published(key_id, public_key, "", "the first key")], now_us)
            return is_first

        return await self._database.write(write)

    async def signing_key(self, key_id: str) -> SigningKey | None:
        return await self._database.read(lambda tx: key_of(tx, key_id))

    async def signing_keys(self) -> Sequence[SigningKey]:
        return await self._database.read(lambda tx: [key_of_row(row) for row in tx.rows(KEYS)])

    async def retire_key(
        self, key_id: str, *, is_revoked: bool, at_us: int, principal: str, reason: str, now_us: int
    ) -> Sequence[ExpiredDecision]:
        def write(tx: Transaction) -> list[ExpiredDecision]:
            if tx.execute(select(signing_keys.c.id).where(signing_keys.c.id == key_id)).first() is None:
                raise NotFoundError("key", key_id)
            said = {"principal": plain(principal), "reason": plain(reason)}
            if not tx.rows(RETIRE, key_id=key_id, is_revoked=int(is_revoked), retired_us=at_us, **said):
                return []
            expired = _expire(tx, key_id, now_us) if is_revoked else []
            self._trail.note(tx, of_key_retired(key_id, is_revoked, at_us, principal, reason, expired), now_us)
            return expired

        return await self._database.write(write)


def key_of(tx: Transaction, key_id: str) -> SigningKey | None:
    rows = tx.rows(KEY, id=key_id)
    return key_of_row(rows[0]) if rows else None


def key_of_row(row: Row) -> SigningKey:
    """Return the key of a row of ``KEY``."""
    return SigningKey(row.id, bytes(row.public_key), row.created_us, row.retired_us, row.revoked_us)


def check_signs(ended: Sequence[Row], key_id: str) -> None:
    """Refuse a decision by a key that may not sign what bears its date. Raises: ConflictError."""
    if ended:
        raise ConflictError(f"the key {key_id} has been retired and signs nothing any more; run `soong keys rotate`")


def _expire(tx: Transaction, key_id: str, now_us: int) -> list[ExpiredDecision]:
    """Close the questions of unused decisions by a key."""
    rows = [row for row in tx.rows(UNUSED) if unpack(row.body).get("key_id") == key_id]
    if rows:
        tx.count(EXPIRE_ALL, ids=[row.request_id for row in rows])
    run_log = RunLogBuffer(now_us)
    for row in rows:
        told = {"request_id": row.request_id, "decision_id": row.decision_id, "reason": "its key was revoked"}
        run_log.note(row.run_id, EventType.PERMISSION_EXPIRED, **told)
    run_log.flush(tx)
    return [ExpiredDecision(row.session_id, row.run_id, row.request_id) for row in rows]


class SqlAccessStore(StorePart):
    """Implements :class:`soong.shared.permissions.access.token.AccessStore`."""

    async def add_token(self, token: ApiToken) -> None:
        def write(tx: Transaction) -> None:
            if not tx.rows(ADD_TOKEN, **_TOKENS.values(token), rights=pack(sorted(token.rights))):
                raise ConflictError(f"there is a token {token.id} already")
            self._trail.note(tx, [of_token_made(token)], token.created_us)

        await self._database.write(write)

    async def token(self, token_id: str) -> ApiToken | None:
        row = await self._database.read(lambda tx: tx.first(TOKEN, id=token_id))
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


TAKE_REPORTS: Final = Statement(
    "take reports: those that nobody has taken",
    """
    UPDATE reports SET is_taken = 1 FROM @taken t(place bigint)
    WHERE reports.ordinal = t.place AND reports.is_taken = 0
    """,
)
_REPORTED: Final = case((func.length(reports.c.data) <= MAX_TEXT_CHARS, reports.c.data), else_="")
"""A report that is too long is loaded by nobody."""


class SqlAuditStore(StorePart):
    """Implements :class:`soong.shared.permissions.audit_log.AuditStore`."""

    async def note(self, notes: Sequence[AuditNote], *, now_us: int) -> None:
        await self._database.write(lambda tx: self._trail.note(tx, notes, now_us))

    async def audit_entries(
        self, *, after: int = 0, session_id: str = "", kinds: Collection[str] = (), since_us: int = 0, limit: int = 1000
    ) -> Sequence[AuditEntry]:
        wanted = select(audit).where(audit.c.ordinal > after).order_by(audit.c.ordinal).limit(limit)
        if session_id:
            wanted = wanted.where(audit.c.session_id == session_id)
        if kinds:
            wanted = wanted.where(audit.c.kind.in_([str(kind) for kind in kinds]))
        if since_us:
            wanted = wanted.where(audit.c.time_us >= since_us)
        return await self._database.read(lambda tx: [ENTRIES.read(row) for row in tx.execute(wanted)])

    async def uses(self, *, after: str = "", limit: int = 1000) -> Sequence[Use]:
        wanted = (
            select(consumptions, decisions.c.body, calls.c.input_digest)
            .outerjoin(decisions, decisions.c.id == consumptions.c.decision_id)
            .outerjoin(
                calls,
                and_(calls.c.run_id == consumptions.c.run_id, calls.c.tool_call_id == consumptions.c.tool_call_id),
            )
            .where(consumptions.c.decision_id > after)
            .order_by(consumptions.c.decision_id)
            .limit(limit)
        )
        return await self._database.read(lambda tx: [_use_of(row) for row in tx.execute(wanted)])

    async def take_reports(self, owner_id: str, *, now_us: int, limit: int = 200) -> int:
        wanted = (
            select(reports.c.ordinal, reports.c.type, _REPORTED.label("data"), runs)
            .join(runs, runs.c.id == reports.c.run_id)
            .join(sessions, sessions.c.id == runs.c.session_id)
            .where(reports.c.is_taken == literal_column("0"), sessions.c.owner_id.in_(["", owner_id]))
            .order_by(reports.c.ordinal)
            .limit(limit)
        )

        def write(tx: Transaction) -> int:
            rows = tx.execute(wanted.with_for_update(of=reports) if tx.is_postgres else wanted).all()
            self._trail.note(tx, [_note_of(row) for row in rows], now_us)
            return tx.count(TAKE_REPORTS, taken=[[row.ordinal] for row in rows]) if rows else 0

        # Looked for at every sweep and seldom there: the look takes no lock.
        if await self._database.read(lambda tx: tx.execute(wanted.limit(1)).first()) is None:
            return 0
        return await self._database.write(write)


def _note_of(row: Any) -> AuditNote:
    """Return the note of a report; an unreadable one gets a note of that."""
    identity = IDENTITIES.read(row)
    try:
        data = parse_strict(row.data)
    except InvalidJsonError as error:
        return of_malformed_report(identity, str(error)[:MAX_SHOWN_CHARS])
    if not isinstance(data, Mapping):
        return of_malformed_report(identity, "it is not an object")
    return of_report(identity, row.type, data)


def _use_of(row: Any) -> Use:
    decision = None
    if row.body is not None:
        with suppress(ForgedError):
            decision = decision_of(row.body)
    return Use(row.decision_id, row.run_id, row.tool_call_id, row.consumed_us, decision, row.input_digest)
