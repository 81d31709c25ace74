"""Ends of steps as a worker reports them, and their effect: counters fall, dependents open, map steps complete.

Readiness is the counter ``open_deps``, never "no unfinished parent exists": two parents that end at once would each
see the other unfinished, and the step between them would wait for ever.

The logs of opened steps are not written here: a worker writes only in the logs of runs that it holds. The claim of a
step records since when it was ready, its owner the ends of maps (:func:`tell_maps`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from soong.shared.core.value import Value
from soong.shared.engine.runs.events import EventType, NewNode, NodeKind
from soong.shared.engine.runs.record import RunStatus
from soong.shared.engine.tasks.spec import StepGate, StepStatus
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.storage.sql.engine.row_mapper import pack
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Row, Transaction

COUNT_DOWN: Final = Statement(
    "count down: what waited for these steps waits for so many fewer, and opens or completes at none",
    """
    UPDATE steps SET
        open_deps = open_deps - f.number,
        status = CASE WHEN open_deps > f.number THEN status
                      WHEN status = 'waiting' THEN 'completed'
                      WHEN gate <> 'workers' THEN 'expanding'
                      ELSE 'ready' END,
        ended_us = CASE WHEN status = 'waiting' AND open_deps = f.number THEN :now_us ELSE ended_us END,
        ready_us = CASE WHEN open_deps = f.number THEN :now_us ELSE ready_us END
    FROM (
        SELECT w.key AS key, w.number AS number FROM (
            SELECT key, sum(number) AS number FROM (
                SELECT s.task_id || '/' || d.value AS key, 1 AS number
                FROM steps AS s CROSS JOIN EACH OF s.dependents AS d WHERE s.key IN @ended
                UNION ALL
                SELECT map_key AS key, 1 AS number FROM steps WHERE key IN @ended AND map_key || '' <> ''
            ) AS each_end GROUP BY key
        ) AS w
        /*pg JOIN steps AS locked ON locked.key = w.key ORDER BY w.key FOR UPDATE OF locked */
    ) AS f
    WHERE steps.key = f.key AND steps.status IN ('pending', 'waiting')
    RETURNING steps.key, task_id, status
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

ROOT_RUN: Final = Statement(
    "root run: the log in which the events of a task's map steps are",
    "SELECT root_run_id FROM tasks WHERE id = :task_id",
)

UNREPORTED_MAPS: Final = Statement(
    "untold maps: those that a worker's end completed, and when",
    """
    SELECT key, ready_us FROM steps
    WHERE session_id = (SELECT session_id FROM tasks WHERE id = :task_id) AND task_id = :task_id
      AND kind = 'map' AND ready_us IS NOT NULL AND status || '' = 'completed' ORDER BY key
    """,
)
REPORTED_MAPS: Final = Statement(
    "reported maps", "UPDATE steps SET ready_us = NULL WHERE key IN @keys AND kind = 'map'"
)


@dataclass(slots=True)
class Unlocked:
    """The effect of ends on their dependents.

    ``ready`` are the keys of steps that became claimable. By ids of tasks: in those ``continued`` a step became ready
    or waits for fewer, in those ``expanding`` a map is to be expanded.
    """

    ready: set[str] = field(default_factory=set)
    continued: set[str] = field(default_factory=set)
    expanding: set[str] = field(default_factory=set)


def unlock_after(tx: Transaction, ended: Collection[str], now_us: int) -> Unlocked:
    """Count these steps as done for their dependents and their maps, and so on for the maps that this completes."""
    return settle_unlocked(tx, tx.rows(COUNT_DOWN, ended=sorted(ended), now_us=now_us) if ended else (), now_us)[0]


def settle_unlocked(tx: Transaction, rows: Sequence[Row], now_us: int) -> tuple[Unlocked, bool]:
    """Continue from rows that were counted down with their ends.

    Return what was unlocked, and whether map steps completed, which may have opened more.
    """
    unlocked = Unlocked()
    completed = rest = _note_counted(tx, unlocked, rows)
    while rest:
        rest = _note_counted(tx, unlocked, tx.rows(COUNT_DOWN, ended=rest, now_us=now_us))
    return unlocked, bool(completed)


def _note_counted(tx: Transaction, unlocked: Unlocked, rows: Sequence[Row]) -> list[str]:
    """Note what was counted down; return the keys of the maps that this completed."""
    completed: list[str] = []
    for row in tx.paced(rows):
        match row.status:
            case StepStatus.COMPLETED:
                completed.append(row.key)
            case StepStatus.EXPANDING:
                unlocked.expanding.add(row.task_id)
            case StepStatus.READY:
                unlocked.ready.add(row.key)
                unlocked.continued.add(row.task_id)
            case _:
                unlocked.continued.add(row.task_id)
    if completed:
        tx.rows(SET_MAP_OUTCOME, keys=completed)
    return sorted(completed)


def root_run_of(tx: Transaction, task_id: str) -> str:
    return str(tx.value(ROOT_RUN, task_id=task_id))


def tell_maps(tx: Transaction, run_log: RunLogBuffer, task_id: str, root_run_id: str) -> None:
    """Note which map steps of a task workers have completed, in the log of its root run. For the task's owner."""
    rows = tx.rows(UNREPORTED_MAPS, task_id=task_id)
    for key, completed_us in rows:
        run_log.note(root_run_id, EventType.STEP_COMPLETED, completed_us, step=key)
    if rows:
        tx.rows(REPORTED_MAPS, keys=[key for key, _ in rows])


