"""A worker without its process: claim loop, slots and what runs hold, over the reference store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from soong.shared.agents.runtime.call_log import StopSignal
from soong.shared.core.jsontext import Json
from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim, NewStep, NewTask, Step, StepEnd
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.sandbox.redact import Redactor
from soong.worker.claim_loop import ClaimLoop
from soong.worker.flower import NoFlower
from soong.worker.heartbeat import Incarnation
from soong.worker.held_runs import AdditionalSteps, UnendedRuns
from soong.worker.slots import Slots
from tests.model.builders import make_task, open_session
from tests.model.memory.store import MemoryStore
from tests.waiting import others_run

Work = Callable[[Claim], Awaitable[StepEnd]]


def done(claim: Claim, output: Json = None, **overrides: Any) -> StepEnd:
    end = StepEnd(
        claim.step_key, claim.identity.run_id, claim.fence, StepStatus.COMPLETED, EndReason.COMPLETED, output=output
    )
    return replace(end, **overrides)


async def completes(claim: Claim) -> StepEnd:
    await others_run()
    return done(claim)


class Running:
    """Runs what a test says."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def run(self, claim: Claim, interruption: StopSignal) -> StepEnd:
        return await self._work(claim)


class WorkerHarness:
    """One worker and what it serves."""

    def __init__(
        self,
        work: Work = completes,
        *,
        capacity: int = 4,
        store: MemoryStore | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        clock = SystemClock()
        self.store, self.board = store or MemoryStore(), MemoryBus()
        self.incarnation = Incarnation(self.store, clock, "w@h", capacity, ("default",), ())
        self.additional = AdditionalSteps(redactor or Redactor())
        self.slots = Slots(
            capacity, self.store, clock, Running(work), NoFlower(), UnendedRuns(self.store, clock), self.additional
        )
        self.claim_loop = ClaimLoop(
            self.store, self.board, clock, self.incarnation.capacity, self.slots.free_slots, self.slots.start_slot
        )
        self.slots.claim_loop = self.additional.claim_loop = self.claim_loop

    async def add(self, *steps: str | NewStep) -> NewTask:
        """Add a task of such steps in an owned session of its own."""
        self.ownership = await open_session(self.store)
        self.task = make_task(self.ownership.session_id, *steps)
        await self.store.tasks.create_task(self.task)
        return self.task

    @asynccontextmanager
    async def serving(self, *steps: str | NewStep) -> AsyncIterator[None]:
        """Register the worker and run its claim loop beside a task of such steps."""
        await self.add(*steps)
        await self.incarnation.register()
        pumping = asyncio.get_running_loop().create_task(self.claim_loop.run())
        try:
            async with asyncio.timeout(10):
                yield
        finally:
            pumping.cancel()

    async def hold(self, *steps: str | NewStep) -> list[Step]:
        """Hold a slot over these steps until nothing is claimable; return the steps."""
        async with self.serving(*steps):
            task = self.task
            await self.slots.hold()
            await self.until_free()
        return list(await self.store.tasks.steps(task.id))

    async def until_free(self) -> None:
        """Wait until every slot is given back, which is after the end of its run is written and has no event."""
        while self.slots.busy or self.slots.free_slots() < self.slots.capacity:
            await others_run()

    async def step(self, step_id: str) -> Step:
        return next(step for step in await self.store.tasks.steps(self.task.id) if step.step_id == step_id)
