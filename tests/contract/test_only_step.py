"""A worker without work that finds one step at a time, as those of short tasks come."""

import asyncio
from typing import Any

import pytest

from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.kinds import ClaimMode
from soong.shared.engine.tasks.step import ConcurrencyLimit, NewStep
from tests.contract.scene import ContractHarness, completed, step_ids
from tests.model.builders import make_step

pytestmark = pytest.mark.spec("DIS-03")


async def found_one(scene: ContractHarness) -> None:
    """Claim one step and end it: the next claim may expect as much."""
    (claim,) = await scene.claim()
    await scene.advance([completed(claim)])


@pytest.fixture(autouse=True)
async def expecting_one(scene: ContractHarness) -> None:
    await scene.task("before")
    await found_one(scene)


@pytest.mark.spec("EVT-02")
async def test_only_step_is_claimed(scene: ContractHarness) -> None:
    await scene.task("a")

    advance = await scene.advance(claim=4)

    (claim,) = advance.claims
    assert (step_ids(advance.claims), claim.fence, claim.is_resumed) == (["a"], 1, False)
    assert not advance.ready_left
    *_, ready, claimed, started = await scene.store.runs.events(claim.identity.run_id)
    assert [event.type for event in (ready, claimed, started)] == ["step_ready", "step_claimed", "run_started"]
    assert claimed.data["worker"] == scene.worker
    again = await scene.advance([completed(claim, 1)], claim=1)
    assert (again.claims, again.stale) == ((), frozenset())


async def test_only_step_has_the_inputs_of_its_task_and_the_results_of_others(scene: ContractHarness) -> None:
    await scene.task("a", make_step("b", depends_on=("a",)))
    first = await scene.claim_one()
    await scene.advance([completed(first, {"found": 3})])

    second = await scene.claim_one()

    assert second.dependencies["a"].output == {"found": 3}
    assert (second.task_inputs, second.task_title) == (first.task_inputs, first.task_title)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(make_step("a", pool="gpu"), id="of-another-pool"),
        pytest.param(make_step("a", needs=("exec",)), id="with-a-need"),
        pytest.param(make_step("a", claim_mode=ClaimMode.PULL), id="that-is-pulled"),
    ],
)
async def test_only_step_is_left_to_who_may_claim_it(scene: ContractHarness, step: NewStep) -> None:
    await scene.task(step)

    assert await scene.claim() == ()


async def test_needs_that_the_worker_has_keep_no_step_from_it(scene: ContractHarness) -> None:
    able: dict[str, Any] = {"claim": 1, "capabilities": ("exec", "net")}
    await scene.task(make_step("a", needs=("exec",)))

    assert step_ids((await scene.advance(**able)).claims) == ["a"]


async def test_two_steps_are_claimed_by_priority(scene: ContractHarness) -> None:
    await scene.task("a", make_step("urgent", priority=5))

    assert step_ids(await scene.claim(1)) == ["urgent"]


async def test_steps_of_two_lanes_are_claimed_together(scene: ContractHarness) -> None:
    await scene.task("a", make_step("b", definition="explore"))

    assert sorted(step_ids(await scene.claim())) == ["a", "b"]


@pytest.mark.parametrize("scope", ["pool:default", "session:"])
async def test_only_step_waits_for_its_limits(scene: ContractHarness, scope: str) -> None:
    limited = scope if scope != "session:" else f"session:{scene.own.session_id}"
    await scene.task("a")
    running = await scene.claim_one()
    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit(limited, 1)])
    await scene.task("b")

    assert await scene.claim() == ()
    assert step_ids((await scene.advance([completed(running)], claim=1)).claims) == ["b"]


async def test_only_step_of_a_paused_task_is_not_claimed(scene: ContractHarness) -> None:
    task_id = await scene.task("a")
    await scene.store.tasks.pause_task(scene.own, task_id, reason="later", now_us=scene.now_us)

    assert await scene.claim() == ()


async def test_worker_that_is_not_live_claims_nothing(scene: ContractHarness) -> None:
    await scene.store.sessions.set_worker_state(scene.worker, ProcessState.DRAINING)
    await scene.task("a")

    assert await scene.claim() == ()


async def test_only_step_is_claimed_once(scene: ContractHarness) -> None:
    other = await scene.another_worker()
    await scene.task("a")

    claims = await asyncio.gather(*(scene.claim(worker=worker) for worker in (scene.worker, other)))

    assert sorted(map(step_ids, claims)) == [[], ["a"]]


@pytest.mark.spec("DIS-10.a")
async def test_only_step_takes_the_turn_of_its_session(scene: ContractHarness) -> None:
    other = await scene.another_session()
    await scene.task("theirs", own=other)
    await found_one(scene)
    await scene.task("mine")
    await found_one(scene)
    await scene.task("my-next")
    await scene.task("their-next", own=other)

    assert step_ids(await scene.claim(1)) == ["their-next"]
