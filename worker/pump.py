"""The pump: all slots of a process end and claim their steps together, one transaction at a time.

A **slot** asks for its next step and hands in the end of its last one. While one transaction runs, further ends and
requests gather for the next: the busier the process, the larger its batches, with no timer to tune. A chain therefore
costs one transaction a hop and no message. Whenever there is one to serve, the process's spare slots claim with it, so
a single dispatch fills a whole process. Rows decide everything; the pump holds only what it was given.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.clock import Clock
from shared.errors import UnavailableError
from shared.log import get_logger
from shared.runs.status import EndReason
from shared.tasks.status import StepStatus
from shared.tasks.step import Advance, Claim, Held, StepEnd, StepError
from shared.tasks.store import TaskStore
from shared.wire.ring import Ring

log = get_logger(__name__)

BATCH = 64
"""Most steps claimed at once: beyond it a transaction's latency grows faster than its throughput."""

RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)

RING_FIRST_S = 0.002
RING_AGAIN_S = 0.25
"""Work that is left over is told to the owners at once, and again only now and then: whoever was woken stays awake."""


@dataclass(slots=True)
class _Wish:
    """One slot's turn: the end of its last step, if any, and the wish for another."""

    end: StepEnd | None
    wants_step: bool
    future: asyncio.Future[Claim | None]


@dataclass(frozen=True, slots=True)
class Supply:
    """What this worker may claim; with no ``worker_id`` (between two incarnations) it claims and ends nothing."""

    worker_id: str
    pools: tuple[str, ...]
    capabilities: tuple[str, ...]
    live_workers: int = 1


@dataclass(slots=True)
class Pump:
    """Lives as long as the process; one task runs it."""

    store: TaskStore
    ring: Ring
    clock: Clock
    supply: Callable[[], Supply]
    spare: Callable[[], int]
    """How many slots of the process nobody holds."""
    grow: Callable[[Claim], None]
    """Opens a spare slot for a claim."""
    is_draining: bool = False
    _wishes: list[_Wish] = field(default_factory=list)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _ringing: asyncio.Task[None] | None = None
    _was_left: bool = False

    async def next_step(self, end: StepEnd | None) -> Claim | None:
        """Hand in ``end`` and return a claimed step, or None when nothing is claimable now."""
        future: asyncio.Future[Claim | None] = asyncio.get_running_loop().create_future()
        self._wishes.append(_Wish(end, not self.is_draining, future))
        self._wanted.set()
        return await future

    def drain(self) -> None:
        """Claim nothing from now on; ends are still written."""
        self.is_draining = True
        for wish in self._wishes:
            wish.wants_step = False

    async def run(self) -> None:
        """Serve wishes until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            wishes, self._wishes = self._wishes, []
            if wishes:
                await self._serve(wishes)

    async def _serve(self, wishes: list[_Wish]) -> None:
        supply = self.supply()
        if not supply.worker_id:
            _answer(wishes, ())
            return
        try:
            advance = await self._advance(supply, wishes)
        except asyncio.CancelledError:
            for wish in wishes:
                wish.future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # whatever an end holds that cannot be stored is that end's own matter
            await self._serve_apart(wishes, error)
            return
        await self._place(supply, _answer(wishes, advance.claims))
        await self._tell_owners(advance)

    async def _place(self, supply: Supply, claims: list[Claim]) -> None:
        """Open spare slots for the claims that answered no wish; hand back those whose slot went away meanwhile."""
        room = 0 if self.is_draining else self.spare()
        for claim in claims[:room]:
            self.grow(claim)
        unwanted = [Held(claim.step_key, claim.identity.run_id, claim.fence) for claim in claims[room:]]
        if unwanted:
            await self.store.hand_back(supply.worker_id, unwanted, reason="slot is gone", now_us=self.clock.now_us())

    async def _serve_apart(self, wishes: list[_Wish], error: Exception) -> None:
        """One end could not be written: write the others without it, and it as a failure that says why.

        Otherwise one poisonous result would keep its step leased by a worker that lives on.
        """
        if len(wishes) > 1:
            for wish in wishes:
                await self._serve([wish])
            return
        (wish,) = wishes
        log.error("end_unwritable", step=wish.end.step_key if wish.end else "", error=repr(error))
        if wish.end is None or wish.end.status is StepStatus.FAILED:
            if not wish.future.done():
                wish.future.set_exception(error)
            return
        wish.end = StepEnd(
            wish.end.step_key,
            wish.end.run_id,
            wish.end.fence,
            StepStatus.FAILED,
            EndReason.FAILED,
            error=StepError("invalid_output", f"the result cannot be stored: {type(error).__name__}"),
            usage=wish.end.usage,
        )
        await self._serve([wish])

    async def _advance(self, supply: Supply, wishes: list[_Wish]) -> Advance:
        ends = [wish.end for wish in wishes if wish.end is not None]
        spare = 0 if self.is_draining else self.spare()
        claim = min(sum(wish.wants_step for wish in wishes) + spare, BATCH)
        for attempt in range(1_000_000):
            try:
                return await self.store.advance(
                    supply.worker_id,
                    ends,
                    claim=claim,
                    pools=supply.pools,
                    capabilities=supply.capabilities,
                    live_workers=supply.live_workers,
                    now_us=self.clock.now_us(),
                )
            except UnavailableError as error:
                # An end that was applied although we saw an error comes back as stale: harmless. The heartbeat, not the
                # pump, decides when to give up.
                if self.supply().worker_id != supply.worker_id:
                    return Advance()
                log.warning("advance_unanswered", error=str(error), attempt=attempt)
                await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
        return Advance()

    async def _tell_owners(self, advance: Advance) -> None:
        """Ring owners at once about what only they can do, and about work that is left for others."""
        if advance.owner_sessions:
            await self.ring.wake_owners(sorted(advance.owner_sessions))
        elif advance.ready_left and (self._ringing is None or self._ringing.done()):
            delay_s = RING_AGAIN_S if self._was_left else RING_FIRST_S
            self._ringing = asyncio.get_running_loop().create_task(self._ring_soon(delay_s))
        self._was_left = advance.ready_left

    async def _ring_soon(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self.ring.wake_owners()


def _answer(wishes: list[_Wish], claims: tuple[Claim, ...]) -> list[Claim]:
    """Give each waiting slot a claim or None; return the claims that are left over."""
    left = list(reversed(claims))
    for wish in wishes:
        if not wish.future.done():
            wish.future.set_result(left.pop() if wish.wants_step and left else None)
    return left[::-1]
