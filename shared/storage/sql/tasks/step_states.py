"""The states of a task's steps: a narrow read, as a console makes it again and again."""

from collections.abc import Sequence
from typing import Any, Final

from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import MALFORMED, Outcome, StepError
from soong.shared.engine.tasks.store import StepSnapshot
from soong.shared.storage.sql.engine.rows import error_of
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.strict import RowReader
from soong.shared.storage.sql.engine.transaction import Transaction

STEP_STATES: Final = Statement(
    "step states: what changes of a task's steps while it runs",
    """
    SELECT key, status, outcome, run_id, worker_id, attempt, progress, error, started_us, ended_us
    FROM steps WHERE task_id = :task_id ORDER BY ordinal
    """,
)


def read_states(tx: Transaction, task_id: str) -> list[StepSnapshot]:
    """Return the states of a task's steps, in the order in which they were inserted."""
    return [_state_of(row) for row in tx.rows(STEP_STATES, task_id=task_id)]


def _state_of(row: Sequence[Any]) -> StepSnapshot:
    """Return the state of a row. A malformed one has the error ``malformed_row``, and has failed where it completed."""
    key, status_, outcome, run_id, worker_id, attempt, progress, error_text, started, ended = row
    reading = RowReader()
    error = reading.take(lambda: error_of(error_text), None)
    started_us, ended_us = reading.instant("started_us", started), reading.instant("ended_us", ended)
    status = StepStatus(status_)
    if reading.problems:
        error = StepError(MALFORMED, f"its row is malformed: {reading.problem}", retryable=False)
        status = StepStatus.FAILED if status is StepStatus.COMPLETED else status
    ended_as = None if outcome is None else Outcome(outcome)
    return StepSnapshot(key, status, ended_as, run_id, worker_id, attempt, progress, error, started_us, ended_us)
