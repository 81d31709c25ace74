"""The claim loop: all slots of a process end and claim their steps together, one transaction at a time.

A **slot** asks for its next step and hands in the end of its last one. While one transaction runs, more ends and
requests gather for the next: the busier the process, the larger its batches, with no timer to tune. A chain therefore
costs one transaction per hop and no message. When there is one to serve, the process's spare slots claim with it, so
a single dispatch fills a process. Rows decide everything; the claim loop holds only what it was given.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.engine.tasks.claims import ClaimRefusal, ClaimStore
from soong.shared.engine.tasks.step import Advance, Claim, Lease, RunFence, StepEnd
from soong.shared.engine.wire.notifier import Notifier

log = get_logger(__name__)

BATCH = 64
"""Most steps claimed at once: beyond it a transaction's latency grows faster than its throughput."""


@dataclass(slots=True)
class SlotTurn:
    """One slot's turn: the ends of what its run held, if any, and the request for another step."""

    ends: tuple[StepEnd, ...]
    wants_step: bool
    future: asyncio.Future[Claim | None]
    stale: frozenset[str] | None = None
    """The run ids among its ends that did not count; None while nothing of it has been written."""


class WorkerCapacity(Value):
    """The claims open to this worker; with no ``worker_id`` (between two incarnations) it claims and ends nothing."""

    worker_id: str
    pools: tuple[str, ...]
    capabilities: tuple[str, ...]
    live_workers: int = 1


