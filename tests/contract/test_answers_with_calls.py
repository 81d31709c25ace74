"""A model's answer is stored with what is stored first of the calls that it makes."""

import pytest

from soong.shared.engine.runs.events import NewEvent, NewNode, NodeKind
from tests.contract.scene import ContractHarness
from tests.model.builders import make_call, make_request


@pytest.mark.spec("EVT-01.b")
async def test_answer_that_asks_is_stored_with_its_question(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    run_id, answer = claim.identity.run_id, NewNode(NodeKind.ASSISTANT, {"v": 1, "message": {}})

    await scene.store.consent.raise_request(
        make_request(claim),
        nodes=[answer],
        before=[NewEvent("model_responded")],
        events=[NewEvent("permission_requested")],
        now_us=scene.now_us,
    )

    assert [node.kind for node in await scene.store.runs.nodes(run_id)][-1:] == [NodeKind.ASSISTANT]
    assert (await scene.event_types(run_id))[-2:] == ["model_responded", "permission_requested"]


@pytest.mark.spec("EVT-01.b", "EXE-06.d")
async def test_answer_that_writes_is_stored_with_the_start_of_its_call(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    run_id, answer = claim.identity.run_id, NewNode(NodeKind.ASSISTANT, {"v": 1, "message": {}})
    call = make_call(claim)

    await scene.store.runs.start_call(
        call, claim.fence, nodes=[answer], events=[NewEvent("tool_started")], now_us=scene.now_us
    )

    assert [node.kind for node in await scene.store.runs.nodes(run_id)][-1:] == [NodeKind.ASSISTANT]
    assert [row.tool_call_id for row in await scene.store.runs.calls(run_id)] == [call.tool_call_id]
