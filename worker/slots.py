"""Slots: each holds one child run at a time, from claim to end.

Owns the table of held runs and the ways they can be stopped: cancelled (the run ends), handed back (pause, drain),
parked, or dropped (the lease is gone, nothing may be written). Running a step is the runner's business. A run has ended
when all that it has started has ended: until then it keeps its slot and its lease.
"""

import asyncio
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, assert_never

from soong.shared.agents.runtime.call_log import StopReason, StopSignal, cancel_until_done
from soong.shared.core import timing
from soong.shared.core.errors import LeaseLostError, UnavailableError
from soong.shared.core.foreign import place_of
from soong.shared.core.log import get_logger
from soong.shared.core.step_work import StepWork, holding
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.claims import ClaimStore
from soong.shared.engine.tasks.failure_report import with_report
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim, Lease, RunFence, StepEnd
from soong.worker.claim_loop import ClaimLoop
from soong.worker.held_runs import AdditionalSteps, HeldRun, UnendedRuns
from soong.worker.parking import LentSlots
from soong.worker.run import crashed

log = get_logger(__name__)

MOST_NAMED: Final = 10
"""Steps that a heartbeat names."""


class ClaimRunner(Protocol):
    """Runs one claimed step to its end. Raises LeaseLostError when a write was refused; is cancelled to stop it."""

    async def run(self, claim: Claim, interruption: StopSignal) -> StepEnd: ...


class RunObserver(Protocol):
    """Gets every run that starts and ends here, for telemetry."""

    def started(self, claim: Claim) -> None: ...

    def ended(self, claim: Claim, end: StepEnd | None) -> None: ...


