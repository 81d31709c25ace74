import random
import signal
from dataclasses import dataclass, field

import pytest
from celery.exceptions import WorkerShutdown
from celery.worker import state

from soong.shared.core.settings import Settings
from soong.worker.lifetime import JITTER, STOPPING, RecycleLimits, Retirement, resident_mib
from tests.waiting import others_run


def test_each_process_waits_for_at_least_what_it_is_configured_to_and_not_for_much_more() -> None:
    settings = Settings(recycle_after=100, recycle_memory_mb=200)

    worn = [RecycleLimits.of(settings, random.Random(seed)) for seed in range(50)]

    assert all(100 <= recycle_limits.most_runs <= 100 * (1 + JITTER) for recycle_limits in worn)
    assert all(200 <= recycle_limits.most_mib <= 200 * (1 + JITTER) for recycle_limits in worn)
    assert len({recycle_limits.most_runs for recycle_limits in worn}) > 10


@pytest.mark.parametrize(
    ("recycle_limits", "reason"),
    [
        (RecycleLimits(most_runs=3, runs=2), ""),
        (RecycleLimits(most_runs=3, runs=3), "it has run 3 steps"),
        (RecycleLimits(most_mib=100, runs=1, memory=lambda: 99), ""),
        (RecycleLimits(most_mib=100, runs=1, memory=lambda: 100), "it holds 100 MiB"),
        (RecycleLimits(most_mib=100, runs=0, memory=lambda: 100), ""),
    ],
    ids=["few runs", "enough runs", "small", "large", "large before it has worked"],
)
def test_a_process_is_worn_out_by_runs_or_by_memory(recycle_limits: RecycleLimits, reason: str) -> None:
    assert recycle_limits.reason() == reason


async def test_the_last_run_tells_at_once_that_it_is_time() -> None:
    recycle_limits = RecycleLimits(most_runs=2)
    recycle_limits.count_run()
    recycle_limits.count_run()

    assert await recycle_limits.until_due(3600) == "it has run 2 steps"


def test_an_operators_signal_cannot_be_lost_in_one_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "should_stop", None)
    held = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        RecycleLimits(most_runs=1, runs=1).begin()

        assert not signal.sigpending() & STOPPING
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    with pytest.raises(WorkerShutdown):
        state.maybe_shutdown()


def test_the_memory_of_this_process_is_a_plausible_number() -> None:
    assert 10 < resident_mib() < 10_000


# -- when a worker that was started for more work ends: once it has held nothing for long enough, and never before
@dataclass
class Hours:
    """A clock that moves while somebody sleeps; what happens then is said beforehand."""

    now_s: float = 0.0
    slept: list[float] = field(default_factory=list)
    events: dict[int, list[str]] = field(default_factory=dict)
    retirement: Retirement | None = None

    def now_us(self) -> int:
        return int(self.now_s * 1_000_000)

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        end_s = self.now_s + delay_s
        for second in sorted(at for at in self.events if self.now_s <= at < end_s):
            self.now_s = second
            for name in self.events.pop(second):
                getattr(self.retirement, name)()
        self.now_s = end_s
        await others_run()


async def retired_at(**events: list[int]) -> Hours:
    hours = Hours()
    for name, times in events.items():
        for second in times:
            hours.events.setdefault(second, []).append(name)
    hours.retirement = Retirement(hours, 60, hours.sleep)
    await hours.retirement.until_due()
    assert hours.retirement.is_due
    return hours


async def test_a_worker_ends_after_its_last_step_however_long_that_takes_and_wakes_once_in_its_idle_time() -> None:
    hours = await retired_at(started=[59], ended=[100_000])

    assert hours.now_s == 100_000 + 60

    assert (await retired_at(started=[1, 2], ended=[10, 500])).now_s == 500 + 60

    hours = await retired_at(started=[1], ended=[30])

    assert hours.slept == [60, 30]
