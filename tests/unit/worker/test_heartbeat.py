"""A worker stops by its own clock before anybody else may start its steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from soong.shared.core.errors import UnavailableError
from soong.shared.core.settings import Settings
from soong.worker.heartbeat import TRUST, Heartbeat
from tests.model.clock import FakeClock

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
