"""The runs that a worker process holds: the additional step of each, and functions that do not end.

The rows decide who holds what; the table of additional steps (DAG-03) only records what a run was given here. A lease
is the worker's like every other, so a worker that dies loses both. A run that stops lets go of its additional step in
the same breath: completed, the step gets its answer if it fits; failed, it fails; in every other case somebody else
takes the step.

A thread cannot be ended, so its slot, its lease and its place in every limit stay taken until it ends. The row of its
step reports it to owners and people: at once when a time limit has passed, and again when it counts as stuck.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from soong.shared.agents.runtime.call_log import StopSignal, clean_end
from soong.shared.core import timing
from soong.shared.core.errors import LeaseLostError, TemplateError, UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.core.step_work import StepWork
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.events import NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.claims import UNKNOWN, ClaimRefusal, ClaimStore, undoable
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim, Interrupt, Lease, RunFence, StepEnd, StepError
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.schema import validate
from soong.shared.toolsets.tasks.own import step_id_of, work_of
from soong.worker.claim_loop import ClaimLoop
from soong.worker.run import malformed

log = get_logger(__name__)

MAX_CHARS: Final = 200
"""The most of a step and its functions in a heartbeat."""


@dataclass(slots=True)
class HeldRun:
    """A run in a slot: its asyncio task, and the work that can outlive it."""

    claim: Claim
    task: asyncio.Task[StepEnd]
    worker_id: str
    interruption: StopSignal
    work: StepWork
    is_stuck: bool = False
    is_leaving: bool = False
    """Its process ends without waiting for it."""
    slot: "asyncio.Task[Any] | None" = None
    is_abandoned: bool = False
    """Its slot is given up; its end is written last of all."""
    is_settled: bool = False
    """It has completed and its end is written; what it left behind keeps the slot."""

    @property
    def words(self) -> str:
        return f"{self.claim.step_key} ({' and '.join(self.work.names)})"[:MAX_CHARS]

    @property
    def is_left(self) -> bool:
        """Say whether only the end of this process ends it."""
        is_over = self.is_leaving or self.interruption.stop == "drop"
        return bool(self.work) and (is_over or (self.is_stuck and self.interruption.stop != "release"))

    @property
    def end(self) -> StepEnd | None:
        """Return what its runner has reported; None while that runs, and where it was stopped."""
        is_known = self.task.done() and not self.task.cancelled() and self.task.exception() is None
        return self.task.result() if is_known else None

    def end_now(self) -> StepEnd | None:
        """Return the end to write when its process ends the work; None: its step is handed back."""
        end = self.end
        if end is not None and end.error is not None:
            words = f"{end.error.message}; its function was ended with its worker, what it did is unknown"
            return replace(end, error=StepError(UNKNOWN, words))
        if end is None and self.interruption.stop == "cancel":
            words = f"{self.interruption.reason or 'cancelled'}; its function was ended with its worker"
            return self.claim.cancelled(words, EndReason.CANCELLED)
        return end


@dataclass(slots=True)
class UnendedRuns:
    """Watches the runs of one process that were asked to end, each from then on until it has ended."""

    claims: ClaimStore
    clock: Clock
    stuck_s: float = 30.0
    beat_s: float = 5.0
    """So long a resumed function can still look paused."""
    on_stuck: Callable[[], object] = lambda: None
    notifier: Notifier | None = None
    _watched: "dict[RunFence, asyncio.Task[None]]" = field(default_factory=dict)

    def watch(self, held: HeldRun) -> None:
        self.ended(held)
        held.is_stuck = False
        self._watched[held.claim.run_fence] = asyncio.get_running_loop().create_task(self._watch(held))

    def ended(self, held: HeldRun) -> None:
        if (watching := self._watched.pop(held.claim.run_fence, None)) is not None:
            watching.cancel()

    async def _watch(self, held: HeldRun) -> None:
        await asyncio.sleep(timing.SETTLE_S)
        error = held.end.error if held.end is not None else None
        if error is not None:
            await self._report(held, f"{error.message}; {' and '.join(held.work.names)} still runs", error)
        late_s = self.beat_s if held.interruption.is_pausing else 0.0
        await asyncio.sleep(max(0.0, self.stuck_s - timing.SETTLE_S) + late_s)
        if not held.work:
            return
        held.is_stuck = True
        names, place = " and ".join(held.work.names), held.work.place()
        words = f"{names} has not ended within {self.stuck_s:g} s of its {_cause(held)}; it is at {place or '?'}"
        log.error("function_stuck", step=held.claim.step_key, function=names, at=place, stack=held.work.stacks())
        final = None if error is None else StepError(UNKNOWN, f"{error.message}; {words}; what it did is unknown")
        if not held.is_settled:
            await self._report(held, words, final)
        self.on_stuck()

    async def _report(self, held: HeldRun, words: str, error: StepError | None) -> None:
        """Write it into the step's row; an owner that is notified settles what a limit has ended."""
        claim, now_us = held.claim, self.clock.now_us()
        try:
            await self.claims.report_progress(held.worker_id, claim.lease, words, error=error, now_us=now_us)
            if error is not None and self.notifier is not None:
                await self.notifier.notify_owners([claim.identity.session_id])
        except (LeaseLostError, UnavailableError) as problem:
            log.warning("unended_unreported", step=claim.step_key, error=str(problem))


