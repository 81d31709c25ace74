"""When a worker that was started for more work ends: once it has held nothing for long enough, and never before."""

from dataclasses import dataclass, field

from soong.worker.lifetime import Retirement
from tests.waiting import others_run


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


async def test_a_worker_that_holds_a_step_does_not_end_however_long_that_takes() -> None:
    hours = await retired_at(started=[59], ended=[100_000])

    assert hours.now_s == 100_000 + 60


async def test_a_worker_that_holds_several_steps_waits_for_the_last_of_them() -> None:
    assert (await retired_at(started=[1, 2], ended=[10, 500])).now_s == 500 + 60


async def test_it_wakes_once_in_its_idle_time_and_not_more_often() -> None:
    hours = await retired_at(started=[1], ended=[30])

    assert hours.slept == [60, 30]
