from datetime import timedelta

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import ConflictError, InvalidTransitionError, NotFoundError
from soong.shared.engine.runs.record import EndReason, RunStatus, Usage
from soong.shared.engine.tasks.spec import FailurePolicy, StepStatus, TaskStatus
from tests.contract.scene import ContractHarness, cancelled, mark_recorded
from tests.model.builders import make_map, make_step


async def pause(scene: ContractHarness, task_id: str) -> frozenset[str]:
    return await scene.store.tasks.pause_task(scene.own, task_id, reason="Ctrl-C", now_us=scene.now_us)


async def cancel(scene: ContractHarness, task_id: str) -> frozenset[str]:
    return await scene.store.tasks.cancel_task(scene.own, task_id, reason="by a person", now_us=scene.now_us)


# -- pausing
async def test_paused_task_gives_no_claims_and_names_its_holders(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b")
    await scene.claim_one()
    idle = await scene.another_worker()

    holders = await pause(scene, task_id)

    assert holders == {scene.worker}
    assert await scene.claim(worker=idle) == ()
    assert (await scene.store.claims.backlog()).ready.get("default", 0) == 0
    task = await scene.store.tasks.task(task_id)
    assert (task.status, task.reason) == (TaskStatus.PAUSED, "Ctrl-C")
    assert "task_paused" in await scene.root_event_types(task_id)


async def test_end_of_a_step_of_a_paused_task_counts(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_step("b", depends_on=("a",)))
    claim = await scene.claim_one()
    await pause(scene, task_id)

    advance = await scene.complete(claim)

    assert advance.stale == frozenset()
    assert await scene.statuses(task_id) == {"a": StepStatus.COMPLETED, "b": StepStatus.READY}
    assert await scene.claim() == ()


@pytest.mark.spec("DAG-07", "DAG-08.d")
async def test_holder_of_a_paused_step_is_asked_to_hand_it_back_and_a_resumed_task_goes_on_where_it_stood(
    scene: ContractHarness,
) -> None:
    task_id = await scene.task("a", make_step("b", depends_on=("a",)))
    claim = await scene.claim_one()
    await pause(scene, task_id)

    (interrupt,) = await scene.store.claims.interrupts(scene.worker)
    assert (interrupt.kind, interrupt.step_key, interrupt.fence) == ("pause", claim.step_key, claim.fence)
    await scene.release(claim)
    assert await scene.store.claims.interrupts(scene.worker) == []

    await scene.store.tasks.resume_task(scene.own, task_id, now_us=scene.now_us)

    assert (await scene.claim_one()).identity == claim.identity
    assert (await scene.store.tasks.task(task_id)).status is TaskStatus.RUNNING
    assert "task_resumed" in await scene.root_event_types(task_id)


async def test_pausing_twice_and_resuming_twice_do_no_harm(scene: ContractHarness) -> None:
    task_id = await scene.task("a")
    for _ in range(2):
        await pause(scene, task_id)
    for _ in range(2):
        await scene.store.tasks.resume_task(scene.own, task_id, now_us=scene.now_us)

    assert len(await scene.claim()) == 1


async def test_other_tasks_do_not_notice_a_pause_and_a_paused_task_can_be_cancelled(scene: ContractHarness) -> None:
    paused, other = await scene.task("a"), await scene.task("a")
    await pause(scene, paused)

    assert (await scene.claim_one()).identity.task_id == other
    await cancel(scene, paused)
    assert (await scene.store.tasks.task(paused)).status is TaskStatus.CANCELLED


# -- cancelling
@pytest.mark.spec("DAG-06")
async def test_cancel_ends_at_once_what_nobody_holds(scene: ContractHarness) -> None:
    task_id = await scene.task(
        "ready", make_step("pending", depends_on=("ready",)), make_map("expanding"), make_map("m")
    )
    await scene.expand(f"{task_id}/m", "child")
    steps = await scene.steps(task_id)

    holders = await cancel(scene, task_id)

    assert holders == frozenset()
    assert set((await scene.statuses(task_id)).values()) == {StepStatus.CANCELLED}
    for name in ("ready", "pending", "m[child]"):
        run = await scene.store.runs.run(steps[name].run_id)
        assert (run.status, run.end_reason) == (RunStatus.CANCELLED, EndReason.CANCELLED)
        assert (await scene.event_types(run.id))[-2:] == ["step_cancelled", "run_cancelled"]


@pytest.mark.spec("DAG-06", "DAG-08")
async def test_cancel_ends_task_and_root_run_with_the_reason_and_a_retry_continues_both_and_their_session(
    scene: ContractHarness,
) -> None:
    task_id = await scene.task("a")
    await cancel(scene, task_id)

    task = await scene.store.tasks.task(task_id)
    root = await scene.store.runs.run(task.root_run_id)
    assert (task.status, task.reason, task.ended_us) == (TaskStatus.CANCELLED, "by a person", scene.now_us)
    assert (root.status, root.end_reason) == (RunStatus.CANCELLED, EndReason.CANCELLED)
    assert "task_cancelled" in await scene.root_event_types(task_id)

    await scene.store.sessions.close_session(scene.own)
    await scene.retry_task(task_id)

    assert not (await scene.store.sessions.session(scene.own.session_id)).is_closed
    root = await scene.store.runs.run(task.root_run_id)
    assert (root.status, root.end_reason, root.ended_us) == (RunStatus.RUNNING, None, None)
    await scene.store.runs.append(task.root_run_id, 0, now_us=scene.now_us)
    await scene.complete(await scene.claim_one())
    await scene.finish(task_id)
    assert (await scene.store.runs.run(task.root_run_id)).end_reason is EndReason.COMPLETED


@pytest.mark.spec("DAG-06")
async def test_held_step_is_interrupted_and_ends_as_its_worker_says(scene: ContractHarness) -> None:
    claim = await scene.start("a", make_step("b", depends_on=("a",)))

    holders = await cancel(scene, claim.identity.task_id)
    (interrupt,) = await scene.store.claims.interrupts(scene.worker)
    await scene.advance([cancelled(claim)])

    assert holders == {scene.worker}
    assert (interrupt.kind, interrupt.run_id, interrupt.fence) == ("cancel", claim.identity.run_id, claim.fence)
    assert set((await scene.statuses(claim.identity.task_id)).values()) == {StepStatus.CANCELLED}
    assert (await scene.store.runs.run(claim.identity.run_id)).status is RunStatus.CANCELLED
    assert await scene.store.claims.interrupts(scene.worker) == []


@pytest.mark.spec("DAG-06")
async def test_step_that_was_done_before_its_worker_heard_of_it_is_completed(scene: ContractHarness) -> None:
    claim = await scene.start("a", make_step("b", depends_on=("a",)))
    await cancel(scene, claim.identity.task_id)

    await scene.complete(claim, "done")

    statuses = await scene.statuses(claim.identity.task_id)
    assert statuses == {"a": StepStatus.COMPLETED, "b": StepStatus.CANCELLED}


@pytest.mark.spec("DAG-06")
async def test_failure_before_or_after_a_cancel_needs_no_settling(scene: ContractHarness) -> None:
    before, after = await scene.start("a"), await scene.start("a")
    await scene.fail(before)
    for claim in (before, after):
        await cancel(scene, claim.identity.task_id)
    await scene.fail(after)

    assert await scene.store.tasks.failures(scene.own) == []


@pytest.mark.parametrize("lost_by", ["release", "expire"])
@pytest.mark.spec("DAG-06")
async def test_cancelled_step_whose_lease_ends_is_cancelled(scene: ContractHarness, lost_by: str) -> None:
    claim = await scene.start("a")
    await cancel(scene, claim.identity.task_id)

    if lost_by == "release":
        await scene.release(claim)
    else:
        await scene.expire(max_lost_leases=1)

    step, run = await scene.store.tasks.step(claim.step_key), await scene.store.runs.run(claim.identity.run_id)
    assert step.status is StepStatus.CANCELLED
    assert (run.status, run.end_reason) == (RunStatus.CANCELLED, EndReason.CANCELLED)
    assert await scene.claim(worker=await scene.another_worker()) == ()


@pytest.mark.parametrize("act", [pause, cancel], ids=["pause", "cancel"])
async def test_ended_task_takes_no_additional_order(scene: ContractHarness, act: object) -> None:
    task_id = await scene.task("a")
    await cancel(scene, task_id)

    assert callable(act)
    with pytest.raises(InvalidTransitionError):
        await act(scene, task_id)
    with pytest.raises(InvalidTransitionError):
        await scene.store.tasks.resume_task(scene.own, task_id, now_us=scene.now_us)


async def test_task_of_another_session_takes_no_order(scene: ContractHarness) -> None:
    task_id = await scene.task("a", own=await scene.another_session())

    for act in (pause, cancel):
        with pytest.raises(NotFoundError):
            await act(scene, task_id)

    assert (await scene.store.tasks.task(task_id)).status is TaskStatus.RUNNING


# -- retrying a task
@pytest.mark.spec("DAG-08.e", "DAG-07")
async def test_retried_task_runs_its_failed_and_skipped_steps_and_no_finished_one(scene: ContractHarness) -> None:
    task_id = await scene.task("good", "bad", make_step("join", depends_on=("good", "bad")))
    good, bad = await scene.claim()
    await scene.complete(good, "kept")
    await scene.fail(bad)
    await scene.settle(bad.step_key, FailurePolicy.SKIP_DEPENDENTS)
    await scene.finish(task_id)

    await scene.retry_task(task_id)

    steps = await scene.steps(task_id)
    assert (await scene.store.tasks.task(task_id)).status is TaskStatus.RUNNING
    assert [steps[name].status for name in ("good", "bad", "join")] == ["completed", "ready", "pending"]
    assert (steps["bad"].attempt, steps["bad"].error, steps["join"].open_deps) == (2, None, 1)
    again = await scene.claim_one()
    await scene.complete(again, "now")
    join = await scene.claim_one()
    assert {name: result.output for name, result in join.dependencies.items()} == {"good": "kept", "bad": "now"}


@pytest.mark.spec("DAG-08")
async def test_retried_map_waits_for_the_children_it_has(scene: ContractHarness) -> None:
    task_id = await scene.task(make_map("m"), make_step("report", depends_on=("m",)))
    await scene.expand(f"{task_id}/m", "x", "y")
    good, bad = await scene.claim()
    await scene.complete(good, "kept")
    await scene.fail(bad)
    while failures := await scene.store.tasks.failures(scene.own):
        await scene.settle(failures[0].key, FailurePolicy.SKIP_DEPENDENTS)
    await scene.finish(task_id)

    await scene.retry_task(task_id)

    assert (await scene.statuses(task_id))["m"] is StepStatus.WAITING
    await scene.complete(await scene.claim_one(), "now")
    assert (await scene.claim_one()).dependencies["m"].output == ["kept", "now"]


@pytest.mark.spec("DAG-08", "DAG-07")
async def test_retried_map_whose_children_had_all_completed_runs_none_of_them_again(scene: ContractHarness) -> None:
    task_id = await scene.task(make_map("m"), make_step("report", depends_on=("m",)))
    await scene.expand(f"{task_id}/m", "x")
    child = await scene.claim_one()
    await cancel(scene, task_id)
    await scene.complete(child, "done all the same")

    await scene.retry_task(task_id)

    assert (await scene.statuses(task_id))["m"] is StepStatus.COMPLETED
    assert (await scene.claim_one()).dependencies["m"].output == ["done all the same"]


async def test_running_task_and_one_with_a_step_still_held_are_not_retried(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    with pytest.raises(InvalidTransitionError):
        await scene.retry_task(claim.identity.task_id)

    await cancel(scene, claim.identity.task_id)

    with pytest.raises(ConflictError, match="still run"):
        await scene.retry_task(claim.identity.task_id)
    assert (await scene.store.tasks.task(claim.identity.task_id)).status is TaskStatus.CANCELLED


# -- from one step on
CHAIN = ("a", make_step("b", depends_on=("a",)), make_step("c", depends_on=("b",)), "other")


CALLED = Usage(tool_calls=1)


async def run_all(scene: ContractHarness) -> list[str]:
    """Run what can be run, each with a call, so that its run has a folder; return the ids of the steps, in order."""
    ran: list[str] = []
    while claims := await scene.claim():
        ran += [claim.step_key.partition("/")[2] for claim in claims]
        await scene.complete_all(claims, CALLED)
    return ran


@pytest.mark.spec("DAG-08.e", "DAG-07")
async def test_completed_task_runs_again_from_a_step_and_keeps_what_does_not_come_of_it(scene: ContractHarness) -> None:
    task_id = await scene.task(*CHAIN)
    await run_all(scene)
    await scene.finish(task_id)
    before = await scene.steps(task_id)

    await scene.retry_task(task_id, from_step="b")
    ran = await run_all(scene)

    after = await scene.steps(task_id)
    assert ran == ["b", "c"]
    assert await scene.finish(task_id) is TaskStatus.COMPLETED
    assert [after[name].attempt for name in ("a", "b", "c", "other")] == [1, 2, 2, 1]
    assert (await scene.store.runs.run(after["b"].run_id)).retry_of == before["b"].run_id
    assert after["other"] == before["other"]


@pytest.mark.spec("DAG-08")
async def test_retry_from_a_step_takes_along_what_did_not_complete(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "bad", make_step("end", depends_on=("a", "bad")))
    good, bad = await scene.claim()
    await scene.complete(good)
    await scene.fail(bad)
    await scene.settle(bad.step_key, FailurePolicy.SKIP_DEPENDENTS)
    await scene.finish(task_id)

    await scene.retry_task(task_id, from_step="a")

    assert await run_all(scene) == ["a", "bad", "end"]
    assert await scene.finish(task_id) is TaskStatus.COMPLETED


@pytest.mark.spec("DAG-08")
async def test_map_whose_items_come_of_the_retried_step_is_expanded_again(scene: ContractHarness) -> None:
    task_id = await scene.task("list", make_map("m", depends_on=("list",)), make_step("end", depends_on=("m",)))
    await run_all(scene)
    await scene.expand(f"{task_id}/m", "x", "y")
    await run_all(scene)
    await scene.finish(task_id)
    old = (await scene.steps(task_id))["m[x]"]

    await scene.retry_task(task_id, from_step="list")
    assert (await scene.statuses(task_id)).keys() == {"list", "m", "end"}
    await run_all(scene)
    await scene.expand(f"{task_id}/m", "y", "z")
    ran = await run_all(scene)

    assert ran == ["m[y]", "m[z]", "end"]
    assert await scene.finish(task_id) is TaskStatus.COMPLETED
    assert (await scene.store.tasks.result(f"{task_id}/m")).output == ["Step y", "Step z"]
    assert (await scene.event_types(old.run_id))[-1] == "run_completed"


@pytest.mark.spec("DAG-08")
async def test_retry_from_an_item_keeps_the_other_items(scene: ContractHarness) -> None:
    task_id = await scene.task(make_map("m"), make_step("end", depends_on=("m",)))
    await scene.expand(f"{task_id}/m", "x", "y")
    await run_all(scene)
    await scene.finish(task_id)

    await scene.retry_task(task_id, from_step="m[x]")

    assert (await scene.statuses(task_id))["m"] is StepStatus.WAITING
    assert await run_all(scene) == ["m[x]", "end"]
    assert await scene.finish(task_id) is TaskStatus.COMPLETED


@pytest.mark.spec("DAG-05", "DAG-08")
async def test_a_task_completes_with_kept_failures_and_its_retry_runs_them_and_what_went_on_without(
    scene: ContractHarness,
) -> None:
    task_id = await scene.task(make_map("m"), make_step("end", depends_on=("m",)), "other")
    await scene.expand(f"{task_id}/m", make_step("x", on_failure=FailurePolicy.KEEP), "y")
    claims = {claim.step_key.partition("/")[2]: claim for claim in await scene.claim()}
    await scene.fail(claims.pop("m[x]"))
    await scene.settle(f"{task_id}/m[x]", FailurePolicy.KEEP)
    await scene.complete_all(list(claims.values()))
    await run_all(scene)
    ended = await scene.finish(task_id), (await scene.statuses(task_id))["m[x]"]

    await scene.retry_task(task_id)
    ran = await run_all(scene)

    assert ended == (TaskStatus.COMPLETED, StepStatus.FAILED)
    assert ran == ["m[x]", "end"]
    assert await scene.finish(task_id) is TaskStatus.COMPLETED
    assert (await scene.store.tasks.result(f"{task_id}/m")).output == ["Step x", "Step y"]


@pytest.mark.spec("DAG-08")
async def test_completed_task_is_not_retried_without_a_step(scene: ContractHarness) -> None:
    task_id = await scene.task("a")
    await run_all(scene)
    await scene.finish(task_id)

    with pytest.raises(InvalidTransitionError, match="completed"):
        await scene.retry_task(task_id)

    assert (await scene.store.tasks.task(task_id)).status is TaskStatus.COMPLETED


# -- run folders
@pytest.mark.spec("EVT-03")
async def test_a_task_that_is_over_is_to_be_recorded_until_that_is_said(scene: ContractHarness) -> None:
    open_task = await scene.task("open")
    task_id = await scene.task("a")
    claims = await scene.claim()
    await scene.complete_all([claim for claim in claims if claim.identity.task_id == task_id], CALLED)
    await scene.finish(task_id)

    before = await scene.store.tasks.unrecorded(scene.own.owner_id)
    await mark_recorded(scene.store, task_id)
    await mark_recorded(scene.store, open_task)

    assert before == [task_id]
    assert await scene.store.tasks.unrecorded(scene.own.owner_id) == []
    await cancel(scene, open_task)
    assert await scene.store.tasks.unrecorded(scene.own.owner_id) == []  # a step of it is still held
    await scene.release(next(claim for claim in claims if claim.identity.task_id == open_task))
    assert await scene.store.tasks.unrecorded(scene.own.owner_id) == [open_task]


@pytest.mark.spec("EVT-03")
async def test_a_task_that_was_tried_again_is_recorded_again(scene: ContractHarness) -> None:
    task_id = await scene.task(*CHAIN)
    await run_all(scene)
    await scene.finish(task_id)
    await mark_recorded(scene.store, task_id)

    await scene.retry_task(task_id, from_step="c")
    during = await scene.store.tasks.unrecorded(scene.own.owner_id)
    await run_all(scene)
    await scene.finish(task_id)

    assert during == []
    assert await scene.store.tasks.unrecorded(scene.own.owner_id) == [task_id]


@pytest.mark.spec("EVT-03")
async def test_folders_of_an_earlier_end_do_not_record_a_task_that_has_had_another(scene: ContractHarness) -> None:
    """They were being written while the task was tried again and ended."""
    task_id = await scene.task(*CHAIN)
    await run_all(scene)
    await scene.finish(task_id)
    first_us = (await scene.store.tasks.task(task_id)).ended_us
    assert first_us is not None
    await scene.retry_task(task_id, from_step="c")
    during = await scene.store.tasks.mark_recorded(task_id, first_us)
    scene.clock.advance(timedelta(seconds=1))
    await run_all(scene)
    await scene.finish(task_id)

    after = await scene.store.tasks.mark_recorded(task_id, first_us)

    assert (during, after) == (False, False)
    assert await scene.store.tasks.unrecorded(scene.own.owner_id) == [task_id]
    assert await mark_recorded(scene.store, task_id)
    assert await scene.store.tasks.unrecorded(scene.own.owner_id) == []


@pytest.mark.spec("EVT-03")
@pytest.mark.parametrize("how", ["complete", "fail", "cancel"])
async def test_the_root_run_of_a_task_ends_when_its_task_does(scene: ContractHarness, how: str) -> None:
    """By it the folders of a task are known to be those of its last end."""
    task_id = await scene.task("a")
    scene.clock.advance(timedelta(seconds=1))
    if how == "cancel":
        await cancel(scene, task_id)
    elif how == "fail":
        claim = await scene.claim_one()
        await scene.fail(claim)
        await scene.settle(claim.step_key, FailurePolicy.FAIL_TASK)
        await scene.finish(task_id)
    else:
        await run_all(scene)
        await scene.finish(task_id)

    task = await scene.store.tasks.task(task_id)
    root = await scene.store.runs.run(task.root_run_id)
    assert task.ended_us is not None
    assert (root.ended_us, root.identity.step_key) == (task.ended_us, "")
    runs = await scene.store.runs.list_runs(task_id=task_id)
    assert [run.id for run in runs if not run.identity.step_key] == [task.root_run_id]


@pytest.mark.spec("EVT-03")
async def test_tasks_that_are_set_aside_keep_no_other_from_being_found(scene: ContractHarness) -> None:
    """A hundred are found at once: as many may be those that cannot be written."""
    stuck = [await scene.task("a") for _ in range(100)]
    late = await scene.task("a")
    for task_id in (*stuck, late):
        await cancel(scene, task_id)

    assert await scene.store.tasks.unrecorded(scene.own.owner_id) == stuck
    assert await scene.store.tasks.unrecorded(scene.own.owner_id, set_aside=stuck) == [late]
    assert await scene.store.tasks.unrecorded(scene.own.owner_id, set_aside=[*stuck[1:], late]) == stuck[:1]


@pytest.mark.spec("EVT-03")
async def test_what_another_owner_has_is_recorded_by_it_and_what_nobody_has_by_anybody(scene: ContractHarness) -> None:
    task_id = await scene.task("a")
    await run_all(scene)
    await scene.finish(task_id)

    assert await scene.store.tasks.unrecorded("own_other") == []
    await scene.store.sessions.release_owner(scene.own.owner_id)
    assert await scene.store.tasks.unrecorded("own_other") == [task_id]


@pytest.mark.spec("DAG-08", "DIS-08")
async def test_retry_on_another_model_sets_it_for_agents_and_for_the_items_of_their_maps(
    scene: ContractHarness,
) -> None:
    agents = replace(make_map("m", depends_on=("list",)), model="old:one")
    task_id = await scene.task("list", agents, make_step("end", depends_on=("m",), model="old:one"))
    await scene.fail(await scene.claim_one())
    await scene.settle(f"{task_id}/list", FailurePolicy.SKIP_DEPENDENTS)
    await scene.finish(task_id)

    await scene.retry_task(task_id, model="new:two")

    assert {name: step.model for name, step in (await scene.steps(task_id)).items()} == {
        "list": "",
        "m": "new:two",
        "end": "new:two",
    }
