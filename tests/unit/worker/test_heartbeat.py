"""A worker stops by its own clock before anybody else may start its steps."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from soong.shared.core.errors import UnavailableError
from soong.shared.core.settings import Settings
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Advance, Claim, Lease, StepEnd
from soong.worker.heartbeat import TRUST, Heartbeat
from tests.model.clock import FakeClock
from tests.model.memory.store import MemoryStore
from tests.unit.worker.process import WorkerHarness, done
from tests.waiting import others_run

LEASE_S = 20.0
BEAT_S = 5.0


@dataclass
class ScriptedHeartbeatWriter:
    """A heart that answers as told: True, False, or not at all (None)."""

    answers: list[bool | None]
    beats: list[str] = field(default_factory=list)

    def beat(self, worker_id: str, left_over: str = "") -> bool:
        self.beats.append(worker_id)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise UnavailableError("no answer")
        return answer

    def close(self) -> None: ...


@dataclass
class HeartbeatHarness:
    """A heartbeat driven by hand: one :meth:`step` is one interval of the thread."""

    heart: ScriptedHeartbeatWriter
    clock: FakeClock = field(default_factory=FakeClock)
    lost: list[str] = field(default_factory=list)
    loop_ticks: bool = True

    def __post_init__(self) -> None:
        self.heartbeat = Heartbeat(
            self.heart,
            self.clock,
            Settings(beat_s=BEAT_S, lease_s=LEASE_S, loop_stall_s=8),
            tick=self._tick,
            on_lost=self.lost.append,
            left_over=str,
        )
        self.heartbeat.renew("wrk_1")

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(timedelta(seconds=BEAT_S))
            self.heartbeat.beat_once()

    def _tick(self, ticked: Callable[[], None]) -> None:
        if self.loop_ticks:
            ticked()


@pytest.mark.spec("DAG-03")
def test_an_unanswered_beat_is_borne_for_the_trust_window_only() -> None:
    bench = HeartbeatHarness(ScriptedHeartbeatWriter([None]))

    bench.step(times=int(LEASE_S * TRUST / BEAT_S))
    within = list(bench.lost)
    bench.step()

    assert within == []
    assert bench.lost == ["wrk_1"]


def test_a_beat_that_is_answered_again_renews_the_trust() -> None:
    bench = HeartbeatHarness(ScriptedHeartbeatWriter([None, None, True, None, None, None, True]))

    bench.step(times=7)

    assert bench.lost == []


def test_a_stalled_loop_stops_the_beat() -> None:
    bench = HeartbeatHarness(ScriptedHeartbeatWriter([True]))
    bench.loop_ticks = False

    bench.step(times=3)

    assert len(bench.heart.beats) == 1


def test_a_lost_incarnation_is_not_beaten_again() -> None:
    bench = HeartbeatHarness(ScriptedHeartbeatWriter([False]))
    bench.step()

    bench.step(times=3)

    assert bench.heart.beats == ["wrk_1"]
    assert bench.lost == ["wrk_1"]


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


@pytest.mark.spec("DAG-03")
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


@pytest.mark.spec("DAG-03")
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


@pytest.mark.spec("DAG-03")
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
