"""The checks and entries of a write, in its transaction: the owner's right to write, and the audit log.

The audit log is one chain per process, so that no writer waits for another's entry. Only this process adds to its
chain, so reading its end takes no lock; a transaction that was undone, or applied and not confirmed, is seen by the
next reading.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from soong.shared.core.errors import NotFoundError, NotOwnerError
from soong.shared.core.identity import new_id
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.sessions.session import Ownership, RefusalType
from soong.shared.permissions.audit_log import REPORTED, AuditEntry, AuditNote, Head, linked
from soong.shared.sandbox.redact import Redactor
from soong.shared.storage.sql.engine.row_mapper import RowMapper, pack
from soong.shared.storage.sql.engine.statements import Insert, Statement
from soong.shared.storage.sql.engine.tables.service import audit, reports
from soong.shared.storage.sql.engine.transaction import Reply, Row, Transaction

T = TypeVar("T")

OWNED: Final = Statement(
    "owned: the session's owner and epoch; held, so that nobody adopts it before we have committed",
    "SELECT owner_id, owner_epoch FROM sessions WHERE id = :session_id /*pg FOR SHARE */",
)
SEEN_OWNED: Final = Statement(
    "seen owned: the session's owner and epoch, for a read",
    "SELECT owner_id, owner_epoch FROM sessions WHERE id = :session_id",
)
OWNED_STEP: Final = Statement(
    "owned step: what an owner has to know of a step before it changes it; held until commit",
    """
    SELECT status, gate, task_id, step_id, map_key, is_settled, run_id, attempt, ready_us FROM steps
    WHERE key = :key AND session_id = :session_id /*pg FOR UPDATE */
    """,
)
OWNED_TASK: Final = Statement(
    "owned task: what an owner has to know of a task before it changes it; held until commit",
    "SELECT status, root_run_id, reason FROM tasks WHERE id = :task_id AND session_id = :session_id /*pg FOR UPDATE */",
)
END_COMMAND: Final = Statement(
    "end command: one that has ended keeps its end, whatever an owner that has lost its session says later",
    """
    UPDATE commands SET is_ended = 1, refusal = :refusal, refusal_type = :refusal_type
    WHERE id = :id AND is_ended = 0
    """,
)


def command_done(tx: Transaction, command_id: str) -> None:
    """End the command that this transaction carries out, if it does one."""
    if command_id:
        tx.count(END_COMMAND, id=command_id, refusal="", refusal_type=RefusalType.CONFLICT.value)


def owned_read(ownership: Ownership, read: Callable[[Transaction], T]) -> Callable[[Transaction], T]:
    """Return a read for the owner of a session alone. It raises what :func:`check_owned` does."""

    def checked(tx: Transaction) -> T:
        check_owned(tx, ownership, is_read=True)
        return read(tx)

    return checked


def check_owned(tx: Transaction, ownership: Ownership, *, is_read: bool = False) -> None:
    """Raises: NotOwnerError; NotFoundError when there is no such session."""
    check_owner(tx.rows(SEEN_OWNED if is_read else OWNED, session_id=ownership.session_id), ownership)


def check_owner(rows: Sequence[Row], ownership: Ownership) -> None:
    """The same for rows of ``OWNED`` that have been read."""
    if not rows:
        raise NotFoundError("session", ownership.session_id)
    if not ownership.owner_id or tuple(rows[0]) != (ownership.owner_id, ownership.epoch):
        raise NotOwnerError(ownership.session_id, ownership.epoch)


def owned_step(tx: Transaction, ownership: Ownership, step_key: str) -> Any:
    """Return (status, gate, task_id, step_id, map_key, is_settled, run_id, attempt, ready_us).
    Raises: NotOwnerError; NotFoundError also for a step of another session.
    """
    check_owned(tx, ownership)
    rows = tx.rows(OWNED_STEP, key=step_key, session_id=ownership.session_id)
    if not rows:
        raise NotFoundError("step", step_key)
    return rows[0]


def owned_task(tx: Transaction, ownership: Ownership, task_id: str) -> Any:
    """Return (status, root_run_id, reason). Raises: NotOwnerError; NotFoundError also for a task of another session."""
    check_owned(tx, ownership)
    rows = tx.rows(OWNED_TASK, task_id=task_id, session_id=ownership.session_id)
    if not rows:
        raise NotFoundError("task", task_id)
    return rows[0]


HEAD: Final = Statement(
    "head: the end of our chain, and the newest entry of all",
    """
    SELECT (SELECT max(number) FROM audit WHERE chain = :chain),
           (SELECT digest FROM audit WHERE chain = :chain ORDER BY number DESC LIMIT 1),
           (SELECT digest FROM audit ORDER BY ordinal DESC LIMIT 1)
    """,
)
ENTRIES: Final = RowMapper(AuditEntry, audit)
INSERT_ENTRIES: Final = Insert(audit, [name for name in ENTRIES.written if name != "ordinal"])
INSERT_REPORTS: Final = Insert(reports, ("run_id", "type", "data", "time_us"))


class AuditTrail(Value):
    """This process's chain. Made with the store; ``redactor`` takes secrets out before anything is linked."""

    redactor: Redactor = msgspec.field(default_factory=Redactor)
    chain: str = msgspec.field(default_factory=lambda: new_id("aud"))

    def note(self, tx: Transaction, notes: Sequence[AuditNote], now_us: int) -> None:
        """Add entries in the caller's transaction."""
        if notes:
            self.add(tx, self.head(tx), notes, now_us)

    def head(self, tx: Transaction) -> Reply:
        """Ask for the end of our chain; nothing else may be added to it before what is linked to the answer."""
        return tx.send(HEAD, chain=self.chain)

    def add(self, tx: Transaction, head_reply: Reply, notes: Sequence[AuditNote], now_us: int) -> None:
        """Add entries behind a head that was asked for in the same transaction."""
        number, last, newest = head_reply()[0]
        head = Head(number or 0, last or "", newest if newest and newest != last else "")
        rows = []
        for note in notes:
            clean = replace(note, data=self.redactor.mapping(note.data))
            entry = linked(clean, self.chain, head, now_us)
            rows.append(INSERT_ENTRIES.row(ENTRIES.values(entry)))
            head = Head(entry.number, entry.digest)
        tx.insert(INSERT_ENTRIES, rows)


def report(tx: Transaction, run_id: str, events: Sequence[NewEvent], now_us: int) -> None:
    """Leave the events that belong into the audit log for the owner; most often there are none."""
    told = [event for event in events if event.type in REPORTED]
    if told:
        rows = [(run_id, str(event.type), pack(event.data), event.time_us or now_us) for event in told]
        tx.insert(INSERT_REPORTS, rows)