@dataclass(slots=True)
class Slots:
    """All slots of a process, at most ``capacity``. A dispatch job opens one, the claim loop opens spare ones."""

    capacity: int
    claims: ClaimStore
    clock: Clock
    runner: ClaimRunner
    watcher: RunObserver
    unended: UnendedRuns
    additional: AdditionalSteps = field(default_factory=AdditionalSteps)
    """The additional steps of the held runs."""
    lent: LentSlots = field(default_factory=LentSlots)
    is_trusted: Callable[[], bool] = lambda: True
    """Whether this process may still hold what it holds, by its own clock."""
    claim_loop: ClaimLoop = field(init=False)
    _held: dict[RunFence, HeldRun] = field(default_factory=dict)
    """By run and fence: a run that is being handed back may have been claimed here again already."""
    _open: int = 0
    _has_abandoned: bool = False
    _grown: set[asyncio.Task[int]] = field(default_factory=set)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.lent.slots = self

    async def hold(self) -> int:
        """Hold one slot until nothing is claimable; return how many steps it ran.

        At once 0 when all are held; owners then call again, for a worker that has one. While those that are left are
        promised to a batch under way, it waits to see how many of them are taken.
        """
        while 0 < self.free_slots() <= self.claim_loop.reserved:
            await self.claim_loop.settled()
        if self.free_slots() <= 0:
            self.claim_loop.pass_on()
            return 0
        self._open += 1
        try:
            return await self._slot(None)
        except asyncio.CancelledError:
            if self._has_abandoned:
                return 0
            raise

    def free_slots(self) -> int:
        return self.places() - self.lent.returning

    def places(self) -> int:
        """Return how many runs more may be at work: a slot that is lent does not count as open."""
        return self.capacity - self._open + self.lent.count

    async def settled_places(self) -> int:
        """Return the places that are promised to no batch under way."""
        while 0 < self.places() <= self.claim_loop.reserved:
            await self.claim_loop.settled()
        return self.places()

    def fill(self) -> None:
        self.claim_loop.fill()

    def start_slot(self, claim: Claim) -> None:
        self._open += 1
        task = asyncio.get_running_loop().create_task(self._slot(claim))
        self._grown.add(task)
        task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[int]) -> None:
        self._grown.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("slot_failed", error=repr(task.exception()))

    async def _slot(self, claim: Claim | None) -> int:
        """Run steps one after another, beginning with ``claim`` if there is one, until nothing is claimable."""
        count = 0
        try:
            claim = claim or await self.claim_loop.next_step(None)
            while claim is not None:
                end = await self._run(claim)
                additional = () if end is None else self.additional.ends_with(claim, end)
                count += 1
                # A run that waits for a slot comes before another step.
                claim = await self.claim_loop.next_step(end, claim, additional, wants_step=self.free_slots() >= 0)
        finally:
            self._open -= 1
            self.lent.freed.set()
        return count

    def stop_run(self, run_id: str, stop: StopReason, reason: str) -> None:
        """Stop a held run; nothing when it is not held (any more)."""
        for lease, held in list(self._held.items()):
            is_paused = held.interruption.stop == "release" and stop in ("cancel", "drop")
            if lease[0] == run_id and (held.interruption.stop is None or is_paused):
                held.interruption.stop, held.interruption.reason = stop, reason
                cancel_until_done(held.task, reason, held.interruption)
                if stop == "drop":
                    held.work.cancel()  # now: what wakes in this moment too would go on before its run's task hears
                self.unended.watch(held)

    def resume_all_but(self, interrupted: Collection[str]) -> None:
        """Resume the functions that were paused and are not any more; nothing had cancelled them."""
        for held in self._held.values():
            is_resumed = held.interruption.is_pausing and not held.is_leaving
            if is_resumed and held.claim.identity.run_id not in interrupted and not held.task.done():
                held.interruption.stop, held.interruption.reason = None, ""
                self.unended.ended(held)
                held.is_stuck = False

    def abort_call(self, run_id: str, tool_call_id: str, reason: str) -> None:
        """End one call of a held run, which continues; nothing when the call is not under way here."""
        for lease, held in list(self._held.items()):
            if lease[0] == run_id:
                held.interruption.calls.abort(tool_call_id, reason)

    def stop_all(self, stop: StopReason, reason: str) -> None:
        for run_id, _ in list(self._held):
            self.stop_run(run_id, stop, reason)

    @property
    def busy(self) -> int:
        return len(self._held)

    @property
    def stuck(self) -> int:
        """How many slots are held by functions that do not end although their steps were cancelled or timed out."""
        return sum(held.is_left for held in self._held.values())

    @property
    def left_over(self) -> str:
        """Some of the completed steps whose threads still run, in words. Safe from any thread."""
        words = [held.words for held in tuple(self._held.values()) if held.is_settled]
        more = [f"and {len(words) - MOST_NAMED} more"] if len(words) > MOST_NAMED else []
        return "; ".join([*words[:MOST_NAMED], *more])

    async def lost_functions(self) -> tuple[str, ...]:
        """Give the coroutines of lost steps a moment to end; return the functions that continue."""
        works = [held.work for held in self._held.values() if held.interruption.stop == "drop"]
        are_ended = await asyncio.gather(*(work.end_soon() for work in works))
        return tuple(
            name for work, is_ended in zip(works, are_ended, strict=True) if not is_ended for name in work.names
        )

    def leave_functions(self) -> None:
        """Wait no more for functions under way: their process ends, and they with it."""
        for held in self._held.values():
            held.is_leaving = True
        self.note_idle()

    def abandon_functions(self) -> None:
        """Give up the slots of those that only the end of this process ends; their runs are handed over by that."""
        for held in self._held.values():
            if held.is_left and held.slot is not None:
                held.is_abandoned = self._has_abandoned = True
                if held.interruption.stop == "release":
                    held.interruption.stop = "drop"  # its runner waits for the function no more
                held.slot.cancel()

    async def hand_over(self) -> bool:
        """Write how the runs end that end with this process; say whether steps are left to hand back after that.

        Called last of all. Raises: UnavailableError.
        """
        worker_id = self.claim_loop.capacity().worker_id
        ends = [
            (held, held.end_now())
            for held in self._held.values()
            if held.worker_id == worker_id and not held.is_settled
        ]
        told = [end for _, end in ends if end is not None]
        if told:
            await self.claim_loop.write_ends(told)
        return bool(ends) and bool(await self.claims.leases(worker_id))

    def note_idle(self) -> None:
        """Wake who waits until no run is held, if none is but those that only the end of this process ends."""
        if all(held.is_left for held in self._held.values()):
            self._idle.set()

    async def until_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until no run is held that can still end; False when ``timeout_s`` passed first."""
        self._idle.clear()
        self.note_idle()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _run(self, claim: Claim) -> StepEnd | None:
        if claim.run_fence not in self.claim_loop.given:  # all was lost between the answer and its slot
            return None
        interruption, work = StopSignal(), StepWork(self.is_trusted)
        task = asyncio.get_running_loop().create_task(holding(work, lambda: self.runner.run(claim, interruption)))
        held = HeldRun(claim, task, self.claim_loop.capacity().worker_id, interruption, work)
        held.slot = asyncio.current_task()
        lease = claim.run_fence
        self._held[lease] = held
        self.watcher.started(claim)
        end: StepEnd | None = None
        try:
            end = await self._ended(held)
        except LeaseLostError:
            self.additional.drop(claim)
            log.warning("lease_lost", run=claim.identity.run_id, step=claim.step_key, fence=claim.fence)
        except UnavailableError as error:
            # Its log could not be written, so it may not go on; whoever claims it next goes on where the log ends.
            await self._release(held, f"the database was away: {error}")
        except asyncio.CancelledError:
            if held.is_abandoned:
                raise
            if interruption.stop is None:
                end = self._cancelled_from_within(claim)
            else:
                end = await self._stopped(held)
        except Exception as error:  # what the runner itself did not foresee: its step must not stay held for ever
            log.exception("runner_failed", step=claim.step_key)
            end = crashed(claim, error, place_of(error))
        finally:
            self.unended.ended(held)
            if not held.is_abandoned:
                del self._held[lease]
                self.note_idle()
                self.watcher.ended(claim, end)
        return None if held.is_settled else end

    async def _ended(self, held: HeldRun) -> StepEnd:
        """Return what the runner reports, once all that the run has started has ended.

        A completed end is written at once: no second run of its step can begin, and only the slot waits.
        """
        try:
            end = await held.task
            if held.work and end.status is StepStatus.COMPLETED:
                additional = self.additional.ends_with(held.claim, end)
                await self.claim_loop.next_step(end, held.claim, additional, wants_step=False)
                held.is_settled = True
            return end
        finally:
            if held.work and not held.is_abandoned:
                self.unended.watch(held)
                self.note_idle()
                await held.work.until_ended()

    async def _stopped(self, held: HeldRun) -> StepEnd | None:
        claim = held.claim
        match held.interruption.stop:
            case "drop" | "park" | None:
                self.additional.drop(claim)
                return None
            case "cancel" | "abort":
                # Its additional step was not cancelled with it, or is when it is handed back.
                await self._free(held, self.additional.leases_of(claim), held.interruption.reason)
                return _stopped_end(claim, held.interruption)
            case "release":
                await self._release(held, held.interruption.reason)
                return None
            case other:
                assert_never(other)

    def _cancelled_from_within(self, claim: Claim) -> StepEnd:
        """Return the end of a step whose own work cancelled itself; a slot that is cancelled itself passes that on."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        return claim.failed("execution_failed", "the step was cancelled by its own work", retryable=True)

    async def _release(self, held: HeldRun, reason: str) -> None:
        """Free the lease, however long the database is away: while this worker beats nobody else can."""
        await self._free(held, (held.claim.lease, *self.additional.leases_of(held.claim)), reason)

    async def _free(self, held: HeldRun, leases: Sequence[Lease], reason: str) -> None:
        if not leases:
            return
        for attempt in itertools.count():
            if self.claim_loop.capacity().worker_id != held.worker_id:
                return  # another incarnation: the reaper has freed what the old one held
            try:
                await self.claims.release(held.worker_id, leases, reason=reason, now_us=self.clock.now_us())
            except UnavailableError as error:
                log.warning("release_unanswered", run=held.claim.identity.run_id, error=str(error), attempt=attempt)
                await asyncio.sleep(timing.retry_s(attempt))
            else:
                return


def _stopped_end(claim: Claim, interruption: StopSignal) -> StepEnd:
    """Return the end of a step that was stopped; its run's says so when tools were cut off with it (EXE-07)."""
    if interruption.stop == "abort":
        return with_report(claim.aborted(interruption.reason), interruption.incidents)
    reason = EndReason.ABORTED_TOOLS if interruption.aborted_calls else EndReason.CANCELLED
    end = claim.cancelled(interruption.reason or "the task was cancelled", reason)
    return with_report(end, interruption.incidents)
