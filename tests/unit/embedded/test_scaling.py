"""When a service starts another worker: what lasts counts, what is over at once does not."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from soong.orchestrator.embedded.service import Demand, WorkerScaler
from soong.shared.core.errors import UnavailableError
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.step import Backlog, WaitingSteps
from tests.model.builders import make_worker
from tests.waiting import others_run

STEP, OTHER = WaitingSteps("sess_a", "default"), WaitingSteps("sess_b", "default")
IDLE, CALM = Demand(1, 0), Demand(1, 1)
TWO_HELD, FOUR_HELD, WAITING = Demand(1, 2), Demand(2, 4), Demand(1, 1, frozenset({STEP}))


@dataclass
class Timeline:
    """The time of a test, the rows at each moment of it, and the workers of the service: from one to ``most``."""

    at: Callable[[float], Demand]
    most: int = 2
    now_s: float = 0.0
    count: int = 1
    looks: list[float] = field(default_factory=list)
    grown: list[float] = field(default_factory=list)

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s
        await others_run()

    async def look(self) -> Demand:
        self.looks.append(self.now_s)
        return self.at(self.now_s)

    @property
    def may_grow(self) -> bool:
        return self.count < self.most

    def grow(self) -> None:
        self.count += 1
        self.grown.append(self.now_s)


async def hinted(timeline: Timeline, until_s: float = 1.0) -> Timeline:
    """Hint all the time, as a busy owner does, until the timeline has come there."""
    scaler = WorkerScaler(lambda: timeline.may_grow, timeline.grow, timeline.look, timeline.sleep)
    running = asyncio.create_task(scaler.run())
    while timeline.now_s < until_s:
        scaler.hint()
        await others_run()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return timeline


@pytest.mark.parametrize("demand", [IDLE, CALM, Demand(2, 2), Demand(0, 0, frozenset({STEP}))], ids=str)
async def test_none_is_added_for_what_the_workers_can_do_or_where_none_lives(demand: Demand) -> None:
    assert not (await hinted(Timeline(lambda _now_s: demand, most=4))).grown


@pytest.mark.parametrize("demand", [TWO_HELD, WAITING], ids=["several steps on one worker", "a step waits"])
async def test_what_is_over_in_a_moment_adds_none(demand: Demand) -> None:
    timeline = await hinted(Timeline(lambda now_s: demand if now_s < 0.2 else CALM))

    assert (timeline.looks[0] < 0.2, timeline.grown) == (True, [])


async def test_tasks_that_follow_one_another_add_none_and_cost_few_looks() -> None:
    def at(now_s: float) -> Demand:
        return replace(CALM, waiting=frozenset({WaitingSteps(f"sess_{int(now_s * 100)}", "default")}))

    timeline = await hinted(Timeline(at), until_s=10)

    assert not timeline.grown
    assert len(timeline.looks) <= 2 * 10 / 0.4


async def test_no_row_is_read_where_no_worker_may_be_added() -> None:
    assert not (await hinted(Timeline(lambda _now_s: FOUR_HELD, most=1))).looks


async def test_no_row_is_read_without_a_hint() -> None:
    timeline = Timeline(lambda _now_s: TWO_HELD)
    running = asyncio.create_task(
        WorkerScaler(lambda: timeline.may_grow, timeline.grow, timeline.look, timeline.sleep).run()
    )
    await others_run(100)
    running.cancel()

    assert not timeline.looks


@pytest.mark.parametrize("error", [UnavailableError("away"), ValueError("a row that nobody can read")], ids=repr)
async def test_rows_that_cannot_be_read_are_read_again_after_the_next_hint(error: Exception) -> None:
    def at(now_s: float) -> Demand:
        if now_s < 0.3:
            raise error
        return TWO_HELD

    assert len((await hinted(Timeline(at))).grown) == 1


def test_only_live_workers_count_and_only_what_they_are_able_to_run() -> None:
    live = replace(make_worker("wrk_1"), busy=1)
    draining = replace(make_worker("wrk_2", state=ProcessState.DRAINING), busy=5)
    unable = WaitingSteps("sess_c", "default", ("label:gpu",))

    demand = Demand.of([live, draining], Backlog({"default": 3}, frozenset({STEP, OTHER, unable})))

    assert demand == Demand(1, 1, frozenset({STEP, OTHER}))


def test_what_waits_for_a_concurrency_limit_waits_for_no_worker() -> None:
    assert Demand.of([make_worker("wrk_1")], Backlog({}, frozenset({STEP}))) == Demand(1, 0)
