"""Ends as a worker reports them: which still count, what they write, what they leave to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from soong.shared.core.value import Value
from soong.shared.engine.runs.events import EventType, NewNode, NodeKind
from soong.shared.engine.runs.record import RunStatus
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.storage.sql.claims.readiness import Unlocked
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.texts import pack
from soong.shared.storage.sql.engine.transaction import Transaction

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
