"""Steps that grow children at run time."""

import asyncio
from datetime import timedelta

import pytest

from soong.shared.core.errors import ConflictError, NotFoundError
from soong.shared.engine.runs.record import RunStatus
from soong.shared.engine.tasks.spec import FailurePolicy, StepKind, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import StepError
from soong.shared.engine.tasks.verdict import FailStep, GrowMap
from soong.shared.storage.store import Store
from tests.contract.scene import ContractHarness, completed, step_ids
from tests.model.builders import make_children, make_map, make_retry, make_step, make_task


async def mapped(scene: ContractHarness) -> tuple[str, str]:
    """Make a task of a map and a step after it; return the ids of task and map step."""
    task_id = await scene.task(make_map("m"), make_step("report", depends_on=("m",)))
    return task_id, f"{task_id}/m"


@pytest.mark.spec("DAG-04")
async def test_map_is_never_claimed_and_over_nothing_completes_with_an_empty_list_and_unlocks(
    scene: ContractHarness,
) -> None:
    task_id, map_key = await mapped(scene)
    assert await scene.claim() == ()

    assert await scene.expand(map_key)

    assert await scene.statuses(task_id) == {"m": StepStatus.COMPLETED, "report": StepStatus.READY}
    assert (await scene.claim_one()).dependencies["m"].output == []


@pytest.mark.spec("OPS-12", "DAG-04")
async def test_starts_of_an_expansion_are_counted_until_it_opens_again(scene: ContractHarness) -> None:
    task_id, map_key = await mapped(scene)
    begin = scene.store.tasks.begin_expansion

    assert [await begin(scene.own, map_key) for _ in range(3)] == [1, 2, 3]
    assert await begin(scene.own, map_key, is_taken_back=True) == 2

    await scene.verdict(map_key, FailStep(StepError("x", "x")))
    assert await begin(scene.own, map_key) == 0
    await scene.settle(map_key, FailurePolicy.SKIP_DEPENDENTS)
    await scene.finish(task_id)
    await scene.retry_task(task_id)
    assert (await scene.statuses(task_id))["m"] is StepStatus.EXPANDING
    assert await begin(scene.own, map_key) == 1


@pytest.mark.spec("DAG-04")
async def test_map_waits_for_its_children_and_completes_with_the_last_which_unlocks_what_waits_for_it(
    scene: ContractHarness,
) -> None:
    task_id, map_key = await mapped(scene)
    assert await scene.expand(map_key, "x", "y")

    steps = await scene.steps(task_id)
    assert list(steps) == ["m", "report", "m[x]", "m[y]"]
    assert (steps["m"].status, steps["m"].open_deps) == (StepStatus.WAITING, 2)
    assert (steps["m[y]"].status, steps["m[y]"].map_key, steps["m[y]"].item_index) == (StepStatus.READY, map_key, 1)
    assert (await scene.store.runs.run(steps["m[x]"].run_id)).status is RunStatus.QUEUED
    assert {"step_expanding", "step_expanded"} <= set(await scene.root_event_types(task_id))

    first, second = await scene.claim()
    await scene.complete(first)
    assert (await scene.statuses(task_id))["m"] is StepStatus.WAITING
    advance = await scene.advance([completed(second)], claim=1)

    assert (await scene.statuses(task_id))["m"] is StepStatus.COMPLETED
    assert step_ids(advance.claims) == ["report"]
    events = await scene.event_types(advance.claims[0].identity.run_id)
    assert events == ["run_created", "step_created", "step_ready", "step_claimed", "run_started"]


@pytest.mark.spec("DAG-04")
async def test_repeated_expansion_changes_nothing_and_a_batch_that_ends_all_children_completes_their_map(
    scene: ContractHarness,
) -> None:
    task_id, map_key = await mapped(scene)
    names = [f"i{number}" for number in range(20)]
    await scene.expand(map_key, *names)
    assert not await scene.expand(map_key, *names, "z")
    assert len(await scene.store.tasks.steps(task_id)) == 22

    await scene.complete_all(await scene.claim())

    assert (await scene.statuses(task_id))["report"] is StepStatus.READY


@pytest.mark.spec("DAG-04")
async def test_two_expanders_at_once_insert_one_set_of_children(scene: ContractHarness, other_store: Store) -> None:
    task_id, map_key = await mapped(scene)
    other = ContractHarness(other_store, scene.own, scene.worker, scene.clock)

    outcomes = await asyncio.gather(scene.expand(map_key, "x", "y"), other.expand(map_key, "x", "y"))

    assert sorted(outcomes) == [False, True]
    assert len(await scene.store.tasks.steps(task_id)) == 4


