"""Sessions and the processes around them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Final

from sqlalchemy import ColumnElement, Table, literal_column, select

from soong.shared.core.errors import ConflictError, NotFoundError
from soong.shared.engine.sessions.session import (
    Command,
    CommandKind,
    Owner,
    Ownership,
    ProcessState,
    RefusalType,
    Responder,
    Session,
    Worker,
)
from soong.shared.engine.tasks.change import outcome_in_closed_session
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.permissions.audit_log import of_session
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.columns import ordinal_of
from soong.shared.storage.sql.engine.owned_writes import END_COMMAND, AuditTrail, check_owned, owned_read
from soong.shared.storage.sql.engine.row_mapper import MalformedError, digest_of, plain
from soong.shared.storage.sql.engine.rows import COMMANDS, OWNERS, RESPONDERS, SESSIONS, worker_of
from soong.shared.storage.sql.engine.rows import WORKERS as WORKER_ROWS
from soong.shared.storage.sql.engine.statements import Statement, table_read
from soong.shared.storage.sql.engine.tables.service import commands, owners, responders, sessions, workers
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.engine.write_ahead_log import Flush

_ORDER: Final = (ProcessState.LIVE, ProcessState.DRAINING, ProcessState.GONE)
_GONE: Final[ColumnElement[str]] = literal_column("'gone'")

SESSION: Final = table_read("session", sessions, "WHERE id = :session_id")
KNOWN_SESSION: Final = Statement(
    "known session: whether there is one of that id", "SELECT 1 FROM sessions WHERE id = :session_id"
)
CLOSE: Final = Statement("close: a session", "UPDATE sessions SET is_closed = 1 WHERE id = :session_id")
COMMANDED_SESSION: Final = Statement(
    "commanded session: held, so that nobody closes it before the command is there",
    "SELECT is_closed, owner_id FROM sessions WHERE id = :session_id /*pg FOR NO KEY UPDATE */",
)
SUBJECT_STATUS: Final = Statement(
    "subject status: that of the task which a command names, if it is one of the command's session",
    "SELECT status FROM tasks WHERE id = :task_id AND session_id || '' = :session_id",
)
COMMAND: Final = table_read("command", commands, "WHERE id = :command_id")
ADOPTED: Final = table_read("adopted: the sessions of these ids", sessions, "WHERE id IN @ids ORDER BY ordinal")
FREE_SESSION: Final = Statement(
    "free session: whether there is one to adopt",
    "SELECT 1 FROM sessions WHERE owner_id = '' AND is_closed = 0 LIMIT 1",
)
_LISTS: Final = ("pools", "capabilities", "left_over")
ALL_WORKERS: Final = table_read("all workers: also those that are gone", workers, "ORDER BY ordinal", bounded=_LISTS)
WORKERS: Final = table_read(
    "workers: those that are not gone", workers, "WHERE state <> 'gone' ORDER BY ordinal", bounded=_LISTS
)
BUSY_SLOTS: Final = Statement(
    "busy slots: of each worker; a step that a run holds in addition to its own takes none",
    """
    SELECT worker_id, count(*) FROM steps WHERE status = 'running' AND holder_run_id = ''
    GROUP BY worker_id
    """,
)
ATTACHED: Final = table_read(
    "attached: the responders of a session, in the order they came",
    responders,
    "WHERE session_id = :session_id ORDER BY ordinal",
)
OPEN_COMMANDS: Final = table_read(
    "open commands: of a session, in the order they came",
    commands,
    "WHERE session_id = :session_id AND is_ended = 0 ORDER BY ordinal",
)

ADOPT: Final = Statement(
    "adopt: every open session without an owner, for an owner that lives; another adopter's are passed over",
    """
    UPDATE sessions SET owner_id = :owner_id, owner_epoch = owner_epoch + 1
    WHERE ordinal IN (
        SELECT ordinal FROM sessions WHERE owner_id = '' AND is_closed = 0 /*pg FOR UPDATE SKIP LOCKED */
    ) AND EXISTS (SELECT 1 FROM owners WHERE id = :owner_id AND state <> 'gone')
    RETURNING id
    """,
)
BUSY: Final = Statement(
    "busy: the owner's sessions with an open task or command, found from the open ones",
    """
    SELECT s.id FROM (
        SELECT session_id FROM tasks WHERE status IN ('running', 'paused')
        UNION SELECT session_id FROM commands WHERE is_ended = 0
    ) AS open_work JOIN sessions AS s ON s.id = open_work.session_id
    WHERE s.owner_id = :owner_id ORDER BY s.ordinal
    """,
)
LIVE_OWNER: Final = Statement(
    "live owner: held, so that it cannot be declared gone while it adopts",
    "SELECT 1 FROM owners WHERE id = :owner_id AND state <> 'gone' /*pg FOR SHARE */",
)
END_OWNER: Final = Statement(
    "end owner: declared gone, if its beat is still the one that was watched (or by its own will)",
    """
    UPDATE owners SET state = 'gone'
    WHERE id = :owner_id AND state <> 'gone' AND (:is_forced = 1 OR beat = :beat)
    """,
)
FREE_SESSIONS: Final = Statement(
    "free sessions: those of an owner that is gone; the epoch stays, so that its last writes are still refused",
    "UPDATE sessions SET owner_id = '' WHERE owner_id = :owner_id",
)
REOPEN_LEFT: Final = Statement(
    "reopen left: the closed sessions of an owner that ends in which a task or a command is open, for its successor",
    """
    UPDATE sessions SET is_closed = 0 WHERE is_closed = 1 AND owner_id || '' = :owner_id AND id IN (
        SELECT session_id FROM tasks WHERE status IN ('running', 'paused')
        UNION SELECT session_id FROM commands WHERE is_ended = 0
    )
    """,
)
BEAT_OWNER: Final = Statement("beat owner", "UPDATE owners SET beat = beat + 1 WHERE id = :id AND state <> 'gone'")
BEAT_RESPONDER: Final = Statement("beat responder", "UPDATE responders SET beat = beat + 1 WHERE id = :id")
REOPEN: Final = Statement(
    "reopen: a closed session of which something is asked is free for adoption",
    "UPDATE sessions SET is_closed = 0, owner_id = '' WHERE id = :session_id AND is_closed = 1",
)
HELD_WORKER: Final = Statement(
    "held worker: its state, held while it is changed", "SELECT state FROM workers WHERE id = :id /*pg FOR UPDATE */"
)
COUNT_HELD: Final = Statement(
    "count held: a worker's leases", "SELECT count(*) FROM steps WHERE worker_id = :id AND status = 'running'"
)
SET_WORKER_STATE: Final = Statement("set worker state", "UPDATE workers SET state = :state WHERE id = :id")


class SqlSessionStore(StorePart):
    """Implements :class:`soong.shared.engine.sessions.session.SessionStore`."""

    # -- owners
    async def register_owner(self, owner: Owner) -> None:
        await self._database.write(lambda tx: _add(tx, owners, OWNERS.values(owner)))

    async def beat_owner(self, owner_id: str) -> bool:
        return await self._database.write(lambda tx: tx.count(BEAT_OWNER, id=owner_id) > 0)

    async def owners(self) -> Sequence[Owner]:
        wanted = select(owners).where(owners.c.state != _GONE).order_by(owners.c.ordinal)
        return await self._database.read(lambda tx: [OWNERS.read(row) for row in tx.execute(wanted)])

    async def expire_owner(self, owner_id: str, beat: int) -> bool:
        return await self._database.write(lambda tx: _end_owner(tx, owner_id, beat))

    async def release_owner(self, owner_id: str) -> None:
        await self._database.write(lambda tx: _end_owner(tx, owner_id, None))

    # -- sessions
    async def open_session(self, session: Session) -> None:
        values = SESSIONS.values(session)
        await self._database.write(lambda tx: add_session(tx, self._trail, session, values))

    async def session(self, session_id: str) -> Session:
        row = await self._database.read(lambda tx: tx.first(SESSION, session_id=session_id))
        if row is None:
            raise NotFoundError("session", session_id)
        return SESSIONS.read(row)

    async def session_page(
        self, *, include_closed: bool = False, before: str = "", limit: int = 100
    ) -> Sequence[Session]:
        wanted = select(sessions).order_by(sessions.c.ordinal.desc()).limit(limit)
        if before:
            wanted = wanted.where(sessions.c.ordinal < ordinal_of(sessions, before))
        if not include_closed:
            wanted = wanted.where(sessions.c.is_closed == literal_column("0"))
        return await self._database.read(lambda tx: [SESSIONS.read(row) for row in tx.execute(wanted)])

    async def adopt_sessions(self, owner_id: str) -> Sequence[Session]:
        if not await self._database.read(lambda tx: tx.rows(FREE_SESSION)):
            return []
        # An adoption that a power cut takes takes its owner, too; the owner's writes are after it in the same log.
        return await self._database.write(lambda tx: adopt(tx, owner_id), flush=Flush.WITH_NEXT)

    async def busy_sessions(self, owner_id: str) -> Sequence[str]:
        return await self._database.read(lambda tx: tx.column(BUSY, owner_id=owner_id))

    async def close_session(self, ownership: Ownership) -> None:
        def write(tx: Transaction) -> None:
            check_owned(tx, ownership)
            tx.count(CLOSE, session_id=ownership.session_id)

        await self._database.write(write)

    # -- responders
    async def attach_responder(self, responder: Responder) -> None:
        def write(tx: Transaction) -> None:
            if not tx.rows(KNOWN_SESSION, session_id=responder.session_id):
                raise NotFoundError("session", responder.session_id)
            _add(tx, responders, RESPONDERS.values(responder))

        await self._database.write(write)

    async def beat_responder(self, responder_id: str) -> bool:
        return await self._database.write(lambda tx: tx.count(BEAT_RESPONDER, id=responder_id) > 0)

    async def detach_responder(self, responder_id: str) -> None:
        gone = responders.delete().where(responders.c.id == responder_id)
        await self._database.write(lambda tx: tx.execute(gone).rowcount)

    async def responders(self, session_id: str) -> Sequence[Responder]:
        rows = await self._database.read(lambda tx: tx.rows(ATTACHED, session_id=session_id))
        return [RESPONDERS.read(row) for row in rows]

    # -- commands
    async def send_command(self, command: Command) -> None:
        await self._database.write(lambda tx: _send_command(tx, command, COMMANDS.values(command)))

    async def take_commands(self, ownership: Ownership) -> Sequence[Command]:
        def read(tx: Transaction) -> list[Command]:
            return [COMMANDS.read(row) for row in tx.rows(OPEN_COMMANDS, session_id=ownership.session_id)]

        return await self._database.read(owned_read(ownership, read))

    async def end_command(
        self, command_id: str, *, refusal: str = "", refusal_type: RefusalType = RefusalType.CONFLICT
    ) -> None:
        def write(tx: Transaction) -> None:
            is_ended = tx.count(END_COMMAND, id=command_id, refusal=plain(refusal), refusal_type=refusal_type.value)
            if not is_ended and tx.first(COMMAND, command_id=command_id) is None:
                raise NotFoundError("command", command_id)

        await self._database.write(write)

    async def command(self, command_id: str) -> tuple[Command, bool]:
        row = await self._database.read(lambda tx: tx.first(COMMAND, command_id=command_id))
        if row is None:
            raise NotFoundError("command", command_id)
        return COMMANDS.read(row), bool(row.is_ended)

    # -- workers
    async def register_worker(self, worker: Worker) -> None:
        credential = digest_of(self._database.credential) if self._database.credential else ""
        values = {**WORKER_ROWS.values(worker), "credential": credential}
        await self._database.write(lambda tx: _add(tx, workers, values))

    async def set_worker_state(self, worker_id: str, state: ProcessState) -> None:
        await self._database.write(lambda tx: _set_worker_state(tx, worker_id, state))

    async def workers(self, *, include_gone: bool = False) -> Sequence[Worker]:
        wanted = ALL_WORKERS if include_gone else WORKERS

        def read(tx: Transaction) -> list[Worker]:
            busy = {str(worker_id): int(number) for worker_id, number in tx.rows(BUSY_SLOTS)}
            found: list[Worker] = []
            for row in tx.rows(wanted):
                with suppress(MalformedError):  # the reaper ends workers with malformed rows
                    found.append(worker_of(row, busy.get(row.id, 0)))
            return found

        return await self._database.read(read)


def adopt(tx: Transaction, owner_id: str) -> list[Session]:
    """Take every open session without an owner."""
    with tx.pipeline():
        live = tx.send(LIVE_OWNER, owner_id=owner_id)
        adopted = tx.send(ADOPT, owner_id=owner_id)
    ids = [row[0] for row in adopted()] if live() else []
    return [SESSIONS.read(row) for row in tx.rows(ADOPTED, ids=ids)] if ids else []


def add_session(tx: Transaction, trail: AuditTrail, session: Session, values: Mapping[str, object]) -> None:
    """Insert a session by its row, and note it in the audit log; nothing happens when it exists."""
    if _add(tx, sessions, values):
        trail.note(tx, [of_session(session)], session.created_us)


def _add(tx: Transaction, table: Table, values: Mapping[str, object]) -> bool:
    """Insert a row; one that exists already stays as it is, so that saying it twice does no harm (False then)."""
    return bool(tx.rows(added_row(table.name, tuple(values)), **values))


@cache
def added_row(table: str, columns: tuple[str, ...]) -> Statement:
    """Return the insert of a row that may be there already; its id is returned when it was not."""
    given = ", ".join(f":{name}" for name in columns)
    into = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({given})"  # noqa: S608  # our own words
    name = f"add to {table}: a row, unless there is one of its id"
    return Statement(name, f"{into} ON CONFLICT (id) DO NOTHING RETURNING id")


def _send_command(tx: Transaction, command: Command, values: Mapping[str, object]) -> None:
    """Insert a command, ended where a closed session leaves nobody to carry it out."""
    held = tx.rows(COMMANDED_SESSION, session_id=command.session_id)
    if not held:
        raise NotFoundError("session", command.session_id)
    is_closed, owner_id = held[0]
    outcome = _outcome_in_closed(tx, command) if is_closed else None
    if outcome is None:
        _add(tx, commands, values)
        if is_closed and (command.kind is CommandKind.RETRY or not owner_id):
            tx.count(REOPEN, session_id=command.session_id)
    else:
        _add(tx, commands, {**values, "is_ended": 1, "refusal": plain(outcome)})


def _outcome_in_closed(tx: Transaction, command: Command) -> str | None:
    status = tx.value(SUBJECT_STATUS, task_id=command.subject, session_id=command.session_id)
    return outcome_in_closed_session(command, None if status is None else TaskStatus(status))


def _end_owner(tx: Transaction, owner_id: str, beat: int | None) -> bool:
    if not tx.count(END_OWNER, owner_id=owner_id, beat=beat or 0, is_forced=int(beat is None)):
        return False
    tx.count(REOPEN_LEFT, owner_id=owner_id)
    tx.count(FREE_SESSIONS, owner_id=owner_id)
    return True


def _set_worker_state(tx: Transaction, worker_id: str, state: ProcessState) -> None:
    current = tx.value(HELD_WORKER, id=worker_id)
    if current is None:
        raise NotFoundError("worker", worker_id)
    if _ORDER.index(state) <= _ORDER.index(ProcessState(current)):
        return
    held = tx.value(COUNT_HELD, id=worker_id) if state is ProcessState.GONE else 0
    if held:
        raise ConflictError(f"worker {worker_id} still holds {held} steps; it hands them back before it goes")
    tx.count(SET_WORKER_STATE, id=worker_id, state=state.value)
