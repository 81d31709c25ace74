"""When a worker process begins anew, and that it does not when it is to end."""

import os
import random
import signal

import pytest

from soong.shared.core.settings import Settings
from soong.worker.recycling import JITTER, RecycleLimits, resident_mib


def test_each_process_waits_for_at_least_what_it_is_told_and_not_for_much_more() -> None:
    settings = Settings(recycle_after=100, recycle_memory_mb=200)

    worn = [RecycleLimits.of(settings, random.Random(seed)) for seed in range(50)]

    assert all(100 <= wear.most_runs <= 100 * (1 + JITTER) for wear in worn)
    assert all(200 <= wear.most_mib <= 200 * (1 + JITTER) for wear in worn)
    assert len({wear.most_runs for wear in worn}) > 10


def test_nothing_wears_a_process_out_unless_it_is_told() -> None:
    wear = RecycleLimits.of(Settings(), random.Random(0))
    wear.runs = 1_000_000

    assert wear.reason() == ""


@pytest.mark.parametrize(
    ("wear", "reason"),
    [
        (RecycleLimits(most_runs=3, runs=2), ""),
        (RecycleLimits(most_runs=3, runs=3), "it has run 3 steps"),
        (RecycleLimits(most_mib=100, runs=1, memory=lambda: 99), ""),
        (RecycleLimits(most_mib=100, runs=1, memory=lambda: 100), "it holds 100 MiB"),
        (RecycleLimits(most_mib=100, runs=0, memory=lambda: 100), ""),
    ],
    ids=["few runs", "enough runs", "small", "large", "large before it has worked"],
)
def test_a_process_is_worn_out_by_runs_or_by_memory(wear: RecycleLimits, reason: str) -> None:
    assert wear.reason() == reason


async def test_the_last_run_tells_at_once_that_it_is_time() -> None:
    wear = RecycleLimits(most_runs=2)
    wear.count_run()
    wear.count_run()

    assert await wear.until_due(3600) == "it has run 2 steps"


def test_our_own_signal_is_told_from_an_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    wear = RecycleLimits(most_runs=1, runs=1)

    wear.begin()

    assert sent == [(os.getpid(), signal.SIGTERM)]
    assert (wear.on_stop_signal(), wear.is_told_to_stop) == (False, False)
    assert (wear.on_stop_signal(), wear.is_told_to_stop) == (True, True)


def test_the_memory_of_this_process_is_a_plausible_number() -> None:
    assert 10 < resident_mib() < 10_000
