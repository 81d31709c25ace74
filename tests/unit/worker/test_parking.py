"""When a run parks: when every call of it that is under way has waited long enough, and the rows say that it may."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from soong.shared.agents.runtime.call_log import StopSignal
from soong.shared.core.errors import LeaseLostError, UnavailableError
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim, Lease, StepEnd
from soong.worker.parking import ParkingCoordinator, RunParking
from tests.model.clock import FakeClock
from tests.model.memory import MemoryStore
from tests.unit.worker.process import WorkerHarness, done
from tests.waiting import others_run, until

HELD = Lease("task_1/a", "run_1", 1)


class Rows(MemoryStore):
    """Rows that say to each wish to park what a test has told them to say, the last for ever."""

    def __init__(self, *outcomes: bool | Exception) -> None:
        super().__init__()
        self.outcomes = list(outcomes)
        self.asked: list[list[str]] = []

    async def park(
        self, worker_id: str, held: Lease, request_ids: Sequence[str], *, max_parked: int, now_us: int
    ) -> bool:
        assert (worker_id, held, max_parked) == ("wrk_1", HELD, 5)
        self.asked.append(sorted(request_ids))
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@dataclass
class ParkingHarness:
    """One run and its parking. ``flushed`` counts how often its log was written out before it parked."""

    rows: Rows
    lot: ParkingCoordinator
    parking: RunParking
    run: "asyncio.Task[object]"
    flushed: list[int] = field(default_factory=list)

    async def is_stopped(self) -> bool:
        """Wait until the run was stopped; False when it still goes on after many turns of the loop."""
        for _ in range(200):
            if self.run.done():
                return True
            await others_run()
        return False

    async def has_asked(self, times: int = 1) -> None:
        """Wait until the rows were asked so often."""
        await until(lambda: len(self.rows.asked) >= times, 5)


@asynccontextmanager
async def scene(
    *outcomes: bool | Exception, after_s: float = 0.0, max_parked: int = 5
) -> AsyncIterator[ParkingHarness]:
    rows = Rows(*(outcomes or (True,)))
    lot = ParkingCoordinator(rows, FakeClock(), after_s, max_parked, again_s=0.001)
    loop = asyncio.get_running_loop()
    run: asyncio.Task[object] = loop.create_task(_for_ever())

    async def flush() -> None:
        made.flushed.append(len(rows.asked))

    parking = RunParking(lot, "wrk_1", HELD, StopSignal(), run, flush)
    made = ParkingHarness(rows, lot, parking, run)
    with lot.entered(parking):
        yield made
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.spec("PER-13")
async def test_a_run_with_a_call_that_still_works_is_not_parked_until_that_has_ended() -> None:
    async with scene() as made:
        with ExitStack() as waits:
            waits.enter_context(made.parking.call())
            waits.enter_context(made.parking.waiting("req_1"))
            with made.parking.call():
                assert not await made.is_stopped()
                assert made.rows.asked == []

            assert await made.is_stopped()


@pytest.mark.spec("PER-13")
async def test_the_time_begins_with_the_call_that_has_waited_least() -> None:
    async with scene(after_s=30.0) as made:
        begun_s = asyncio.get_running_loop().time()
        with made.parking.call(), made.parking.waiting("req_1"), made.parking.call(), made.parking.waiting("req_2"):
            timer = made.parking._timer
            assert timer is not None
            assert timer.when() >= begun_s + 30.0
            made.parking._waiting["req_1"] -= 29.0
            made.parking.poll()
            again = made.parking._timer
            assert again is not None
            assert again.when() == pytest.approx(timer.when(), abs=1.0)


@pytest.mark.spec("PER-13")
@pytest.mark.parametrize(
    "refusal",
    [False, UnavailableError("the database is away"), LeaseLostError("run_1", 1), RuntimeError("a fault")],
    ids=["no room", "unavailable", "lease lost", "fault"],
)
async def test_a_run_that_cannot_park_goes_on_waiting_and_tries_again(refusal: bool | Exception) -> None:
    async with scene(refusal, refusal, True) as made:
        with made.parking.call(), made.parking.waiting("req_1"):
            await made.has_asked(3)

            assert await made.is_stopped()


@pytest.mark.spec("PER-13")
async def test_a_process_that_stops_parks_what_waits_at_once() -> None:
    async with scene(after_s=3600.0) as made:
        with made.parking.call(), made.parking.waiting("req_1"):
            assert not await made.is_stopped()

            made.lot.hurry()

            assert await made.is_stopped()


async def test_a_run_that_is_being_stopped_is_not_parked_besides() -> None:
    async with scene() as made:
        made.parking.interruption.stop = "cancel"
        with made.parking.call(), made.parking.waiting("req_1"):
            assert not await made.is_stopped()
        assert made.rows.asked == []


@pytest.mark.parametrize("stop", ["cancel", "release", "drop"])
async def test_a_stop_that_comes_while_parking_is_the_one_that_counts(stop: str) -> None:
    async with scene() as made:
        interruption = made.parking.interruption

        async def flush() -> None:
            pass

        async def park(*_: object, **__: object) -> bool:
            interruption.stop = stop  # type: ignore[assignment]  # one of them
            made.rows.asked.append([])
            return True

        made.parking.flush = flush
        made.rows.park = park  # type: ignore[method-assign]  # what happens in the middle of it
        with made.parking.call(), made.parking.waiting("req_1"):
            await made.has_asked()
            assert not await made.is_stopped()
        assert interruption.stop == stop


async def test_a_run_that_is_held_no_longer_is_parked_no_more() -> None:
    async with scene() as made:
        with made.parking.call(), made.parking.waiting("req_1"):
            made.parking.close()
            assert not await made.is_stopped()
        assert made.rows.asked == []


PATIENCE_S = 0.01


class Waiters:
    """Steps whose names begin with ``w`` wait for their provider between two pieces of work; others only work."""

    def __init__(self, *, capacity: int, wait_s: float, work_s: float = 0.002) -> None:
        self.bench = WorkerHarness(self.run, capacity=capacity)
        self.bench.slots.lent.after_s = PATIENCE_S
        self.wait_s, self.work_s = wait_s, work_s
        self.at_work = self.most_at_work = self.most_held = 0
        self.done: list[str] = []

    async def run(self, claim: Claim) -> StepEnd:
        name = claim.step_key.rpartition("/")[2]
        self.most_held = max(self.most_held, self.bench.slots.busy)
        await self._work()
        if name.startswith("w"):
            await self.bench.slots.lent.sleep(self.wait_s)
            await self._work()
        self.done.append(name)
        return done(claim)

    async def _work(self) -> None:
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        await asyncio.sleep(self.work_s)
        self.at_work -= 1


async def test_runs_whose_wait_is_over_come_before_new_steps_and_never_beyond_the_slots() -> None:
    waiters = Waiters(capacity=2, wait_s=0.1, work_s=0.01)
    others = [f"s{number:02}" for number in range(60)]
    steps = await waiters.bench.hold("w1", "w2", *others)

    assert {step.status for step in steps} == {StepStatus.COMPLETED}
    assert waiters.most_at_work == 2
    last_waiter = max(waiters.done.index("w1"), waiters.done.index("w2"))
    assert last_waiter < len(waiters.done) - 10


async def test_a_process_lends_no_more_slots_than_it_has() -> None:
    waiters = Waiters(capacity=2, wait_s=0.1)
    await waiters.bench.hold(*(f"w{number}" for number in range(9)))

    assert waiters.most_held == 4
    assert waiters.most_at_work <= 2
    assert waiters.bench.slots.lent.count == 0
    assert waiters.bench.slots.free_slots() == 2


async def test_a_run_that_is_stopped_while_it_waits_leaves_its_count_right() -> None:
    waiters = Waiters(capacity=1, wait_s=60)
    slots = waiters.bench.slots

    async def stop() -> None:
        await until(lambda: slots.lent.count and slots.busy <= 1)
        (held,) = (fence for fence, _ in slots._held)  # its id is the store's own
        slots.stop_run(held, "cancel", "enough")

    stopping = asyncio.ensure_future(stop())
    steps = await waiters.bench.hold("w", "a")
    await stopping

    assert {step.step_id: step.status for step in steps} == {"w": StepStatus.CANCELLED, "a": StepStatus.COMPLETED}
    assert (slots.lent.count, slots.lent.returning, slots.free_slots()) == (0, 0, 1)


async def test_a_step_that_comes_while_all_jobs_wait_is_claimed_without_a_message() -> None:
    waiters = Waiters(capacity=1, wait_s=60)
    bench = waiters.bench
    holding = asyncio.ensure_future(bench.hold("w"))
    await until(lambda: bench.slots.lent.count)
    task = await bench.add("late")
    await until(lambda: "late" in waiters.done, 10)
    bench.slots.stop_all("cancel", "enough")
    await holding

    assert [step.status for step in await bench.store.tasks.steps(task.id)] == [StepStatus.COMPLETED]