def note_claimed(run_log: RunLogBuffer, step: Row, worker_id: str, **more: str) -> None:
    """Start the run of a claimed step in its log, with what the log does not say yet: the step is that of the run."""
    run_log.start(step.run_id, step.fence, worker_id)
    if step.ready_us is not None:
        run_log.note(step.run_id, EventType.STEP_READY, step.ready_us)
    run_log.note(step.run_id, EventType.STEP_CLAIMED, fence=step.fence, worker=worker_id, **more)
    begun = EventType.RUN_RESUMED if step.starts > 1 else EventType.RUN_STARTED
    run_log.note(step.run_id, begun, fence=step.fence)


def tell_opened(run_log: RunLogBuffer, run_id: str, key: str, gate: str, ready_us: int | None) -> None:
    """Note that a step was opened, if a worker's end did it and no log has it yet."""
    if ready_us is not None:
        run_log.note(run_id, opening(gate), ready_us, step=key)


def opening(gate: str) -> EventType:
    """Return the event of a step that is opened."""
    return EventType.STEP_READY if gate == StepGate.WORKERS else EventType.STEP_EXPANDING


# By key: "worker_id || ''" keeps SQLite from walking all leases of the worker once for every end.
END_STEP: Final = Statement(
    "end step: what its holder says of it, while it holds it; one that was asked to stop needs no settling",
    """
    UPDATE steps SET
        status = :status, outcome = :outcome, output = :output, error = :error, ended_us = :now_us,
        is_settled = CASE WHEN :status = 'failed' AND cancel_reason IS NOT NULL THEN 1 ELSE 0 END,
        cancel_reason = NULL
    WHERE key = :key AND run_id = :run_id AND fence = :fence
      AND worker_id || '' = :worker_id AND status = 'running'
    RETURNING key, task_id, session_id
    """,
)
_END_FIELDS: Final = ("key", "run_id", "fence", "status", "outcome", "output", "error")

_STEP_EVENT: Final[Mapping[StepStatus, EventType]] = {
    StepStatus.COMPLETED: EventType.STEP_COMPLETED,
    StepStatus.FAILED: EventType.STEP_FAILED,
    StepStatus.CANCELLED: EventType.STEP_CANCELLED,
}
RUN_STATUS: Final[Mapping[StepStatus, RunStatus]] = {
    StepStatus.COMPLETED: RunStatus.COMPLETED,
    StepStatus.FAILED: RunStatus.FAILED,
    StepStatus.CANCELLED: RunStatus.CANCELLED,
}


class ClaimRequest(Value):
    """The claim that a worker requests with the ends it reports."""

    worker_id: str
    claim: int
    pools: Sequence[str]
    capabilities: Sequence[str]
    live_workers: int
    now_us: int


@dataclass(slots=True)
class CompletionResult:
    """The result of ends. ``written`` are the keys of the steps that ended, ``sessions`` those of their tasks by id."""

    written: set[str] = field(default_factory=set)
    sessions: dict[str, str] = field(default_factory=dict)
    unlocked: Unlocked = field(default_factory=Unlocked)
    completed: list[str] = field(default_factory=list)
    """The keys of steps that others waited for."""

    def owner_sessions(self, claims: Sequence[Claim]) -> frozenset[str]:
        """Return the sessions whose owner has something to do, given what was claimed with the ends.

        A task continues when a step of it was claimed, or one became ready or waits for fewer. Otherwise these ends may
        be its last: only its owner, which reads after their commit, sees whether all others have ended too. A worker
        cannot see it: the ends of two workers that commit at the same moment do not see each other.
        """
        continued = self.unlocked.continued.union(claim.identity.task_id for claim in claims)
        return frozenset(
            session_id
            for task_id, session_id in self.sessions.items()
            if task_id in self.unlocked.expanding or task_id not in continued
        )


def write_ends(
    tx: Transaction, run_log: RunLogBuffer, ends: Mapping[str, StepEnd], request: ClaimRequest
) -> CompletionResult:
    """Write the ends that still count, by step key in order. Their dependents are still to be opened."""
    ended = CompletionResult()
    for end in ends.values():
        told = dict(zip(_END_FIELDS, end_row(end), strict=True))
        for row in tx.rows(END_STEP, worker_id=request.worker_id, now_us=request.now_us, **told):
            ended.written.add(row.key)
            ended.sessions[row.task_id] = row.session_id
            note_end(run_log, end)
            if end.status is StepStatus.COMPLETED:
                ended.completed.append(row.key)
    return ended


def end_row(end: StepEnd) -> tuple[object, ...]:
    """Return an end as the statements take it (``_END_FIELDS``)."""
    return (
        end.step_key,
        end.run_id,
        end.fence,
        end.status.value,
        end.outcome.value if end.status is StepStatus.COMPLETED else None,
        None if end.output is None else pack(end.output),
        None if end.error is None else pack(end.error.as_json()),
    )


def note_end(run_log: RunLogBuffer, end: StepEnd) -> None:
    """Gather what an end writes to its run. Every completed run has a result node."""
    run_log.add(end.run_id, nodes=end.nodes, events=end.events)
    if end.status is StepStatus.COMPLETED and not any(node.kind is NodeKind.RESULT for node in end.nodes):
        run_log.add(end.run_id, nodes=[NewNode(NodeKind.RESULT, {"v": 1, "output": end.output})])
    why = {} if end.error is None else end.error.as_json()
    run_log.note(end.run_id, _STEP_EVENT[end.status], fence=end.fence, **why)  # its step is its run's
    run_log.end(end.run_id, RUN_STATUS[end.status], end.end_reason, end.usage)
