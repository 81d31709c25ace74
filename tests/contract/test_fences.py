"""Holders of leases and their successors: a lost lease writes nothing any more (DAG-03)."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import LeaseLostError
from soong.shared.engine.runs.events import NewEvent, NewNode, NodeKind
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.spec import ClaimMode, StepKind, StepStatus
from soong.shared.engine.tasks.step import Claim, ConcurrencyLimit, NewStep, StepEnd
from soong.shared.engine.wire.notifier import reads
from soong.shared.permissions.request import RequestState
from tests.contract.scene import ContractHarness, completed, failed, held, outdated, step_ids
from tests.model.builders import make_call, make_decision, make_map, make_request, make_step

EVENT = NewEvent("model_requested", {})
NODE = NewNode(NodeKind.ASSISTANT, {"v": 1})

Write: TypeAlias = Callable[[ContractHarness, Claim], Awaitable[object]]


async def append(scene: ContractHarness, claim: Claim) -> None:
    await scene.store.runs.append(
        claim.identity.run_id, claim.fence, nodes=[NODE], events=[EVENT], calls=[make_call(claim)], now_us=scene.now_us
    )


async def start_call(scene: ContractHarness, claim: Claim) -> None:
    await scene.store.runs.start_call(make_call(claim), claim.fence, events=[EVENT], now_us=scene.now_us)


async def end_call(scene: ContractHarness, claim: Claim) -> None:
    await scene.store.runs.end_call(
        claim.identity.run_id, claim.fence, "call_1", result={}, nodes=[NODE], events=[EVENT], now_us=scene.now_us
    )


async def report_progress(scene: ContractHarness, claim: Claim) -> None:
    await scene.store.claims.report_progress(scene.worker, held(claim), "half", now_us=scene.now_us)


async def raise_request(scene: ContractHarness, claim: Claim) -> None:
    await scene.store.consent.raise_request(make_request(claim), events=[EVENT], now_us=scene.now_us)


async def withdraw(scene: ContractHarness, claim: Claim) -> None:
    await scene.withdraw(claim, "call_1", "cancelled")


WRITES = [append, start_call, end_call, report_progress, raise_request, withdraw]


async def traces(scene: ContractHarness, claim: Claim) -> list[object]:
    """Return all that a write of the run could have changed."""
    run_id = claim.identity.run_id
    return [
        await scene.store.tasks.step(claim.step_key),
        await scene.store.runs.run(run_id),
        await scene.store.runs.nodes(run_id),
        await scene.store.runs.events(run_id),
        await scene.store.runs.calls(run_id),
        await scene.store.consent.pending(scene.own.session_id),
    ]


@pytest.mark.spec("DAG-03.b", "DAG-03")
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
async def test_write_under_a_stale_fence_is_refused_and_leaves_no_trace(scene: ContractHarness, write: Write) -> None:
    stale = await scene.start("a")
    await scene.lost_fence(stale)
    before = await traces(scene, stale)

    with pytest.raises(LeaseLostError) as refusal:
        await write(scene, stale)

    assert (refusal.value.run_id, refusal.value.fence) == (stale.identity.run_id, stale.fence)
    assert await traces(scene, stale) == before


@pytest.mark.spec("DAG-03")
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
async def test_write_between_expiry_and_the_next_claim_is_refused(scene: ContractHarness, write: Write) -> None:
    claim = await scene.start("a")
    await scene.expire()
    before = await traces(scene, claim)

    with pytest.raises(LeaseLostError):
        await write(scene, claim)

    assert await traces(scene, claim) == before


@pytest.mark.spec("DAG-03")
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
async def test_write_after_the_end_is_refused(scene: ContractHarness, write: Write) -> None:
    claim = await scene.start("a")
    await scene.complete(claim)

    with pytest.raises(LeaseLostError):
        await write(scene, claim)


@pytest.mark.spec("DAG-03.b", "DAG-03")
@pytest.mark.parametrize("end", [completed, failed], ids=["completed", "failed"])
async def test_end_under_a_stale_fence_is_refused_and_leaves_no_trace(
    scene: ContractHarness, end: Callable[[Claim], StepEnd]
) -> None:
    stale = await scene.start("a")
    await scene.lost_fence(stale)
    before = await traces(scene, stale)

    advance = await scene.advance([replace(end(stale), nodes=(NODE,), events=(EVENT,))])

    assert advance.stale == {stale.identity.run_id}
    assert await traces(scene, stale) == before


@pytest.mark.spec("DAG-07", "DAG-03")
async def test_end_by_another_worker_and_a_second_end_are_stale(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    by_another = await scene.complete(claim, "not its own", worker=await scene.another_worker())
    await scene.complete(claim, "first")

    second = await scene.complete(claim, "second")

    assert by_another.stale == second.stale == {claim.identity.run_id}
    assert (await scene.store.tasks.step(claim.step_key)).output == "first"


@pytest.mark.spec("DAG-03")
async def test_stale_end_does_not_spoil_the_good_ends_beside_it(scene: ContractHarness) -> None:
    await scene.task("a", "b")
    good, bad = await scene.claim()

    advance = await scene.advance([completed(outdated(bad)), completed(good)])

    assert advance.stale == {bad.identity.run_id}
    assert (await scene.store.tasks.step(good.step_key)).status is StepStatus.COMPLETED
    assert (await scene.store.tasks.step(bad.step_key)).status is StepStatus.RUNNING


@pytest.mark.spec("DAG-03")
async def test_release_under_a_stale_fence_is_named_and_changes_nothing(scene: ContractHarness) -> None:
    stale = await scene.start("a")
    claim = await scene.lost_fence(stale)

    assert await scene.release(stale) == {stale.identity.run_id}
    assert (await scene.store.tasks.step(claim.step_key)).status is StepStatus.RUNNING


@pytest.mark.spec("DAG-03")
async def test_decision_is_not_used_up_by_a_stale_writer(scene: ContractHarness) -> None:
    stale = await scene.start("a")
    request = await scene.raised(make_request(stale))
    decision = make_decision(request)
    await scene.store.consent.decide(scene.own, decision, state=RequestState.DECIDED, events=(), now_us=scene.now_us)
    claim = await scene.lost_fence(stale)

    call = make_call(claim, decision_id=decision.id)
    with pytest.raises(LeaseLostError):
        await scene.store.runs.start_call(call, stale.fence, events=(), now_us=scene.now_us)

    await scene.store.runs.start_call(call, claim.fence, events=(), now_us=scene.now_us)


CHAIN = (make_step("a"), make_step("b", depends_on=("a",)), make_step("c", depends_on=("b",)))


@pytest.mark.spec("EVT-02", "DAG-04", "DIS-03")
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


@pytest.mark.spec("DAG-04", "DIS-03")
async def test_successor_with_the_needs_of_its_step_is_claimed(scene: ContractHarness) -> None:
    chain = [replace(step, needs=("exec",), pool="gpu") for step in CHAIN]
    await scene.task(*chain)
    able: dict[str, Any] = {"claim": 1, "pools": ("gpu",), "capabilities": ("exec", *reads())}
    (first,) = (await scene.advance(**able)).claims

    advance = await scene.advance([completed(first)], **able)

    assert step_ids(advance.claims) == ["b"]


@pytest.mark.spec("DAG-04", "DIS-03")
async def test_neither_a_stale_end_nor_a_failure_has_a_successor(scene: ContractHarness) -> None:
    first = await scene.start(*CHAIN)

    stale = await scene.advance([completed(replace(first, fence=first.fence + 1))], claim=1)

    assert not stale.claims
    assert stale.stale == {first.identity.run_id}
    assert (await scene.advance([failed(first)], claim=1)).claims == ()


@pytest.mark.spec("DAG-05", "DAG-04", "DIS-03")
async def test_owner_of_a_failure_is_named_with_the_successor_of_another_end(scene: ContractHarness) -> None:
    first = await scene.start(*CHAIN)
    other = await scene.another_session()
    await scene.task("x", own=other)
    second = await scene.claim_one()

    advance = await scene.advance([completed(first), failed(second)], claim=1)

    assert step_ids(advance.claims) == ["b"]
    assert advance.owner_sessions == {other.session_id}


@pytest.mark.spec("DAG-04", "DIS-03")
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


@pytest.mark.spec("DAG-04", "DIS-03")
async def test_two_successors_are_claimed_together(scene: ContractHarness) -> None:
    first = await scene.start("a", make_step("b", depends_on=("a",)), make_step("c", depends_on=("a",)))

    assert step_ids((await scene.advance([completed(first)], claim=2)).claims) == ["b", "c"]


@pytest.mark.spec("DAG-04", "DIS-03")
async def test_what_has_priority_comes_before_a_successor(scene: ContractHarness) -> None:
    first = await scene.start(*CHAIN)
    await scene.task(make_step("urgent", priority=5))

    assert step_ids((await scene.advance([completed(first)], claim=1)).claims) == ["urgent"]


@pytest.mark.spec("DAG-04", "DIS-03")
@pytest.mark.parametrize("scope", ["pool:default", "session:"])
async def test_successor_counts_in_the_concurrency_limits(scene: ContractHarness, scope: str) -> None:
    limited = scope if scope != "session:" else f"session:{scene.own.session_id}"
    await scene.task("other", *CHAIN)
    other, first = await scene.claim()
    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit(limited, 1)])

    assert (await scene.advance([completed(first)], claim=1)).claims == ()
    assert step_ids((await scene.advance([completed(other)], claim=1)).claims) == ["b"]


@pytest.mark.spec("DAG-04", "DIS-03")
async def test_successor_of_a_paused_task_is_not_claimed(scene: ContractHarness) -> None:
    first = await scene.start(*CHAIN)
    await scene.store.tasks.pause_task(scene.own, first.identity.task_id, reason="later", now_us=scene.now_us)

    assert (await scene.advance([completed(first)], claim=1)).claims == ()


@pytest.mark.spec("DAG-04", "DIS-03")
async def test_worker_that_is_not_live_claims_no_successor(scene: ContractHarness) -> None:
    first = await scene.start(*CHAIN)
    await scene.store.sessions.set_worker_state(scene.worker, ProcessState.DRAINING)

    assert (await scene.advance([completed(first)], claim=1)).claims == ()
    assert (await scene.statuses(first.identity.task_id))["b"] is StepStatus.READY


@pytest.mark.spec("DIS-10.a", "DAG-04", "DIS-03")
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
