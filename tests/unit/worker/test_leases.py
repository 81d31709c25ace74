"""What a worker holds while the database and its own incarnation come and go: every lease has somebody at work."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from soong.shared.core.errors import UnavailableError
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Advance, Claim, Lease, StepEnd
from tests.model.memory.store import MemoryStore
from tests.unit.worker.process import WorkerHarness, done
from tests.waiting import others_run

pytestmark = pytest.mark.spec("DAG-03")


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


@pytest.mark.spec("DAG-06")
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

    worker = WorkerHarness(work, capacity=2, store=store)
    async with worker.serving("a"):
        first = asyncio.create_task(worker.slots.hold())
        while not began or (await worker.step("a")).status is not StepStatus.READY:  # rows have no event
            await others_run()
        second = asyncio.create_task(worker.slots.hold())
        await first
        held_by_the_new_one = worker.slots.busy
        may_end.set()
        await second

    assert held_by_the_new_one == 1
    assert [claim.fence for claim in began] == [1, 2]
    step = await worker.step("a")
    assert (step.status, step.lost_leases) == (StepStatus.COMPLETED, 0)


async def test_nothing_begins_when_the_incarnation_is_lost_between_claim_and_slot() -> None:
    began: list[Claim] = []

    async def work(claim: Claim) -> StepEnd:
        began.append(claim)
        return done(claim)

    def start_and_lose(claim: Claim) -> None:
        worker.slots.start_slot(claim)
        worker.incarnation.worker_id = ""
        worker.claim_loop.lose()

    worker = WorkerHarness(work, capacity=2)
    worker.claim_loop.start_slot = start_and_lose
    async with worker.serving("a", "b"):
        own_claim = await worker.claim_loop.next_step(None)  # a spare slot is opened for the other step
        await worker.until_free()

    assert own_claim is not None
    assert not began


class DeafStore(MemoryStore):
    """Applies the first claim and reports an error."""

    is_deaf = True

    async def advance(self, worker_id: str, ends: Sequence[StepEnd], **wish: Any) -> Advance:
        advance = await super().advance(worker_id, ends, **wish)
        if advance.claims and self.is_deaf:
            self.is_deaf = False
            raise UnavailableError("the answer was lost")
        return advance


@pytest.mark.parametrize("is_deaf", [True, False], ids=["not heard", "heard"])
async def test_a_claim_that_was_not_heard_is_given_back_and_no_other(is_deaf: bool) -> None:
    store = DeafStore()
    store.is_deaf = is_deaf
    worker = WorkerHarness(capacity=1, store=store)
    worker.claim_loop.free_slots = lambda: 0
    async with worker.serving("a", "b"):
        heard = await worker.claim_loop.next_step(None)
        before = await store.claims.leases(worker.incarnation.worker_id)
        await worker.claim_loop.return_unheard()

    assert heard is not None
    assert len(before) == 1 + is_deaf
    assert [lease.step_key for lease in await store.claims.leases(worker.incarnation.worker_id)] == [heard.step_key]
    (other,) = (step for step in await store.tasks.steps(worker.task.id) if step.key != heard.step_key)
    assert other.status is StepStatus.READY


class FailingStore(MemoryStore):
    """Fails each claim, for as long as it is told to, in a way that nobody foresaw."""

    fails = True
    tries = 0

    async def advance(self, worker_id: str, ends: Sequence[StepEnd], **wish: Any) -> Advance:
        self.tries += 1
        if self.fails:
            raise OSError(28, "No space left on device")
        return await super().advance(worker_id, ends, **wish)


async def test_a_worker_that_can_claim_nothing_is_not_called_all_the_time() -> None:
    store = FailingStore()
    worker = WorkerHarness(capacity=1, store=store)
    started: asyncio.Queue[object] = asyncio.Queue()
    worker.claim_loop.start_slot = started.put_nowait
    ear = await worker.board.subscribe_owner()

    async def own() -> None:
        """Call the worker whenever it is notified of work, as an owner does."""
        while True:
            if await ear.wait(1.0):
                worker.claim_loop.fill()

    async with worker.serving("a"):
        owner = asyncio.create_task(own())
        worker.claim_loop.fill()
        await asyncio.sleep(0.5)
        tries, store.fails = store.tries, False
        await started.get()
        owner.cancel()

    assert tries <= 5  # after 0, 0.05, 0.15, 0.35 s
