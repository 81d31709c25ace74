import pytest

from soong.shared.core.errors import NotOwnerError
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.store import CallAbort, calls_under_way
from soong.shared.engine.tasks.step import Claim, Interrupt
from tests.contract.scene import ContractHarness
from tests.contract.test_asks import ask, successor, take_up
from tests.model.builders import make_owner

pytestmark = pytest.mark.spec("EXE-07.a")


async def abort(scene: ContractHarness, run_id: str, call: str = "c1", reason: str = "it hangs") -> None:
    await scene.store.tasks.abort_call(scene.own, CallAbort(run_id, call, reason), now_us=scene.now_us)


async def told(scene: ContractHarness, worker: str = "") -> list[Interrupt]:
    return list(await scene.store.claims.interrupts(worker or scene.worker))


def of(claim: Claim, call: str = "c1", reason: str = "it hangs") -> Interrupt:
    return Interrupt(claim.identity.run_id, claim.step_key, claim.fence, "abort", reason, call)


async def test_the_holder_of_a_run_is_told_and_whoever_takes_it_up_again_and_nobody_else(
    scene: ContractHarness,
) -> None:
    claim = await scene.start("a")
    another = await scene.another_worker()
    await abort(scene, claim.identity.run_id)

    assert await told(scene) == [of(claim)]
    assert await told(scene, another) == []
    await scene.release(claim)
    assert await told(scene) == []
    again = await scene.claim_one()
    assert await told(scene) == [of(again)]
    assert again.fence > claim.fence


@pytest.mark.spec("EXE-07.g")
async def test_an_abort_of_the_run_is_one_without_a_call_and_no_pause(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    asked_for = await take_up(scene, await ask(scene))

    await abort(scene, claim.identity.run_id, "")
    await abort(scene, asked_for.identity.run_id, "")

    assert await told(scene) == [of(claim, "")]
    (open_ask,) = await scene.store.asks.open_asks(scene.own)
    assert open_ask.aborts == (CallAbort(asked_for.identity.run_id, "", "it hangs"),)


async def test_calls_are_aborted_one_by_one_with_the_first_words_and_beside_a_cancel(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    for call, reason in (("c1", "it hangs"), ("c1", "really"), ("c2", "it hangs")):
        await abort(scene, claim.identity.run_id, call, reason)
    assert sorted(await told(scene), key=str) == [of(claim), of(claim, "c2")]

    await scene.store.tasks.cancel_task(scene.own, claim.identity.task_id, reason="by a person", now_us=scene.now_us)

    assert sorted(each.kind for each in await told(scene)) == ["abort", "abort", "cancel"]


async def test_a_run_that_does_not_run_takes_no_abort(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await scene.complete(claim)
    await abort(scene, claim.identity.run_id)
    waiting = await scene.task("b")
    (step,) = (await scene.steps(waiting)).values()
    await abort(scene, step.run_id)
    later = await scene.claim_one()

    assert later.identity.run_id == step.run_id
    assert await told(scene) == []


async def test_only_the_sessions_owner_asks_for_it(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    elsewhere = await scene.another_session()
    await scene.store.tasks.abort_call(elsewhere, CallAbort(claim.identity.run_id, "c1"), now_us=scene.now_us)
    before = await told(scene)
    owner = make_owner()
    await scene.store.sessions.register_owner(owner)
    await successor(scene)

    with pytest.raises(NotOwnerError):
        await abort(scene, claim.identity.run_id)

    assert before == []
    assert await told(scene) == []


async def test_the_owner_finds_the_aborts_of_its_asks(scene: ContractHarness) -> None:
    quiet, busy = await ask(scene), await ask(scene, "find another")
    claim = await take_up(scene, busy)
    for call in ("c1", "c2"):
        await abort(scene, claim.identity.run_id, call)

    found = {each.task_id: each.aborts for each in await scene.store.asks.open_asks(scene.own)}

    assert found[quiet] == ()
    assert {each.tool_call_id for each in found[busy]} == {"c1", "c2"}
    assert {(each.run_id, each.reason) for each in found[busy]} == {(claim.identity.run_id, "it hangs")}
    assert list(found) == [quiet, busy]


async def test_calls_under_way_are_those_of_the_log_that_have_no_end(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    queued = NewEvent(EventType.TOOL_QUEUED, {"tools": {"c1": "test.c1", "c2": "test.c2"}})
    log = [(EventType.TOOL_STARTED, "c1"), (EventType.TOOL_STARTED, "c3"), (EventType.TOOL_COMPLETED, "c1")]
    events = [queued] + [NewEvent(kind, {"tool_call_id": call, "tool": f"test.{call}"}) for kind, call in log]
    await scene.store.runs.append(claim.identity.run_id, claim.fence, events=events, now_us=scene.now_us)

    assert await calls_under_way(scene.store.runs, claim.identity.run_id) == {"c2": "test.c2", "c3": "test.c3"}
