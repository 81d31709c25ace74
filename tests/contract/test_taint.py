"""A run that has read what strangers wrote stays marked, and so does whatever its result feeds (PER-21)."""

import pytest

from soong.shared.core.errors import LeaseLostError, NotFoundError
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.tasks.spec import StepKind
from soong.shared.engine.tasks.step import Claim, NewStep
from soong.shared.storage.store import Store
from tests.contract.conftest import OpenStore
from tests.contract.scene import ContractHarness, outdated
from tests.model.builders import make_map, make_step


def agent(step_id: str, *depends_on: str) -> NewStep:
    return make_step(step_id, depends_on=depends_on, kind=StepKind.AGENT)


async def read(scene: ContractHarness, claim: Claim, *, taints: bool = True, call: str = "call_1") -> None:
    """End a call of a run, one that read untrusted content."""
    await scene.store.runs.end_call(
        claim.identity.run_id,
        claim.fence,
        call,
        result=None,
        nodes=(),
        events=(NewEvent("tool_completed"),),
        now_us=scene.now_us,
        taints=taints,
    )


async def tainted(store: Store, claim: Claim) -> bool:
    return await store.runs.is_tainted(claim.identity.run_id)


@pytest.mark.spec("PER-21", "PER-21.c")
async def test_a_run_is_tainted_by_the_end_of_a_call_that_read_under_its_lease_and_never_cleared(
    scene: ContractHarness, other_store: Store
) -> None:
    claim = await scene.start(agent("a"))
    await read(scene, claim, taints=False)
    with pytest.raises(LeaseLostError):
        await read(scene, outdated(claim))
    before = await tainted(scene.store, claim)
    await read(scene, claim, call="call_2")
    await read(scene, claim, taints=False, call="call_3")

    assert not before
    assert await tainted(other_store, claim)
    assert (await other_store.runs.run(claim.identity.run_id)).is_tainted


@pytest.mark.spec("PER-21.b")
async def test_taint_passes_to_dependents_however_far_and_to_nobody_else(
    scene: ContractHarness, open_another: OpenStore
) -> None:
    later = (agent("last", "after_a", "b"), agent("aside", "b"), agent("both", "a", "b"))
    await scene.task(agent("a"), agent("b"), agent("after_a", "a"), *later)
    a, b = await scene.claim(2)
    await read(scene, a)
    await scene.complete(a, "what it read")
    (after_a,) = await scene.claim()
    await scene.complete(after_a, "in other words")
    await scene.complete(b, "clean")
    rest = await scene.claim(3)

    other = await open_another()
    marked = {claim.step_key.rpartition("/")[2]: await tainted(other, claim) for claim in (a, b, after_a, *rest)}

    assert marked == {"a": True, "b": False, "after_a": True, "last": True, "aside": False, "both": True}


@pytest.mark.spec("PER-21.b")
async def test_the_parent_is_tainted_by_what_any_of_its_children_read(scene: ContractHarness) -> None:
    task_id = await scene.task(agent("a"), agent("b"))
    root = (await scene.store.tasks.task(task_id)).root_run_id
    a, b = await scene.claim(2)
    before = await scene.store.runs.is_tainted(root)

    await read(scene, b)

    assert (before, await scene.store.runs.is_tainted(root)) == (False, True)
    # A child learns nothing from its parent's other children.
    assert not await tainted(scene.store, a)


@pytest.mark.spec("PER-21.b")
async def test_taint_passes_into_the_items_of_a_map_and_out_of_it(scene: ContractHarness) -> None:
    task_id = await scene.task(agent("a"), make_map("m", depends_on=["a"]), agent("z", "m"))
    a = await scene.claim_one()
    await scene.complete(a, ["x", "y"])
    await scene.expand(f"{task_id}/m", agent("m[x]"), agent("m[y]"))
    x, y = await scene.claim(2)
    from_the_list = [await tainted(scene.store, claim) for claim in (x, y)]
    await read(scene, x)
    sibling = await tainted(scene.store, y)
    await scene.complete_all([x, y])
    z = await scene.claim_one()

    assert from_the_list == [False, False]
    assert not sibling
    assert await tainted(scene.store, z)


@pytest.mark.spec("PER-21")
async def test_items_inherit_from_what_their_list_was_made_of(scene: ContractHarness) -> None:
    task_id = await scene.task(agent("a"), make_map("m", depends_on=["a"]))
    a = await scene.claim_one()
    await read(scene, a)
    await scene.complete(a, ["x"])
    await scene.expand(f"{task_id}/m", agent("m[x]"))

    assert await tainted(scene.store, await scene.claim_one())


@pytest.mark.spec("PER-21")
async def test_what_a_function_gives_is_not_trusted(scene: ContractHarness) -> None:
    await scene.task(make_step("fetch", kind=StepKind.PYTHON), agent("a", "fetch"))
    fetch = await scene.claim_one()
    await scene.complete(fetch, "a page")

    assert await tainted(scene.store, await scene.claim_one())


async def test_the_taint_of_no_run_is_not_asked_for(scene: ContractHarness) -> None:
    with pytest.raises(NotFoundError):
        await scene.store.runs.is_tainted("run_none")


@pytest.mark.spec("PER-21")
@pytest.mark.parametrize("definition", ["project.reviewer", "claude.reviewer"])
async def test_a_run_of_a_definition_of_its_project_is_tainted_from_its_start_and_so_is_what_it_feeds(
    scene: ContractHarness, definition: str
) -> None:
    await scene.task(make_step("a", kind=StepKind.AGENT, definition=definition), agent("b", "a"), agent("c"))
    a, c = await scene.claim(2)
    at_its_start = await tainted(scene.store, a)
    await scene.complete(a, "as the project wants it")
    (b,) = await scene.claim()

    assert at_its_start
    assert await tainted(scene.store, b)
    assert not await tainted(scene.store, c)