@pytest.mark.spec("DAG-04")
async def test_output_of_a_map_is_its_childrens_in_item_order(scene: ContractHarness) -> None:
    _, map_key = await mapped(scene)
    await scene.expand(map_key, "x", "y", "z")
    claims = await scene.claim()

    for claim in reversed(claims):
        await scene.complete(claim, f"of {step_ids([claim])[0]}")

    expected = ["of m[x]", "of m[y]", "of m[z]"]
    assert (await scene.claim_one()).dependencies["m"].output == expected
    assert (await scene.store.tasks.result(map_key)).output == expected


@pytest.mark.spec("DAG-04")
async def test_last_two_children_ending_at_once_complete_their_map_once(
    scene: ContractHarness, other_store: Store
) -> None:
    other = ContractHarness(other_store, scene.own, await scene.another_worker(), scene.clock)
    for _ in range(20):
        task_id, map_key = await mapped(scene)
        await scene.expand(map_key, "x", "y")
        mine, theirs = await scene.claim_one(), await other.claim_one()

        await asyncio.gather(scene.complete(mine), other.complete(theirs))

        report = (await scene.steps(task_id))["report"]
        assert (report.status, report.open_deps) == (StepStatus.READY, 0)
        await scene.complete(await scene.claim_one())
        await scene.finish(task_id)
        assert (await scene.root_event_types(task_id)).count("step_completed") == 1


@pytest.mark.spec("DAG-04", "EVT-02")
async def test_owners_look_tells_which_maps_workers_completed_and_when(scene: ContractHarness) -> None:
    task_id, map_key = await mapped(scene)
    await scene.expand(map_key, "x")
    await scene.complete(await scene.claim_one())
    completed_us = scene.now_us
    scene.clock.advance(timedelta(seconds=5))

    for _ in range(2):
        assert await scene.finish(task_id) is None

    root_run_id = (await scene.store.tasks.task(task_id)).root_run_id
    events = [event for event in await scene.store.runs.events(root_run_id) if event.type == "step_completed"]
    assert [(event.data, event.time_us) for event in events] == [({"step": map_key}, completed_us)]


@pytest.mark.spec("DAG-04")
async def test_child_may_be_a_map_itself(scene: ContractHarness) -> None:
    task_id, map_key = await mapped(scene)
    await scene.expand(map_key, make_step("inner", kind=StepKind.MAP))
    inner_key = f"{task_id}/m[inner]"

    await scene.expand(inner_key, "x", "y")
    await scene.complete_all(await scene.claim())

    assert (await scene.statuses(task_id))["report"] is StepStatus.READY
    assert (await scene.store.tasks.result(map_key)).output == [["Step x", "Step y"]]


@pytest.mark.spec("DAG-05", "DAG-04")
async def test_kept_failure_of_a_child_counts_as_null(scene: ContractHarness) -> None:
    task_id, map_key = await mapped(scene)
    await scene.expand(map_key, "x", "y")
    first, second = await scene.claim()
    await scene.complete(second, "fine")
    await scene.fail(first)
    assert (await scene.statuses(task_id))["m"] is StepStatus.WAITING

    await scene.settle(first.step_key, FailurePolicy.KEEP)

    assert (await scene.statuses(task_id))["m"] is StepStatus.COMPLETED
    assert (await scene.claim_one()).dependencies["m"].output == [None, "fine"]


@pytest.mark.spec("DAG-05", "DAG-04")
async def test_failure_of_a_child_that_is_not_kept_fails_the_map_to_be_settled_in_turn(scene: ContractHarness) -> None:
    task_id, map_key = await mapped(scene)
    await scene.expand(map_key, "x", "y")
    first, second = await scene.claim()
    await scene.fail(first)
    skip = FailurePolicy.SKIP_DEPENDENTS

    await scene.settle(first.step_key, skip)
    assert [failure.key for failure in await scene.store.tasks.failures(scene.own)] == [map_key]
    await scene.settle(map_key, skip)

    # The other child goes on to its end, and changes nothing of the map any more.
    await scene.complete(second)
    statuses = await scene.statuses(task_id)
    assert (statuses["m"], statuses["report"]) == (StepStatus.FAILED, StepStatus.SKIPPED)
    assert statuses["m[y]"] is StepStatus.COMPLETED


@pytest.mark.spec("DAG-05", "DAG-04")
async def test_second_failing_child_of_a_failed_map_is_settled_without_harm(scene: ContractHarness) -> None:
    task_id, map_key = await mapped(scene)
    await scene.expand(map_key, "x", "y")
    for claim in await scene.claim():
        await scene.fail(claim)

    while failures := await scene.store.tasks.failures(scene.own):
        for failure in failures:
            await scene.settle(failure.key, FailurePolicy.SKIP_DEPENDENTS)

    assert (await scene.statuses(task_id))["report"] is StepStatus.SKIPPED
    assert (await scene.root_event_types(task_id)).count("step_failed") == 1


