"""A run that its provider makes wait for long gives its slot to others, and has one again before any new step."""

import asyncio

from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim, StepEnd
from tests.unit.worker.process import WorkerHarness, done
from tests.waiting import until

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
