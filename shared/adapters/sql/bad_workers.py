"""Workers that nobody can reckon with: rows that no process of ours wrote, and leases whose holder is gone (OPS-12).

A worker's role inserts its own row and may call itself gone while it still holds steps. Neither may keep a step from
being run by another. What malformed rows hold, nobody changes any more, so no beat has to be watched.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, literal_column, select

from shared.adapters.sql.auditing import AuditTrail
from shared.adapters.sql.database import Database
from shared.adapters.sql.journal import Journal
from shared.adapters.sql.rows import worker_of
from shared.adapters.sql.sessions import HELD_WORKER
from shared.adapters.sql.statements import Statement
from shared.adapters.sql.stopping import expire_leases
from shared.adapters.sql.strict import MAX_SHOWN_CHARS, MalformedError
from shared.adapters.sql.tables import workers
from shared.adapters.sql.transaction import Transaction
from shared.audit.notes import of_malformed_worker
from shared.sessions.session import ProcessState
from shared.tasks.lost import ABANDONED, lost_to
from shared.tasks.step import BadWorker

AT_ONCE: Final = 100
_GONE: Final[ColumnElement[str]] = literal_column("'gone'")

LEASE_HOLDERS: Final = Statement(
    "lease holders: the ids of all workers that hold a step",
    "SELECT DISTINCT worker_id FROM steps WHERE status IN ('claimed', 'running')",
)
END_BAD_WORKER: Final = Statement(
    "end bad worker: whatever its beat is",
    "UPDATE workers SET state = 'gone' WHERE id = :id AND state <> 'gone'",
)


class SqlBadWorkers:
    """The part of the task store that ends such workers."""

    _database: Database
    _trail: AuditTrail

    async def expire_bad_workers(self, *, max_lost_leases: int, now_us: int) -> Sequence[BadWorker]:
        found = await self._database.read(_found)

        def write(tx: Transaction) -> list[BadWorker]:
            ended = [_end(tx, worker_id, problem, max_lost_leases, now_us) for worker_id, problem in found]
            notes = [of_malformed_worker(one.id, one.problem, len(one.sessions)) for one in ended if one is not None]
            self._trail.note(tx, notes, now_us)
            return [one for one in ended if one is not None]

        return await self._database.write(write) if found else ()


def _found(tx: Transaction) -> list[tuple[str, str]]:
    """Return (id, problem) of workers that are to be ended; a bounded number, the longest there first."""
    rows = tx.execute(select(workers).where(workers.c.state != _GONE).order_by(workers.c.ordinal)).all()
    found = [(row.id, problem) for row in rows if (problem := _problem(row))]
    reckoned = {row.id for row in rows}
    left = [(worker_id, ABANDONED) for (worker_id,) in tx.rows(LEASE_HOLDERS) if worker_id not in reckoned]
    return [*found, *sorted(left)][:AT_ONCE]


def _problem(row: Any) -> str:
    try:
        worker_of(row, 0)
    except MalformedError as error:
        return str(error)[:MAX_SHOWN_CHARS]
    return ""


def _end(tx: Transaction, worker_id: str, problem: str, max_lost_leases: int, now_us: int) -> BadWorker | None:
    """End one of them as a dead worker ends; None when another owner has done it."""
    is_there = any(state != ProcessState.GONE for (state,) in tx.rows(HELD_WORKER, id=worker_id))
    if is_there == (problem == ABANDONED):
        return None
    tx.count(END_BAD_WORKER, id=worker_id)
    journal = Journal(now_us)
    shown = worker_id[:MAX_SHOWN_CHARS]
    because = lost_to(f"worker {shown}", f"left a malformed row: {problem}") if is_there else ABANDONED
    concerned = expire_leases(tx, journal, worker_id, max_lost_leases, now_us, because)
    journal.flush(tx)
    return BadWorker(shown, problem, concerned) if is_there or concerned else None
