"""Tracks the one additional step that each run in this process may hold, from its claim to its end (DAG-03).

The rows decide who holds what; this table only records what a run was given here. Its lease is the worker's like every
other, so a worker that dies loses both. A run that stops lets go of it in the same breath: completed, the step gets its
answer if it fits; failed, it fails; in every other case somebody else takes the step.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final, Protocol

from soong.shared.agents.pacing import LIFTED
from soong.shared.agents.runtime.call_log import clean_end
from soong.shared.core import timing
from soong.shared.core.errors import TemplateError
from soong.shared.core.log import get_logger
from soong.shared.engine.runs.events import NodeKind
from soong.shared.engine.tasks.claims import ClaimRefusal, undoable
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim, Interrupt, Lease, RunFence, StepEnd, StepError
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.schema import validate
from soong.shared.toolsets.tasks.own import step_id_of, work_of
from soong.worker.claim_loop import ClaimLoop
from soong.worker.function_step import malformed

log = get_logger(__name__)

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


class Capacity(Protocol):
    """The slots of the process."""

    capacity: int

    def places(self) -> int:
        """Return how many runs more may be at work; those that wait without a slot are not."""
        ...

    async def settled_places(self) -> int:
        """Return the places that are promised to no batch under way."""
        ...

    def fill(self) -> None:
        """Claim steps for the free slots."""
        ...


@dataclass(slots=True)
class LentSlots:
    """Counts the runs of a process that wait without a slot: at most as many as it has slots.

    ``after_s`` is how long a wait must be, in seconds, for the slot to be worth more to others.
    """

    after_s: float = float("inf")
    count: int = 0
    """Runs that hold no slot now, with those that are to have one again."""
    returning: int = 0
    """Those whose wait is over: the next places are theirs."""
    slots: Capacity | None = None
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    """A slot was given back."""
    _looking: asyncio.Task[None] | None = None

    async def sleep(self, seconds: float) -> None:
        """Sleep; for a long time without a slot, which the run has again when this returns."""
        slots = self.slots
        if slots is None or seconds <= self.after_s or self.count >= slots.capacity:
            await asyncio.sleep(seconds)
            return
        log.info("slot_lent", seconds=round(seconds, 1))
        self.count += 1
        try:
            if self._looking is None:
                self._looking = asyncio.get_running_loop().create_task(self._look(slots))
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError as signal:
                if signal.args != (LIFTED,):
                    raise
            self.returning += 1
            try:
                while await slots.settled_places() <= 0:
                    self.freed.clear()
                    await self.freed.wait()
            finally:
                self.returning -= 1
        finally:
            self.count -= 1
            if not self.count and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _look(self, slots: Capacity) -> None:
        while True:
            slots.fill()
            await asyncio.sleep(timing.POLL_ROWS_S)