@pytest.mark.spec("DAG-04")
async def test_expansion_that_fails_is_a_failure_to_settle(scene: ContractHarness) -> None:
    _, map_key = await mapped(scene)
    error = StepError("invalid_input", "`over` is not a list")

    await scene.verdict(map_key, FailStep(error))

    (failure,) = await scene.store.tasks.failures(scene.own)
    assert (failure.key, failure.status, failure.error) == (map_key, StepStatus.FAILED, error)


@pytest.mark.spec("DAG-04")
async def test_child_may_be_retried_while_its_map_waits(scene: ContractHarness) -> None:
    task_id, map_key = await mapped(scene)
    await scene.expand(map_key, "x")
    child = await scene.claim_one()
    await scene.fail(child)

    await scene.retry(child.step_key)
    await scene.store.tasks.promote_due(scene.own, now_us=scene.now_us)
    await scene.complete(await scene.claim_one(), "at last")

    assert (await scene.statuses(task_id))["m"] is StepStatus.COMPLETED
    assert (await scene.store.tasks.result(map_key)).output == ["at last"]


@pytest.mark.spec("DAG-04")
async def test_map_of_another_session_is_not_expanded(scene: ContractHarness) -> None:
    other = await scene.another_session()
    new = make_task(other.session_id, make_map("m"))
    await scene.store.tasks.create_task(new)
    step = await scene.store.tasks.step(new.steps[0].key)

    children = make_children(step, new.root_run.identity, "x")
    with pytest.raises(NotFoundError):
        await scene.verdict(step.key, GrowMap(tuple(children)))

    assert len(await scene.store.tasks.steps(new.id)) == 1


@pytest.mark.spec("DAG-04")
async def test_children_of_a_paused_task_wait_until_it_goes_on(scene: ContractHarness) -> None:
    task_id = await scene.task(make_map())
    await scene.store.tasks.pause_task(scene.own, task_id, reason="later", now_us=scene.now_us)

    await scene.expand(f"{task_id}/m", "x", "y")

    assert await scene.claim() == ()
    await scene.store.tasks.resume_task(scene.own, task_id, now_us=scene.now_us)
    assert sorted(step_ids(await scene.claim())) == ["m[x]", "m[y]"]


async def failed_after_growing(scene: ContractHarness) -> str:
    """Let a failure be kept, the map step below it grow one child, and that child fail; return the task's id."""
    task_id = await scene.task(make_step("a", on_failure=FailurePolicy.KEEP), make_map("m", depends_on=["a"]))
    await scene.fail(await scene.claim_one())
    await scene.settle(f"{task_id}/a", FailurePolicy.KEEP)
    await scene.expand(f"{task_id}/m", "i")
    await scene.fail(await scene.claim_one())
    for step_id in ("m[i]", "m"):
        await scene.settle(f"{task_id}/{step_id}", FailurePolicy.SKIP_DEPENDENTS)
    await scene.finish(task_id)
    return task_id


async def test_its_old_children_may_not_run_before_it_is_unlocked(scene: ContractHarness) -> None:
    task_id = await failed_after_growing(scene)
    steps = [step for step in await scene.store.tasks.steps(task_id) if step.run_id]
    runs = [make_retry(await scene.store.runs.run(step.run_id)) for step in steps]

    with pytest.raises(ConflictError, match="expanded again"):
        await scene.store.tasks.retry_task(scene.own, task_id, runs, now_us=scene.now_us)

    assert StepStatus.READY not in (await scene.statuses(task_id)).values()


async def test_it_is_expanded_again_once_what_it_waits_for_has_ended(scene: ContractHarness) -> None:
    task_id = await failed_after_growing(scene)
    last = await scene.store.runs.run((await scene.store.tasks.step(f"{task_id}/a")).run_id)

    await scene.store.tasks.retry_task(
        scene.own, task_id, [make_retry(last)], regrown=[f"{task_id}/m"], now_us=scene.now_us
    )
    await scene.complete(await scene.claim_one())
    expanding = (await scene.statuses(task_id))["m"]
    grown = await scene.expand(f"{task_id}/m", "i", "j")

    assert expanding is StepStatus.EXPANDING
    assert grown
    assert (await scene.statuses(task_id))["m[i]"] is StepStatus.READY


@pytest.mark.spec("DAG-05", "DAG-04")
async def test_task_completes_though_a_map_that_its_plan_keeps_failed_with_its_items(scene: ContractHarness) -> None:
    kept = make_step("m", kind=StepKind.MAP, on_failure=FailurePolicy.KEEP)
    task_id = await scene.task(kept, make_step("after", depends_on=("m",)))
    await scene.expand(f"{task_id}/m", "x")
    failing = await scene.claim_one()
    await scene.fail(failing)
    await scene.settle(failing.step_key, FailurePolicy.SKIP_DEPENDENTS)
    await scene.settle(f"{task_id}/m", FailurePolicy.KEEP)
    await scene.complete(await scene.claim_one())

    assert await scene.finish(task_id) is TaskStatus.COMPLETED
