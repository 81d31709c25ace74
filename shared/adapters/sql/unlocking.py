"""What the end of steps does to those that wait for them: counters fall, steps open, map steps complete.

Readiness is the counter ``open_deps``, never "no unfinished parent exists": two parents that end at once would each
see the other unfinished, and the step between them would wait for ever.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from shared.adapters.sql.journal import Journal
from shared.adapters.sql.statements import Statement
from shared.adapters.sql.transaction import Row, Transaction
from shared.runs.events import EventType
from shared.tasks.status import StepStatus
from shared.tasks.step import StepKind

COUNT_DOWN: Final = Statement(
    "count down: what waited for these steps waits for so many fewer, and opens or completes at none",
    """
    UPDATE steps SET
        open_deps = open_deps - f.number,
        status = CASE WHEN open_deps > f.number THEN status
                      WHEN status = 'waiting' THEN 'completed'
                      WHEN kind = 'map' THEN 'expanding'
                      ELSE 'ready' END,
        ended_us = CASE WHEN status = 'waiting' AND open_deps = f.number THEN :now_us ELSE ended_us END
    FROM (
        SELECT w.key AS key, w.number AS number FROM (
            SELECT key, sum(number) AS number FROM (
                SELECT child_key AS key, 1 AS number FROM edges WHERE parent_key IN @ended
                UNION ALL
                SELECT map_key AS key, 1 AS number FROM steps WHERE key IN @ended AND map_key || '' <> ''
            ) AS each_end GROUP BY key
        ) AS w
        /*pg JOIN steps AS locked ON locked.key = w.key ORDER BY w.key FOR UPDATE OF locked */
    ) AS f
    WHERE steps.key = f.key AND steps.status IN ('pending', 'waiting')
    RETURNING steps.key, task_id, status, kind, run_id, open_deps
    """,
)

SET_MAP_OUTCOME: Final = Statement(
    "set map outcome: clean when all its children completed cleanly",
    """
    UPDATE steps SET outcome = CASE WHEN (
        SELECT 1 FROM steps AS child
        WHERE child.map_key = steps.key AND child.map_key <> '' AND coalesce(child.outcome, '') <> 'clean' LIMIT 1
    ) = 1 THEN 'partial' ELSE 'clean' END
    WHERE key IN @keys
    """,
)

ROOT_RUNS: Final = Statement(
    "root runs: the log in which the events of a task's map steps stand",
    "SELECT id, root_run_id FROM tasks WHERE id IN @task_ids",
)


def unlock_after(tx: Transaction, journal: Journal, ended: Iterable[str], now_us: int) -> set[str]:
    """Count these steps as done for their dependents and their maps, and so on for the maps that this completes.

    Return the keys of the steps that became ready.
    """
    ready: set[str] = set()
    rest = sorted(ended)
    while rest:
        opened, rest = _opened(tx, journal, tx.rows(COUNT_DOWN, ended=rest, now_us=now_us))
        for key, run_id in tx.paced(opened):
            journal.note(run_id, EventType.STEP_READY, step=key)
            ready.add(key)
    return ready


def settle_unlocked(tx: Transaction, journal: Journal, rows: Sequence[Row], now_us: int) -> tuple[set[str], bool]:
    """Go on from rows that were counted down with their ends, ready steps noted.

    Return the keys of the steps that became ready, and whether map steps completed, which may have opened more.
    """
    opened, completed = _opened(tx, journal, rows)
    ready = {key for key, _ in opened}
    return ready | unlock_after(tx, journal, completed, now_us), bool(completed)


def _opened(tx: Transaction, journal: Journal, rows: Sequence[Row]) -> tuple[list[tuple[str, str]], list[str]]:
    """Note what happened to map steps; return (key, run id) of steps that became ready, and maps that completed."""
    ready: list[tuple[str, str]] = []
    completed: list[str] = []
    of_maps: list[tuple[str, str, EventType]] = []
    for key, task_id, status, kind, run_id, open_deps in tx.paced(rows):
        if open_deps:
            continue
        if status == StepStatus.READY:
            ready.append((key, run_id))
        elif status == StepStatus.EXPANDING:
            of_maps.append((key, task_id, EventType.STEP_EXPANDING))
        elif kind == StepKind.MAP and status == StepStatus.COMPLETED:
            of_maps.append((key, task_id, EventType.STEP_COMPLETED))
            completed.append(key)
    note_maps(tx, journal, of_maps)
    if completed:
        tx.rows(SET_MAP_OUTCOME, keys=completed)
    return ready, sorted(completed)


def note_maps(tx: Transaction, journal: Journal, events: Sequence[tuple[str, str, EventType]]) -> None:
    """Note (step key, task id, event) of map steps, which have no run, in the logs of their tasks' root runs."""
    if not events:
        return
    roots: dict[str, str] = dict(tx.rows(ROOT_RUNS, task_ids=sorted({task_id for _, task_id, _ in events})))
    for key, task_id, type_ in events:
        journal.note(roots[task_id], type_, step=key)
