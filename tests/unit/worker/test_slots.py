"""A slot never keeps a lease that nobody works on."""

import asyncio
from contextlib import suppress

import pytest
from msgspec.structs import replace

from soong.shared.agents.runtime.call_log import StopReason, StopSignal
from soong.shared.core import timing
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Advance, Claim, StepEnd, StepError
from soong.worker.claim_loop import BATCH
from soong.worker.flower import NoFlower
from tests.model.memory.store import MemoryStore
from tests.unit.worker.process import Running, WorkerHarness, completes, done
from tests.waiting import others_run, until


class SlowStore(MemoryStore):
    """Its first claim takes as long as a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_claiming, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def advance(self, *given: object, **named: object) -> Advance:
        self.is_claiming.set()
        await self.may_go_on.wait()
        return await super().advance(*given, **named)  # type: ignore[arg-type,no-any-return,unused-ignore]  # passed on


@pytest.mark.spec("DIS-03.c")
@pytest.mark.parametrize("ready", [2, 6], ids=["fewer than slots", "more than slots"])
async def test_dispatches_that_come_while_one_claims_open_no_slot_beyond_capacity(ready: int) -> None:
    running: set[str] = set()
    most = 0

    async def work(claim: Claim) -> StepEnd:
        nonlocal most
        running.add(claim.step_key)
        most = max(most, len(running))
        await others_run(20)
        running.discard(claim.step_key)
        return done(claim)

    store = SlowStore()
    bench = WorkerHarness(work, capacity=3, store=store)
    holding = asyncio.ensure_future(bench.hold(*"abcdef"[:ready]))
    await store.is_claiming.wait()
    additional = [asyncio.ensure_future(bench.slots.hold()) for _ in range(3)]
    await others_run(20)
    store.may_go_on.set()

    steps = await holding
    await asyncio.gather(*additional)
    assert most == min(ready, 3)
    async with asyncio.timeout(10):
        await bench.until_free()
    assert {step.status for step in steps} == {StepStatus.COMPLETED}


async def test_a_slot_beyond_what_a_batch_can_fill_is_promised_to_none() -> None:
    store = SlowStore()
    bench = WorkerHarness(completes, capacity=BATCH + 1, store=store)
    holding = asyncio.ensure_future(bench.hold("a"))
    await store.is_claiming.wait()
    assert bench.slots.free_slots() == BATCH
    further = asyncio.ensure_future(bench.slots.hold())
    await others_run()

    assert bench.slots.free_slots() == BATCH - 1
    store.may_go_on.set()
    await asyncio.gather(holding, further)


async def test_work_that_cancels_itself_fails_its_step() -> None:
    async def work(claim: Claim) -> StepEnd:
        raise asyncio.CancelledError

    (step,) = await WorkerHarness(work).hold("a")

    assert step.status is StepStatus.FAILED
    assert step.error is not None
    assert "its own work" in step.error.message


@pytest.mark.parametrize("capacity", [1, 3])
async def test_a_dispatch_to_a_full_process_returns_at_once_and_owners_call_again(capacity: int) -> None:
    bench = WorkerHarness(completes, capacity=capacity)
    owner = await bench.board.subscribe_owner()
    for _ in range(capacity):
        bench.slots._open += 1

    assert await bench.slots.hold() == 0
    assert await owner.wait(10) == ("",)


@pytest.mark.spec("DIS-03.c")
@pytest.mark.parametrize(("many", "workers"), [(2 * BATCH + 1, 1), (9, 4)], ids=["a batch", "its share"])
async def test_one_dispatch_claims_more_than(many: int, workers: int) -> None:
    may_end = asyncio.Event()
    running: set[str] = set()

    async def work(claim: Claim) -> StepEnd:
        running.add(claim.step_key)
        await may_end.wait()
        return done(claim)

    bench = WorkerHarness(work, capacity=many)
    own = bench.claim_loop.capacity
    bench.claim_loop.capacity = lambda: replace(own(), live_workers=workers)  # the others are full
    holding = asyncio.ensure_future(bench.hold(*map(str, range(many))))
    await until(lambda: len(running) >= many, 10)
    may_end.set()
    await holding


@pytest.mark.spec("EXE-07.c", "DIS-05")
@pytest.mark.parametrize(
    ("how", "aborted_calls", "reason"),
    [("cancel", 0, EndReason.CANCELLED), ("cancel", 2, EndReason.ABORTED_TOOLS), ("abort", 0, EndReason.ABORTED_TOOLS)],
    ids=["no tool", "tools", "abort"],
)
async def test_a_stopped_run_says_whether_tools_were_cut_off_with_it(
    how: StopReason, aborted_calls: int, reason: EndReason
) -> None:
    async def work(claim: Claim) -> StepEnd:
        raise AssertionError(claim)

    bench, ends = WorkerHarness(work), EndsSeen()

    class CutOff(Running):
        async def run(self, claim: Claim, interruption: StopSignal) -> StepEnd:
            bench.slots.stop_run(claim.identity.run_id, how, "a person pressed stop")
            try:
                await asyncio.Event().wait()
            finally:
                interruption.aborted_calls = aborted_calls
            return done(claim)

    bench.slots.runner, bench.slots.watcher = CutOff(work), ends
    (step,) = await bench.hold("a")

    (end,) = ends.seen
    status = StepStatus.FAILED if how == "abort" else StepStatus.CANCELLED
    assert (end.end_reason, end.status) == (reason, status)
    assert end.error == StepError(str(reason), "a person pressed stop")
    assert step.status is status
    assert step.attempt == 1


async def test_a_run_whose_work_loses_its_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "GRACE_S", 0.01)

    async def work(claim: Claim) -> StepEnd:
        bench.slots.stop_run(claim.identity.run_id, "cancel", "a person pressed stop")
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()
        return done(claim)

    bench = WorkerHarness(work)
    (step,) = await bench.hold("a")

    assert step.status is StepStatus.CANCELLED


class EndsSeen(NoFlower):
    """A watcher that keeps how runs ended."""

    def __init__(self) -> None:
        self.seen: list[StepEnd] = []

    def ended(self, claim: Claim, end: StepEnd | None) -> None:
        del claim
        assert end is not None
        self.seen.append(end)
