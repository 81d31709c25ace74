"""The owner's right to write, checked in the transaction that writes."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from soong.shared.core.errors import NotFoundError, NotOwnerError
from soong.shared.engine.sessions.session import Ownership, RefusalType
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Row, Transaction

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
    SELECT status, kind, task_id, step_id, map_key, is_settled, run_id, attempt, ready_us FROM steps
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
    """Return (status, kind, task_id, step_id, map_key, is_settled, run_id, attempt, ready_us).

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
