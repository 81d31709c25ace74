import asyncio
from datetime import timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import NewEvent, NewNode, NodeKind
from soong.shared.engine.runs.record import EndReason, RunStatus, Usage
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Outcome, StepResult
from soong.shared.storage.store import Store
from tests.contract.scene import ContractHarness, completed, step_ids
from tests.model.builders import make_map, make_step

JOIN = ("a", "b", make_step("join", depends_on=("a", "b")))


@pytest.mark.spec("DAG-04", "CARD-2", "EVT-02")
async def test_join_is_ready_when_its_last_parent_has_completed_and_its_claim_tells_since_when(
    scene: ContractHarness,
) -> None:
    task_id = await scene.task(*JOIN)
    first, second = await scene.claim()
    await scene.complete(first)
    assert (await scene.statuses(task_id))["join"] is StepStatus.PENDING
    await scene.complete(second)
    join, unlocked_us = (await scene.steps(task_id))["join"], scene.now_us
    assert (join.status, join.open_deps) == (StepStatus.READY, 0)

    scene.clock.advance(timedelta(seconds=5))
    claim = await scene.claim_one()

    *_, ready, claimed, started = await scene.store.runs.events(claim.identity.run_id)
    assert [event.type for event in (ready, claimed, started)] == ["step_ready", "step_claimed", "run_started"]
    assert (ready.time_us, claimed.time_us) == (unlocked_us, scene.now_us)


@pytest.mark.spec("DAG-04", "EVT-02")
async def test_cancelled_step_tells_that_it_had_been_ready(scene: ContractHarness) -> None:
    task_id = await scene.task(*JOIN)
    await scene.complete_all(await scene.claim())

    await scene.store.tasks.cancel_task(scene.own, task_id, reason="enough", now_us=scene.now_us)

    join = (await scene.steps(task_id))["join"]
    types = await scene.event_types(join.run_id)
    assert types == ["run_created", "step_created", "step_ready", "step_cancelled", "run_cancelled"]


@pytest.mark.spec("CARD-2")
async def test_batch_of_ends_lowers_a_shared_join_by_their_number(scene: ContractHarness) -> None:
    parents = [f"s{number}" for number in range(6)]
    task_id = await scene.task(*parents, make_step("join", depends_on=parents))
    claims = await scene.claim()

    await scene.complete_all(claims[:4])

    assert (await scene.steps(task_id))["join"].open_deps == 2


@pytest.mark.spec("CARD-2")
async def test_last_batch_unlocks_and_claims_the_join_in_one_transaction(scene: ContractHarness) -> None:
    await scene.task(*JOIN)
    claims = await scene.claim()

    advance = await scene.advance([completed(claim) for claim in claims], claim=1)

    assert step_ids(advance.claims) == ["join"]


@pytest.mark.spec("DAG-04.c", "EVT-02")
async def test_step_unlocked_and_claimed_in_one_transaction_tells_so_in_order(scene: ContractHarness) -> None:
    await scene.task("a", make_step("b", depends_on=("a",)))

    (claim,) = (await scene.advance([completed(await scene.claim_one())], claim=1)).claims

    events = await scene.event_types(claim.identity.run_id)
    assert events == ["run_created", "step_created", "step_ready", "step_claimed", "run_started"]


@pytest.mark.spec("CARD-2")
async def test_two_parents_ending_at_once_unlock_their_join_exactly_once(
    scene: ContractHarness, other_store: Store
) -> None:
    second_worker = await scene.another_worker()
    other = ContractHarness(other_store, scene.own, second_worker, scene.clock)

    for _ in range(100):
        task_id = await scene.task(*JOIN)
        mine, theirs = await scene.claim_one(), await other.claim_one()

        await asyncio.gather(scene.complete(mine), other.complete(theirs))

        join = (await scene.steps(task_id))["join"]
        assert (join.status, join.open_deps) == (StepStatus.READY, 0)
        await scene.complete(await scene.claim_one())
        assert (await scene.event_types(join.run_id)).count("step_ready") == 1


@pytest.mark.spec("CARD-2")
async def test_crossed_joins_ended_at_once_do_not_block_each_other(scene: ContractHarness, other_store: Store) -> None:
    other = ContractHarness(other_store, scene.own, await scene.another_worker(), scene.clock)
    joins = [make_step(f"join{number}", depends_on=("a", "b", "c", "d")) for number in range(5)]

    for _ in range(10):
        task_id = await scene.task("a", "b", "c", "d", *joins)
        mine, theirs = await scene.claim(2), await other.claim(2)

        await asyncio.gather(scene.complete_all(mine), other.complete_all(theirs[::-1]))

        statuses = await scene.statuses(task_id)
        assert [statuses[join.step_id] for join in joins] == [StepStatus.READY] * 5
        await scene.complete_all(await scene.claim())


