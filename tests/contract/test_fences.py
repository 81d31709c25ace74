"""A holder that has lost its lease writes nothing any more (DAG-03)."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import LeaseLostError
from soong.shared.engine.runs.events import NewEvent, NewNode, NodeKind
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.permissions.request import RequestState
from tests.contract.scene import ContractHarness, completed, failed, held, outdated
from tests.model.builders import make_call, make_decision, make_request

pytestmark = pytest.mark.spec("DAG-03")

EVENT = NewEvent("model_requested", {})
NODE = NewNode(NodeKind.ASSISTANT, {"v": 1})

Write: TypeAlias = Callable[[ContractHarness, Claim], Awaitable[object]]


async def append(scene: ContractHarness, claim: Claim) -> None:
    await scene.store.runs.append(claim.identity.run_id, claim.fence, nodes=[NODE], events=[EVENT], now_us=scene.now_us)


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


@pytest.mark.spec("DAG-03.b")
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
async def test_write_under_a_stale_fence_is_refused_and_leaves_no_trace(scene: ContractHarness, write: Write) -> None:
    stale = await scene.start("a")
    await scene.lost_fence(stale)
    before = await traces(scene, stale)

    with pytest.raises(LeaseLostError) as refusal:
        await write(scene, stale)

    assert (refusal.value.run_id, refusal.value.fence) == (stale.identity.run_id, stale.fence)
    assert await traces(scene, stale) == before


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
async def test_write_between_expiry_and_the_next_claim_is_refused(scene: ContractHarness, write: Write) -> None:
    claim = await scene.start("a")
    await scene.expire()
    before = await traces(scene, claim)

    with pytest.raises(LeaseLostError):
        await write(scene, claim)

    assert await traces(scene, claim) == before


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
async def test_write_after_the_end_is_refused(scene: ContractHarness, write: Write) -> None:
    claim = await scene.start("a")
    await scene.complete(claim)

    with pytest.raises(LeaseLostError):
        await write(scene, claim)


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
async def test_present_holder_may_write(scene: ContractHarness, write: Write) -> None:
    first = await scene.start("a")
    claim = await scene.lost_fence(first)

    await write(scene, claim)


@pytest.mark.spec("DAG-03.b")
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


@pytest.mark.spec("DAG-07")
async def test_end_by_another_worker_and_a_second_end_are_stale(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    by_another = await scene.complete(claim, "not its own", worker=await scene.another_worker())
    await scene.complete(claim, "first")

    second = await scene.complete(claim, "second")

    assert by_another.stale == second.stale == {claim.identity.run_id}
    assert (await scene.store.tasks.step(claim.step_key)).output == "first"


async def test_stale_end_does_not_spoil_the_good_ends_beside_it(scene: ContractHarness) -> None:
    await scene.task("a", "b")
    good, bad = await scene.claim()

    advance = await scene.advance([completed(outdated(bad)), completed(good)])

    assert advance.stale == {bad.identity.run_id}
    assert (await scene.store.tasks.step(good.step_key)).status is StepStatus.COMPLETED
    assert (await scene.store.tasks.step(bad.step_key)).status is StepStatus.RUNNING


async def test_release_under_a_stale_fence_is_named_and_changes_nothing(scene: ContractHarness) -> None:
    stale = await scene.start("a")
    claim = await scene.lost_fence(stale)

    assert await scene.release(stale) == {stale.identity.run_id}
    assert (await scene.store.tasks.step(claim.step_key)).status is StepStatus.RUNNING


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
