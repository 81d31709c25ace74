"""Workers that nobody can reckon with: rows that no process of ours wrote, and leases whose holder is gone (OPS-12).

A worker's role inserts its own row and may call itself gone while it still holds steps. Neither may keep a step from
being run by another. What malformed rows hold, nobody changes any more, so no beat has to be watched.
"""

from collections.abc import Sequence
from typing import Any, Final

from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.claims import ABANDONED, lost_to
from soong.shared.engine.tasks.step import BadWorker
from soong.shared.permissions.audit_log.notes import of_malformed_worker
from soong.shared.storage.sql.engine.audit_log import AuditTrail
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.rows import worker_of
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.strict import MAX_SHOWN_CHARS, MalformedError
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.tasks.cancel import expire_leases
from soong.shared.storage.sql.tasks.sessions import HELD_WORKER, WORKERS

AT_ONCE: Final = 100

LEASE_HOLDERS: Final = Statement(
    "lease holders: the ids of all workers that hold a step",
    "SELECT DISTINCT worker_id FROM steps WHERE status = 'running'",
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
    rows = WORKERS.read(tx)
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
    run_log = RunLogBuffer(now_us)
    shown = worker_id[:MAX_SHOWN_CHARS]
    because = lost_to(f"worker {shown}", f"left a malformed row: {problem}") if is_there else ABANDONED
    concerned = expire_leases(tx, run_log, worker_id, max_lost_leases, now_us, because)
    run_log.flush(tx)
    return BadWorker(shown, problem, concerned) if is_there or concerned else None