async def test_map_whose_dependencies_are_done_waits_for_the_expander(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_map("m", depends_on=("a",)))

    advance = await scene.complete(await scene.claim_one())

    assert (await scene.statuses(task_id))["m"] is StepStatus.EXPANDING
    assert advance.owner_sessions == {scene.own.session_id}


@pytest.mark.spec("DAG-10", "DIS-05.a")
async def test_end_is_stored_whole(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    scene.clock.advance(timedelta(seconds=1))
    output: Json = {"findings": [{"line": 3, "text": "größer"}], "score": 0.5, "none": None}
    part = Usage(requests=1, input_tokens=4, cost_usd=Decimal("0.5"))
    usage = Usage(requests=2, input_tokens=10, output_tokens=5, tool_calls=1, by_model={"a:b": part, "c:d": Usage(1)})

    await scene.advance([replace(completed(claim, output), usage=usage, outcome=Outcome.PARTIAL)])

    step, run = await scene.store.tasks.step(claim.step_key), await scene.store.runs.run(claim.identity.run_id)
    assert (step.status, step.output, step.outcome) == (StepStatus.COMPLETED, output, Outcome.PARTIAL)
    assert (run.status, run.end_reason, run.usage) == (RunStatus.COMPLETED, EndReason.COMPLETED, usage)
    assert step.ended_us == run.ended_us == scene.now_us
    assert await scene.store.tasks.result(claim.step_key) == StepResult("a", step.status, output, Outcome.PARTIAL)


@pytest.mark.spec("EVT-01", "EXE-06")
async def test_nodes_and_events_of_an_end_stand_before_the_end_itself(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    node, event = NewNode(NodeKind.RESULT, {"v": 1, "text": "done"}), NewEvent("model_responded", {"turn": 1})

    await scene.advance([completed(claim, nodes=[node], events=[event])])

    types = await scene.event_types(claim.identity.run_id)
    assert types[-3:] == ["model_responded", "step_completed", "run_completed"]
    assert [stored.payload for stored in await scene.store.runs.nodes(claim.identity.run_id)] == [node.payload]


@pytest.mark.spec("EVT-01")
async def test_completed_run_ends_with_a_result_node_also_when_its_worker_gave_none(scene: ContractHarness) -> None:
    claim = await scene.start("a")

    await scene.complete(claim, {"n": 1})

    (node,) = await scene.store.runs.nodes(claim.identity.run_id)
    assert (node.kind, node.payload) == (NodeKind.RESULT, {"v": 1, "output": {"n": 1}})


async def test_owner_is_named_when_nothing_was_opened_or_claimed_with_an_end(scene: ContractHarness) -> None:
    await scene.task("a", "b", "c", make_step("d", depends_on=("a", "b")))
    claims = {claim.step_key.rpartition("/")[2]: claim for claim in await scene.claim(2)}

    with_claim = await scene.advance([completed(claims["a"])], claim=1)
    without_claim = await scene.advance([completed(with_claim.claims[0])])
    opening = await scene.advance([completed(claims["b"])])

    assert [step_ids(with_claim.claims), with_claim.owner_sessions] == [["c"], frozenset()]
    assert without_claim.owner_sessions == {scene.own.session_id}  # whether others still run, its owner reads
    assert (opening.owner_sessions, opening.ready_left) == (frozenset(), True)


async def test_owner_is_named_when_the_last_step_has_ended(scene: ContractHarness) -> None:
    await scene.task("a", make_step("b", depends_on=("a",)))

    midway = await scene.advance([completed(await scene.claim_one())], claim=1)
    last = await scene.advance([completed(midway.claims[0])], claim=1)

    assert midway.owner_sessions == frozenset()
    assert last.owner_sessions == {scene.own.session_id}


@pytest.mark.spec("DAG-05")
async def test_failed_step_leaves_its_dependents_as_they_are_and_its_owner_is_named(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_step("b", depends_on=("a",)))

    advance = await scene.fail(await scene.claim_one())

    assert await scene.statuses(task_id) == {"a": StepStatus.FAILED, "b": StepStatus.PENDING}
    assert advance.owner_sessions == {scene.own.session_id}
