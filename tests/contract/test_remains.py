"""What a step left that did not end cleanly reaches whoever waits for it (DAG-10)."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import NewNode, NodeKind
from soong.shared.engine.tasks.spec import FailurePolicy, StepStatus
from soong.shared.engine.tasks.step import Claim, Outcome, StepEnd
from tests.contract.scene import ContractHarness, completed, failed, held
from tests.model.builders import make_call, make_map, make_step

pytestmark = pytest.mark.spec("DAG-10", "DAG-02")

DENIAL: dict[str, Json] = {
    "tool_call_id": "c1",
    "tool": "code.write_file",
    "type": "permission_denied",
    "message": "no",
}
UNKNOWN: dict[str, Json] = {"tool_call_id": "c2", "tool": "code.run_command", "type": "unknown_after_crash"}


def report(*, denials: Sequence[Json] = (), unknown: Sequence[Json] = ()) -> NewNode:
    return NewNode(NodeKind.RESULT, {"v": 1, "denials": list(denials), "unknown_effects": list(unknown)})


def said(text: str) -> NewNode:
    parts: list[Json] = [{"part_kind": "text", "content": text}]
    return NewNode(NodeKind.ASSISTANT, {"v": 1, "message": {"parts": parts}})


def partly(claim: Claim, output: Json = "done") -> StepEnd:
    nodes = (said("I could not write it."), report(denials=[DENIAL], unknown=[UNKNOWN]))
    return replace(completed(claim, output, nodes=nodes), outcome=Outcome.PARTIAL)


async def settle(scene: ContractHarness) -> None:
    for failure in await scene.store.tasks.failures(scene.own):
        await scene.settle(failure.key, failure.on_failure)


async def test_dependents_learn_what_a_partial_step_was_denied(scene: ContractHarness) -> None:
    claim = await scene.start("a", make_step("b", depends_on=("a",)))

    (later,) = (await scene.advance([partly(claim)], claim=1)).claims

    result = later.dependencies["a"]
    assert (result.output, result.outcome, result.partial) == ("done", Outcome.PARTIAL, None)
    assert (result.denials, result.unknown_effects) == ((DENIAL,), (UNKNOWN,))
    assert await scene.store.tasks.result(claim.step_key) == result


@pytest.mark.spec("DAG-10.c")
async def test_dependents_of_a_kept_failure_learn_why_and_how_far_it_got(scene: ContractHarness) -> None:
    """Kilo-Org/kilocode#11797: a failed sub-agent took all its work with it."""
    await scene.task(make_step("a", on_failure=FailurePolicy.KEEP), make_step("b", depends_on=("a",)))
    claim = await scene.claim_one()
    await scene.store.claims.report_progress(scene.worker, held(claim), "read 3 of 10", now_us=scene.now_us)
    end = replace(failed(claim), nodes=(said("first"), said("Three files are fine."), report(denials=[DENIAL])))
    await scene.advance([end])
    await settle(scene)

    result = (await scene.claim_one()).dependencies["a"]

    assert (result.output, result.error, result.denials) == (None, end.error, (DENIAL,))
    assert result.partial == {"text": "Three files are fine.", "progress": "read 3 of 10"}


async def test_map_tells_what_its_items_left_each_by_name(scene: ContractHarness) -> None:
    task_id = await scene.task(make_map("m"), make_step("end", depends_on=("m",)))
    keep = FailurePolicy.KEEP
    await scene.expand(f"{task_id}/m", make_step("x", on_failure=keep), make_step("y", on_failure=keep), "z")
    first, second, third = await scene.claim()
    end = replace(failed(first), nodes=(said("half of x"),))
    await scene.advance([end, partly(second, "y"), completed(third, "z")])
    await settle(scene)

    result = (await scene.claim_one()).dependencies["m"]

    assert end.error is not None
    assert (result.output, result.outcome) == ([None, "y", "z"], Outcome.PARTIAL)
    assert result.denials == ({**DENIAL, "step": "m[y]"},)
    assert result.partial == [
        {"step": "m[x]", "status": "failed", "error": end.error.as_json(), "partial": {"text": "half of x"}}
    ]


@pytest.mark.spec("DAG-10.b")
async def test_a_poisoned_step_names_the_write_that_nobody_knows_the_end_of(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    call = make_call(claim)
    await scene.store.runs.start_call(call, claim.fence, events=(), now_us=scene.now_us)
    for _ in range(2):
        claim = await scene.lost_fence(claim)
    await scene.expire(max_lost_leases=3)

    result = await scene.store.tasks.result(claim.step_key)

    assert result.status is StepStatus.FAILED
    assert [(one["tool_call_id"], one["tool"], one["type"]) for one in result.unknown_effects] == [
        (call.tool_call_id, call.tool, "unknown_after_crash")
    ]


async def test_what_a_bad_worker_lists_as_unknown_stops_no_dependent(scene: ContractHarness) -> None:
    claim = await scene.start("a", make_step("b", depends_on=("a",)))
    end = replace(partly(claim), nodes=(report(unknown=[{"tool_call_id": []}, "none"]),))

    (later,) = (await scene.advance([end], claim=1)).claims

    assert later.dependencies["a"].unknown_effects == ({"tool_call_id": []},)


@pytest.mark.spec("DAG-10.a")
async def test_clean_step_left_nothing(scene: ContractHarness) -> None:
    claim = await scene.start("a", make_step("b", depends_on=("a",)))

    (later,) = (await scene.advance([completed(claim, 1, nodes=(said("text"), report()))], claim=1)).claims

    result = later.dependencies["a"]
    assert (result.error, result.denials, result.unknown_effects, result.partial) == (None, (), (), None)


async def test_next_attempt_leaves_nothing_of_the_last(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await scene.advance([replace(failed(claim), nodes=(said("half"), report(denials=[DENIAL])))])
    await scene.retry(claim.step_key)
    await scene.store.tasks.promote_due(scene.own, now_us=scene.now_us)
    await scene.complete(await scene.claim_one(), "whole")

    result = await scene.store.tasks.result(claim.step_key)

    assert (result.output, result.denials, result.partial) == ("whole", (), None)
