"""The audit log as a part of the store: it is read, and takes in what workers have reported."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import and_, case, func, literal_column, select

from soong.shared.core.errors import ForgedError, InvalidJsonError
from soong.shared.core.jsontext import parse_strict
from soong.shared.permissions.audit_log import AuditEntry, AuditNote, Use, of_malformed_report, of_report
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.columns import MAX_TEXT_CHARS
from soong.shared.storage.sql.engine.owned_writes import ENTRIES
from soong.shared.storage.sql.engine.row_mapper import MAX_SHOWN_CHARS
from soong.shared.storage.sql.engine.rows import IDENTITIES, decision_of
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.tables.service import audit, consumptions, decisions, reports, sessions
from soong.shared.storage.sql.engine.tables.work import calls, runs
from soong.shared.storage.sql.engine.transaction import Transaction

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
