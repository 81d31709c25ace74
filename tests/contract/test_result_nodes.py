"""The result node of a run whose worker gave none: what its step gave, whatever becomes of the step."""

import pytest

from soong.shared.engine.runs.events import NewNode, Node, NodeKind
from tests.contract.scene import ContractHarness, completed
from tests.model.builders import make_map, make_step


async def results(scene: ContractHarness, *run_ids: str) -> list[Node]:
    return [(await scene.store.runs.nodes(run_id))[-1] for run_id in run_ids]


@pytest.mark.spec("EVT-01")
async def test_a_result_stays_with_its_run_when_the_step_is_tried_again(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_step("b", depends_on=("a",)))
    for number in (1, 2):
        await scene.complete(await scene.claim_one(), {"n": number})
    await scene.store.tasks.finish_task(scene.own, task_id, now_us=scene.now_us)
    first = [(await scene.steps(task_id))[name].run_id for name in ("a", "b")]
    before = await results(scene, *first)

    await scene.retry_task(task_id, from_step="a")
    await scene.complete(await scene.claim_one(), {"n": 3})
    again = (await scene.steps(task_id))["a"].run_id

    assert await results(scene, *first) == before
    assert [node.payload for node in await results(scene, *first, again)] == [
        {"v": 1, "output": {"n": number}} for number in (1, 2, 3)
    ]


@pytest.mark.spec("EVT-01")
async def test_a_result_stays_with_its_run_when_the_map_step_is_expanded_again(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_map("m", depends_on=["a"]))
    await scene.complete(await scene.claim_one())
    await scene.expand(f"{task_id}/m", "i")
    await scene.complete(await scene.claim_one(), {"item": 1})
    await scene.store.tasks.finish_task(scene.own, task_id, now_us=scene.now_us)
    run_id = (await scene.steps(task_id))["m[i]"].run_id

    await scene.retry_task(task_id, from_step="a")

    assert "m[i]" not in await scene.steps(task_id)
    assert [node.payload for node in await results(scene, run_id)] == [{"v": 1, "output": {"item": 1}}]


@pytest.mark.spec("EVT-01")
async def test_a_result_without_a_row_comes_after_all_nodes_and_on_the_last_page(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    nodes = [NewNode(NodeKind.USER, {"v": 1, "number": number}) for number in range(3)]

    await scene.advance([completed(claim, nodes=nodes)])

    run_id = claim.identity.run_id
    pages = [await scene.store.runs.node_page(run_id, after=after, limit=2) for after in (0, 2, 3, 4)]
    assert [[node.number for node in page] for page in pages] == [[1, 2], [3, 4], [4], []]
    assert pages[1][-1] == (await scene.store.runs.nodes(run_id))[-1]
    assert (pages[1][-1].kind, pages[1][-1].parent) == (NodeKind.RESULT, 3)
