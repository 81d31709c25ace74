from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.spec import ClaimMode, StepKind, StepStatus
from soong.shared.engine.tasks.step import Claim, ConcurrencyLimit, NewStep
from soong.shared.engine.wire.notifier import reads
from tests.contract.scene import ContractHarness, completed, failed, step_ids
from tests.model.builders import make_map, make_step

pytestmark = pytest.mark.spec("DAG-04", "DIS-03")

CHAIN = (make_step("a"), make_step("b", depends_on=("a",)), make_step("c", depends_on=("b",)))


@pytest.mark.spec("EVT-02")
async def test_successor_is_claimed_with_the_end_that_opens_it(scene: ContractHarness) -> None:
    first = await scene.start(*CHAIN)

    advance = await scene.advance([completed(first, {"found": 3})], claim=4)

    (claim,) = advance.claims
    assert (step_ids(advance.claims), claim.fence, claim.is_resumed) == (["b"], 1, False)
    assert claim.dependencies["a"].output == {"found": 3}
    assert not advance.ready_left
    *_, ready, claimed, started = await scene.store.runs.events(claim.identity.run_id)
    assert [event.type for event in (ready, claimed, started)] == ["step_ready", "step_claimed", "run_started"]
    assert claimed.data["worker"] == scene.worker
    step = await scene.store.tasks.step(claim.step_key)
    assert (step.status, step.open_deps, step.worker_id) == (StepStatus.RUNNING, 0, scene.worker)


async def test_chain_is_walked_by_its_ends(scene: ContractHarness) -> None:
    claims: Sequence[Claim] = (await scene.start(*CHAIN),)
    walked = step_ids(claims)
    while claims:
        claims = (await scene.advance([completed(claims[0], 1)], claim=1)).claims
        walked += step_ids(claims)

    assert walked == ["a", "b", "c"]


async def test_successor_with_the_needs_of_its_step_is_claimed(scene: ContractHarness) -> None:
    chain = [replace(step, needs=("exec",), pool="gpu") for step in CHAIN]
    await scene.task(*chain)
    able: dict[str, Any] = {"claim": 1, "pools": ("gpu",), "capabilities": ("exec", *reads())}
    (first,) = (await scene.advance(**able)).claims

    advance = await scene.advance([completed(first)], **able)

    assert step_ids(advance.claims) == ["b"]


async def test_released_successor_is_claimed_under_the_next_fence(scene: ContractHarness) -> None:
    first = await scene.start(*CHAIN)
    (second,) = (await scene.advance([completed(first)], claim=1)).claims
    await scene.release(second)

    again = await scene.claim_one()

    assert (step_ids([again]), again.fence) == (["b"], second.fence + 1)


async def test_neither_a_stale_end_nor_a_failure_has_a_successor(scene: ContractHarness) -> None:
    first = await scene.start(*CHAIN)

    stale = await scene.advance([completed(replace(first, fence=first.fence + 1))], claim=1)

    assert not stale.claims
    assert stale.stale == {first.identity.run_id}
    assert (await scene.advance([failed(first)], claim=1)).claims == ()


@pytest.mark.spec("DAG-05")
async def test_owner_of_a_failure_is_named_with_the_successor_of_another_end(scene: ContractHarness) -> None:
    first = await scene.start(*CHAIN)
    other = await scene.another_session()
    await scene.task("x", own=other)
    second = await scene.claim_one()

    advance = await scene.advance([completed(first), failed(second)], claim=1)

    assert step_ids(advance.claims) == ["b"]
    assert advance.owner_sessions == {other.session_id}


@pytest.mark.parametrize(
    ("second", "claim"),
    [
        pytest.param(make_step("b", depends_on=("a",), pool="gpu"), 1, id="of-another-pool"),
        pytest.param(make_step("b", depends_on=("a",), needs=("exec",)), 1, id="with-a-need"),
        pytest.param(make_step("b", depends_on=("a",), claim_mode=ClaimMode.PULL), 1, id="that-is-pulled"),
        pytest.param(make_map("b", depends_on=("a",)), 1, id="that-is-a-map"),
        pytest.param(make_step("b", depends_on=("a",)), 0, id="without-a-free-slot"),
    ],
)
async def test_successor_is_left_to_who_may_claim_it(scene: ContractHarness, second: NewStep, claim: int) -> None:
    first = await scene.start("a", second)

    advance = await scene.advance([completed(first)], claim=claim)

    assert advance.claims == ()
    expected = StepStatus.EXPANDING if second.kind is StepKind.MAP else StepStatus.READY
    assert (await scene.statuses(first.identity.task_id))["b"] is expected


async def test_successor_waits_for_its_other_parents(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b", make_step("join", depends_on=("a", "b")))
    first, second = await scene.claim()

    assert (await scene.advance([completed(first)], claim=1)).claims == ()
    assert (await scene.steps(task_id))["join"].open_deps == 1
    assert step_ids((await scene.advance([completed(second)], claim=1)).claims) == ["join"]


async def test_two_successors_are_claimed_together(scene: ContractHarness) -> None:
    first = await scene.start("a", make_step("b", depends_on=("a",)), make_step("c", depends_on=("a",)))

    assert step_ids((await scene.advance([completed(first)], claim=2)).claims) == ["b", "c"]


async def test_what_has_priority_comes_before_a_successor(scene: ContractHarness) -> None:
    first = await scene.start(*CHAIN)
    await scene.task(make_step("urgent", priority=5))

    assert step_ids((await scene.advance([completed(first)], claim=1)).claims) == ["urgent"]


@pytest.mark.parametrize("scope", ["pool:default", "session:"])
async def test_successor_counts_in_the_concurrency_limits(scene: ContractHarness, scope: str) -> None:
    limited = scope if scope != "session:" else f"session:{scene.own.session_id}"
    await scene.task("other", *CHAIN)
    other, first = await scene.claim()
    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit(limited, 1)])

    assert (await scene.advance([completed(first)], claim=1)).claims == ()
    assert step_ids((await scene.advance([completed(other)], claim=1)).claims) == ["b"]


async def test_successor_of_a_paused_task_is_not_claimed(scene: ContractHarness) -> None:
    first = await scene.start(*CHAIN)
    await scene.store.tasks.pause_task(scene.own, first.identity.task_id, reason="later", now_us=scene.now_us)

    assert (await scene.advance([completed(first)], claim=1)).claims == ()


async def test_worker_that_is_not_live_claims_no_successor(scene: ContractHarness) -> None:
    first = await scene.start(*CHAIN)
    await scene.store.sessions.set_worker_state(scene.worker, ProcessState.DRAINING)

    assert (await scene.advance([completed(first)], claim=1)).claims == ()
    assert (await scene.statuses(first.identity.task_id))["b"] is StepStatus.READY


@pytest.mark.spec("DIS-10.a")
async def test_successor_takes_the_turn_of_its_session(scene: ContractHarness) -> None:
    other = await scene.another_session()
    first = await scene.start(*CHAIN)
    await scene.task("x", "y", own=other)
    (served,) = await scene.claim(1)
    await scene.complete(served)
    await scene.complete(await scene.claim_one())
    (second,) = (await scene.advance([completed(first)], claim=1)).claims
    await scene.task("mine")
    await scene.task("theirs", own=other)

    assert step_ids([second, await scene.claim_one()]) == ["b", "theirs"]
