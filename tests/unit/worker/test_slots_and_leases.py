"""A slot between its lease's beginning and end, when the database and the incarnation come and go."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from soong.shared.core.clock import SystemClock
from soong.shared.core.errors import UnavailableError
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Claim, Lease, StepEnd
from soong.worker.claim_loop import ClaimLoop
from soong.worker.flower import NoFlower
from soong.worker.heartbeat import Incarnation
from soong.worker.slots import Slots
from tests.model.builders import make_session, make_task
from tests.model.memory.notifier import MemoryBus
from tests.model.memory.store import MemoryStore
from tests.unit.worker.test_slots import Running, done
from tests.waiting import others_run


class LateStore(MemoryStore):
    """Applies what is handed back and reports errors until it is told to answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()

    async def release(self, worker_id: str, held: Sequence[Lease], **rest: Any) -> frozenset[str]:
        stale = await super().release(worker_id, held, **rest)
        if not self.answers.is_set():
            raise UnavailableError("the answer was lost")
        return stale


class Process:
    """Claim loop and slots over a store, with one step to run."""

    def __init__(self, store: MemoryStore, runner: Running) -> None:
        clock = SystemClock()
        self.store = store
        self.incarnation = Incarnation(store, clock, "w@h", 2, ("default",), ())
        self.slots = Slots(2, store, clock, runner, NoFlower())
        self.claim_loop = ClaimLoop(
            store, MemoryBus(), clock, self.incarnation.capacity, self.slots.free_slots, self.slots.start_slot
        )
        self.slots.claim_loop = self.claim_loop

    async def start(self, *step_ids: str) -> str:
        """Make a task of these steps and begin to serve; return the key of the first."""
        session = make_session()
        await self.store.sessions.open_session(session)
        task = make_task(session.id, *step_ids)
        await self.store.tasks.create_task(task)
        await self.incarnation.register()
        self.pumping = asyncio.get_running_loop().create_task(self.claim_loop.run())
        return f"{task.id}/{step_ids[0]}"


@pytest.mark.spec("DAG-03", "DAG-06")
async def test_a_run_that_comes_back_while_its_old_slot_still_gives_it_back_is_held_by_the_new_one() -> None:
    began: list[Claim] = []
    may_end, store = asyncio.Event(), LateStore()

    async def work(claim: Claim) -> StepEnd:
        began.append(claim)
        if len(began) == 1:
            raise UnavailableError("its log could not be written")
        store.answers.set()
        await may_end.wait()
        return done(claim)

    process = Process(store, Running(work))
    key = await process.start("a")
    async with asyncio.timeout(10):
        first = asyncio.create_task(process.slots.hold())
        while not began or (await store.tasks.step(key)).status is not StepStatus.READY:  # rows have no event
            await others_run()
        second = asyncio.create_task(process.slots.hold())
        await first
        held_by_the_new_one = process.slots.busy
        may_end.set()
        await second

    assert held_by_the_new_one == 1
    assert [claim.fence for claim in began] == [1, 2]
    assert (await store.tasks.step(key)).status is StepStatus.COMPLETED
    process.pumping.cancel()


async def test_nothing_begins_when_the_incarnation_is_lost_between_claim_and_slot() -> None:
    began: list[Claim] = []

    async def work(claim: Claim) -> StepEnd:
        began.append(claim)
        return done(claim)

    process = Process(MemoryStore(), Running(work))
    await process.start("a", "b")

    def start_and_lose(claim: Claim) -> None:
        process.slots.start_slot(claim)
        process.incarnation.worker_id = ""
        process.claim_loop.lose()

    process.claim_loop.start_slot = start_and_lose
    async with asyncio.timeout(10):
        own_claim = await process.claim_loop.next_step(None)  # a spare slot is opened for the other step
        while process.slots.free_slots() < 2:  # a slot that closes tells nobody
            await others_run()

    assert own_claim is not None
    assert not began
    process.pumping.cancel()
