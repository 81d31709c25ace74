"""When work that can wait is begun, on clocks that the test moves."""

from dataclasses import dataclass, field

from soong.orchestrator.event_log.quiet_time import FREE_CORES, QuietTime, idle_s
from soong.shared.core import timing

LONGEST_S = 30.0


@dataclass
class Machine:
    """One whose cores are idle for these shares of all their time, window after window, and then altogether."""

    idle_cores: list[float] = field(default_factory=list)
    now_s: float = 0.0
    idle_s: float = 0.0

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s
        self.idle_s += delay_s * (self.idle_cores.pop(0) if self.idle_cores else 2.0)

    async def waited_s(self) -> float:
        began_s = self.now_s
        await QuietTime(LONGEST_S, lambda: self.idle_s, lambda: self.now_s, self.sleep).wait()
        return self.now_s - began_s


async def test_work_begins_after_one_window_on_a_machine_that_does_nothing() -> None:
    assert await Machine().waited_s() == timing.SETTLE_S


async def test_work_waits_for_the_first_window_with_room_for_it() -> None:
    busy = [share * FREE_CORES for share in (0.0, 0.3, 0.9)]
    assert await Machine([*busy, 1.1 * FREE_CORES, 0.0]).waited_s() == 4 * timing.SETTLE_S


async def test_work_on_a_machine_that_stays_busy_waits_no_longer_than_the_limit() -> None:
    assert await Machine([0.0] * 1000).waited_s() == LONGEST_S


def test_this_machine_has_been_idle_for_some_time() -> None:
    assert idle_s() > 0
