"""Whether claims were just: in a session what was parked first and then by priority, in turn between sessions, within
the concurrency limits (DIS-03, DIS-10, PER-13).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from soong.shared.engine.tasks.spec import STEP_ENDS, ClaimMode, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Advance, Step
from tests.model.memory.claiming import counted_leases, scopes_of
from tests.model.memory.rows import Rows


class UnjustClaimError(AssertionError):
    """A step was claimed that should have waited for another."""


@dataclass(slots=True)
class ClaimAuditor:
    """``passed`` counts, for each session with work that could be claimed, the claims that went to others since."""

    passed: Counter[str] = field(default_factory=Counter)
    unparked: set[str] = field(default_factory=set)
    longest_wait: int = 0
    claims: int = 0
    additional_claims: int = 0

    def check(
        self, rows: Rows, worker_id: str, wish: Mapping[str, Any], advance: Advance, changed: Sequence[Step]
    ) -> None:
        """Judge the claims of one transaction, which are told in the order in which they were made."""
        claimed = [rows.steps[claim.step_key] for claim in advance.claims]
        begun = {step.key for step in changed if step.status is StepStatus.RUNNING}
        if {step.key for step in claimed} != begun:
            raise UnjustClaimError(f"told of {[step.key for step in claimed]}, claimed {begun}")
        if len(claimed) > wish["claim"]:
            raise UnjustClaimError(f"{len(claimed)} steps for a claim of {wish['claim']}")
        if not claimed:
            return
        self.claims += len(claimed)
        leases = counted_leases(rows)
        self._check_limits(rows, leases)
        for step in claimed:
            leases.subtract(scopes_of(step))
        waiting = [step for step in rows.steps.values() if _is_claimable(step, rows, wish)] + claimed
        for step in claimed:
            self._check_one(rows, step, waiting, leases, worker_id, wish)
            waiting.remove(step)
            leases.update(scopes_of(step))

    def additional(self, rows: Rows, step: Step) -> None:
        """Judge a claim of a run that goes on with its own step: it was its session's turn like any other."""
        self.additional_claims += 1
        self.passed[step.session_id] = 0
        self._check_limits(rows, counted_leases(rows))

    def _check_limits(self, rows: Rows, leases: Counter[str]) -> None:
        over = {scope: leases[scope] for scope, limit in rows.concurrency_limits.items() if leases[scope] > limit}
        if over:
            raise UnjustClaimError(f"leases beyond their concurrency limits {rows.concurrency_limits}: {over}")

    def _check_one(
        self,
        rows: Rows,
        step: Step,
        waiting: Sequence[Step],
        leases: Counter[str],
        worker_id: str,
        wish: Mapping[str, Any],
    ) -> None:
        if step.worker_id != worker_id or step.pool not in wish["pools"] or set(step.needs) - set(wish["capabilities"]):
            raise UnjustClaimError(f"{worker_id} with {wish} was given {step}")
        able = [
            one
            for one in waiting
            if all(leases[name] < rows.concurrency_limits.get(name, 1 << 30) for name in scopes_of(one))
        ]
        own = [one for one in able if one.session_id == step.session_id]
        better = [one for one in own if self._place(one) > self._place(step)]
        if better:
            raise UnjustClaimError(f"{step.key} was claimed before {better[0].key}, whose turn was before it")
        self.passed[step.session_id] = 0
        bound = len(rows.sessions) - 1
        for session_id in sorted({one.session_id for one in able} - {step.session_id}):
            self.passed[session_id] += 1
            self.longest_wait = max(self.longest_wait, self.passed[session_id])
            if self.passed[session_id] > bound:
                raise UnjustClaimError(f"{self.passed[session_id]} claims of others went before one of {session_id}")

    def moved(self, was: Step | None, step: Step) -> None:
        """Remember what was parked and may go on: it goes before what has not begun, until it begins anew."""
        if was is not None and (was.status, step.status) == (StepStatus.BLOCKED, StepStatus.READY):
            self.unparked.add(step.key)
        elif was is None or was.status in STEP_ENDS or step.status is StepStatus.BLOCKED:
            self.unparked.discard(step.key)

    def _place(self, step: Step) -> tuple[bool, int]:
        return step.key in self.unparked, step.priority


def _is_claimable(step: Step, rows: Rows, wish: Mapping[str, Any]) -> bool:
    return (
        step.status is StepStatus.READY
        and step.claim_mode is ClaimMode.ASSIGNED
        and rows.tasks[step.task_id].status is TaskStatus.RUNNING
        and step.pool in wish["pools"]
        and set(step.needs) <= set(wish["capabilities"])
    )
