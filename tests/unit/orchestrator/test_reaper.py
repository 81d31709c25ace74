"""Leases end by the reaper's own monotonic clock and by nothing else."""

from datetime import timedelta

import pytest

from soong.orchestrator.owner.workers import BeatWatch
from tests.model.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_beat_restarts_the_lease(clock: FakeClock) -> None:
    watch = BeatWatch(clock, lease_s=20)
    watch.overdue([("wrk_1", 7)])
    clock.advance(timedelta(seconds=15))
    watch.overdue([("wrk_1", 8)])

    clock.advance(timedelta(seconds=15))

    assert watch.overdue([("wrk_1", 8)]) == []


def test_a_jump_of_the_wall_clock_expires_nobody(clock: FakeClock) -> None:
    watch = BeatWatch(clock, lease_s=20)
    watch.overdue([("wrk_1", 7)])

    clock.jump_wall(timedelta(hours=1))

    assert watch.overdue([("wrk_1", 7)]) == []


def test_time_in_which_no_look_succeeded_is_nobodys_silence(clock: FakeClock) -> None:
    watch = BeatWatch(clock, lease_s=20)
    watch.overdue([("wrk_1", 7)])
    clock.advance(timedelta(seconds=5))
    watch.overdue([("wrk_1", 7)])

    clock.advance(timedelta(seconds=60))
    watch.look_failed()
    after_the_outage = watch.overdue([("wrk_1", 7)])
    clock.advance(timedelta(seconds=14.9))
    early = watch.overdue([("wrk_1", 7)])
    clock.advance(timedelta(seconds=0.1))

    assert after_the_outage == []
    assert early == []
    assert watch.overdue([("wrk_1", 7)]) == [("wrk_1", 7)]