@dataclass(slots=True)
class ClaimLoop:
    """Lives as long as the process; one task runs it."""

    claims: ClaimStore
    notifier: Notifier
    clock: Clock
    capacity: Callable[[], WorkerCapacity]
    free_slots: Callable[[], int]
    """How many slots of the process nobody holds."""
    start_slot: Callable[[Claim], None]
    """Opens a spare slot for a claim."""
    is_draining: bool = False
    reserved: int = 0
    """How many of the spare slots the batch under way claims steps for: they are nobody else's until it has ended."""
    given: set[RunFence] = field(default_factory=set)
    """Claims that were heard and have not come back: what this process knows that it holds."""
    _turns: list[SlotTurn] = field(default_factory=list)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _serving: asyncio.Lock = field(default_factory=asyncio.Lock)
    _notifying: asyncio.Task[None] | None = None
    _filling: asyncio.TimerHandle | None = None
    _was_left: bool = False
    _failures: int = 0
    """Batches in a row that could not be written."""

    async def next_step(
        self,
        end: StepEnd | None,
        ran: Claim | None = None,
        additional: tuple[StepEnd, ...] = (),
        *,
        wants_step: bool = True,
    ) -> Claim | None:
        """Hand in ``end`` and return a claimed step, or None when nothing is claimable now.

        ``ran`` is what the slot has had; without an end it is not held any more. ``additional`` are the ends of what
        its run held in addition to its own step: they are written in the same transaction. Without ``wants_step``
        nothing is claimed for the slot.
        """
        if ran is not None and end is None:
            self.forget(ran)
        ends = (*(() if end is None else (end,)), *additional)
        return await self._request_turn(ends, wants_step=wants_step and not self.is_draining).future

    async def claim_additional(self, holder: Lease, step_id: str) -> Claim | ClaimRefusal:
        """Claim a step for a run that is held here, in addition to its own.

        Raises: LeaseLostError; UnavailableError, and then what was claimed all the same is given back.
        """
        async with self._serving:
            capacity = self.capacity()
            claim = await self.claims.claim_additional(
                capacity.worker_id,
                holder,
                step_id,
                pools=capacity.pools,
                capabilities=capacity.capabilities,
                now_us=self.clock.now_us(),
            )
            if isinstance(claim, Claim):
                self.given.add(claim.run_fence)
        if isinstance(claim, Claim):
            await self.notifier.notify_runs([claim.identity.run_id])
        return claim

    async def end_additional(self, end: StepEnd) -> bool:
        """Write the end of a step whose holder continues with its own; False when it was not held any more."""
        turn = self._request_turn((end,), wants_step=False)
        await turn.future
        return turn.stale is not None and end.run_id not in turn.stale

    def fill(self) -> None:
        """Claim steps for the spare slots, with nothing to hand in."""
        self._request_turn((), wants_step=False)

    def _fill_now(self) -> None:
        self._filling = None
        self.fill()

    def forget(self, claim: Claim) -> None:
        """Let go of a claim that has come back without an end."""
        self.given.discard(claim.run_fence)

    def _request_turn(self, ends: tuple[StepEnd, ...], *, wants_step: bool) -> SlotTurn:
        turn = SlotTurn(ends, wants_step, asyncio.get_running_loop().create_future())
        self._turns.append(turn)
        self._wanted.set()
        return turn

    def drain(self) -> None:
        """Claim nothing from now on; ends are still written."""
        self.is_draining = True
        for turn in self._turns:
            turn.wants_step = False

    async def settled(self) -> None:
        """Wait until the batch under way, if any, has been written and what it claimed has been placed."""
        async with self._serving:
            return

    def lose(self) -> None:
        self.given.clear()

    async def return_unheard(self) -> None:
        """Give back what a claim took whose answer never came: this worker holds it, and nobody works for it.

        Raises: UnavailableError.
        """
        async with self._serving:
            worker_id = self.capacity().worker_id
            leases = await self.claims.leases(worker_id) if worker_id else ()
            unheard = [lease for lease in leases if (lease.run_id, lease.fence) not in self.given]
            if unheard:
                log.warning("claims_unheard", steps=[lease.step_key for lease in unheard])
                reason = "the answer to its claim was lost"
                await self.claims.release(worker_id, unheard, reason=reason, now_us=self.clock.now_us())

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            turns, self._turns = self._turns, []
            if turns:
                async with self._serving:
                    try:
                        await self._serve(turns)
                    finally:
                        self.reserved = 0

    async def _serve(self, turns: list[SlotTurn]) -> None:
        capacity = self.capacity()
        if not capacity.worker_id:
            self._answer(turns, ())
            return
        try:
            ends = [end for turn in turns for end in turn.ends]
            waiting = sum(turn.wants_step for turn in turns)
            free = 0 if self.is_draining else self.free_slots()
            self.reserved = max(0, min(free, BATCH - waiting))
            advance = await self._write(capacity, ends, claim=min(waiting + self.reserved, BATCH))
        except asyncio.CancelledError:
            for turn in turns:
                turn.future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # whatever an end holds that cannot be stored is that end's own matter
            await self._serve_apart(capacity, turns, error)
            return
        self._failures = 0
        if self.capacity().worker_id != capacity.worker_id:
            self._answer(turns, ())  # the incarnation was lost meanwhile: nothing may begin under its name
            return
        for turn in turns:
            turn.stale = advance.stale
        # A claim without a request opens a slot; so does one whose own slot went away.
        for claim in self._answer(turns, advance.claims):
            self.start_slot(claim)
        if advance.ready_left and advance.claims and self.free_slots() > 0 and self._filling is None:
            # If the batch was the limit, there is more of this worker's share; if not, others get a moment for theirs.
            delay_s = 0.0 if len(advance.claims) == BATCH else timing.HINTS_S
            self._filling = asyncio.get_running_loop().call_later(delay_s, self._fill_now)
        await self._notify_owners(advance)
        ended = [end.run_id for turn in turns for end in turn.ends if end.nodes]
        begun = [claim.identity.run_id for claim in advance.claims if claim.spec.kind.traits.is_agent]
        if ended or begun:
            await self.notifier.notify_runs([*ended, *begun])

    def _answer(self, turns: list[SlotTurn], claims: tuple[Claim, ...]) -> list[Claim]:
        """Give each waiting slot a claim or None; return the claims that are left over."""
        self.given.difference_update((end.run_id, end.fence) for turn in turns for end in turn.ends)
        self.given.update(claim.run_fence for claim in claims)
        left = list(reversed(claims))
        for turn in turns:
            if not turn.future.done():
                turn.future.set_result(left.pop() if turn.wants_step and left else None)
        return left[::-1]

    async def _serve_apart(self, capacity: WorkerCapacity, turns: list[SlotTurn], error: Exception) -> None:
        """Something of this batch cannot be written or claimed: write each end alone, and claim in the next batch.

        An end that cannot be stored even alone is written as a failure that says why; otherwise one poisonous result
        would keep its step leased by a worker that lives on.
        """
        log.error("batch_failed", ends=[end.step_key for turn in turns for end in turn.ends], error=repr(error))
        for turn in turns:
            stale = [await self._end_alone(capacity, end) for end in turn.ends]
            turn.stale = frozenset[str]().union(*stale)
        self._answer(turns, ())
        # A notified owner calls this worker again: one that can claim nothing must not be called all the time.
        self._notify_later(timing.retry_s(self._failures))
        self._failures += 1

    async def _end_alone(self, capacity: WorkerCapacity, end: StepEnd) -> frozenset[str]:
        """Return the run's id if its end did not count."""
        for attempt in (end, _unstorable(end)):
            try:
                advance = await self._write(capacity, [attempt], claim=0)
                await self._notify_owners(advance)
            except Exception:
                log.exception("end_unwritable", step=end.step_key)
            else:
                return advance.stale
        return frozenset({end.run_id})

    async def write_ends(self, ends: list[StepEnd]) -> None:
        """Write ends after the loop has stopped. Raises: UnavailableError when this worker is gone meanwhile."""
        await self._write(self.capacity(), ends, claim=0)

    async def _write(self, capacity: WorkerCapacity, ends: list[StepEnd], *, claim: int) -> Advance:
        """Advance, however long the database is away: the heartbeat, not the claim loop, decides when to give up."""
        for attempt in itertools.count():
            try:
                return await self.claims.advance(
                    capacity.worker_id,
                    ends,
                    claim=0 if self.is_draining else claim,
                    pools=capacity.pools,
                    capabilities=capacity.capabilities,
                    live_workers=capacity.live_workers,
                    now_us=self.clock.now_us(),
                )
            except UnavailableError as error:
                # An end that was applied although we saw an error comes back as stale: harmless.
                if self.capacity().worker_id != capacity.worker_id:
                    return Advance()
                log.warning("advance_unanswered", error=str(error), attempt=attempt)
                await asyncio.sleep(timing.retry_s(attempt))
        raise AssertionError("a count does not end")

    async def _notify_owners(self, advance: Advance) -> None:
        """Notify owners of their work and of what is left for others."""
        if advance.owner_sessions:
            await self.notifier.notify_owners(sorted(advance.owner_sessions))
        if advance.ready_left:
            self._notify_later(timing.LEAST_PAUSE_S if self._was_left else timing.HINT_S)
        self._was_left = advance.ready_left

    def pass_on(self) -> None:
        """Let owners call again: a dispatch came here that was meant for a worker with a free slot."""
        self._notify_later(timing.LEAST_PAUSE_S)

    def _notify_later(self, delay_s: float) -> None:
        if self._notifying is None or self._notifying.done():
            self._notifying = asyncio.get_running_loop().create_task(self._notify_soon(delay_s))

    async def _notify_soon(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self.notifier.notify_owners()


def _unstorable(end: StepEnd) -> StepEnd:
    """Return the failure that stands for an end which the store cannot take."""
    failed = end.lease.failed("invalid_output", "the result cannot be stored")
    return replace(failed, usage=end.usage)