def _cause(held: HeldRun) -> str:
    if held.interruption.stop == "release":
        return "pause"
    end = held.end
    if end is None or end.status is StepStatus.CANCELLED:
        return "cancellation"
    return "time limit" if end.status is StepStatus.FAILED else "run"


REASONS_KEPT: Final = 32
"""For how many steps of a run it is remembered why it lost them."""


@dataclass(slots=True)
class _Holder:
    """One held run: the additional step that it holds now, and why it lost others."""

    open: Claim | None = None
    lost: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class AdditionalSteps:
    """Implements ``soong.shared.toolsets.tasks.own.AdditionalClaims``. Its claim loop is set before any claim."""

    redactor: Redactor = field(default_factory=Redactor)
    claim_loop: ClaimLoop = field(init=False)
    _holders: dict[RunFence, _Holder] = field(default_factory=dict)
    """By run and fence, as a run that is being handed back may have been claimed here again already."""

    def held_by(self, holder: Lease) -> Claim | None:
        known = self._holders.get((holder.run_id, holder.fence))
        return None if known is None else known.open

    def why_lost(self, holder: Lease, step_id: str) -> str:
        known = self._holders.get((holder.run_id, holder.fence))
        return "" if known is None else known.lost.get(step_id, "")

    async def claim(self, holder: Lease, step_id: str) -> Claim | ClaimRefusal:
        claim = await self.claim_loop.claim_additional(holder, step_id)
        if isinstance(claim, ClaimRefusal):
            return claim
        known = self._holders.setdefault((holder.run_id, holder.fence), _Holder())
        known.open = claim
        known.lost.pop(step_id, None)
        if claim.malformed:
            await self.end(holder, malformed(claim))
            return undoable(step_id, claim.malformed)
        try:
            work_of(claim)
        except TemplateError as error:
            # Its instructions name something that does not exist: as with a run of its own, the step fails.
            await self.end(holder, claim.failed(error.code, str(error)))
            return undoable(step_id, str(error))
        return claim

    async def end(self, holder: Lease, end: StepEnd) -> bool:
        known = self._holders.get((holder.run_id, holder.fence))
        if known is None or known.open is None:
            return False
        # Let go of first: whatever stops the run from here on, this end is the claim loop's and is written once.
        known.open = None
        return await self.claim_loop.end_additional(clean_end(end, self.redactor))

    async def interrupt(self, interrupt: Interrupt) -> bool:
        """Stop an additional step on request; False when it is not one. A paused task's goes with its holder."""
        for lease, known in list(self._holders.items()):
            claim = known.open
            if claim is not None and claim.run_fence == (interrupt.run_id, interrupt.fence):
                if interrupt.kind == "cancel":
                    await self._cancel(lease, known, claim, interrupt.reason)
                return True
        return False

    async def _cancel(self, lease: RunFence, known: _Holder, claim: Claim, reason: str) -> None:
        known.open = None
        while len(known.lost) >= REASONS_KEPT:
            del known.lost[next(iter(known.lost))]
        known.lost[step_id_of(claim)] = f"it was cancelled: {reason}" if reason else "it was cancelled"
        log.info("further_step_cancelled", step=claim.step_key, holder=lease[0])
        await self.claim_loop.end_additional(claim.cancelled(reason or "it was cancelled"))

    def ends_with(self, claim: Claim, end: StepEnd) -> tuple[StepEnd, ...]:
        """Return the end of a run's additional step, as its own end has it, and release it."""
        open_claim = self._let_go(claim)
        if open_claim is None:
            return ()
        return (clean_end(_end_by(open_claim, end), self.redactor),)

    def leases_of(self, claim: Claim) -> tuple[Lease, ...]:
        """Return what is to be handed back with a run's own step, and let go of it."""
        open_claim = self._let_go(claim)
        if open_claim is None:
            return ()
        self.claim_loop.forget(open_claim)
        return (open_claim.lease,)

    def drop(self, claim: Claim) -> None:
        """Forget all that a run held: nothing may be written for it."""
        self.leases_of(claim)

    def _let_go(self, claim: Claim) -> Claim | None:
        known = self._holders.pop(claim.run_fence, None)
        return None if known is None else known.open


def _end_by(claim: Claim, end: StepEnd) -> StepEnd:
    """Return how an additional step ends with the run that holds it: the run's end, for another step."""
    if end.status is not StepStatus.COMPLETED:
        error = end.error or StepError(str(end.end_reason), "")
        message = f"the run that held it failed: {error.message}"
        return claim.failed(error.type, message, retryable=error.retryable, reason=end.end_reason)
    violations = [] if claim.spec.output is None else validate(claim.spec.output, end.output)
    if violations:
        problem = "; ".join(map(str, violations))
        message = f"the run that held it ended without a result for it, and its own answer does not fit: {problem}"
        return claim.failed("invalid_output", message)
    nodes = tuple(node for node in end.nodes if node.kind is NodeKind.RESULT)
    return claim.completed(end.output, outcome=end.outcome, nodes=nodes)
