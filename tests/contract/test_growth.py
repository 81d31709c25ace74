import pytest
from msgspec.structs import replace

from soong.shared.core.errors import ConflictError, InvalidTransitionError, NotFoundError, NotOwnerError
from soong.shared.engine.runs.record import EndReason, RunStatus
from soong.shared.engine.sessions.session import CommandKind
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.new_tasks import retried_step
from soong.shared.engine.tasks.spec import FailurePolicy, StepKind, StepSpec, StepStatus, TaskEvent, TaskStatus
from soong.shared.engine.tasks.step import NewStep
from tests.contract.scene import ContractHarness
from tests.model.builders import make_map, make_more, make_step

pytestmark = pytest.mark.spec("DAG-01", "DAG-04")


async def update(scene: ContractHarness, task_id: str, change: TaskChange) -> frozenset[str]:
    return await scene.store.tasks.update_task(scene.own, task_id, change, now_us=scene.now_us)


async def added(scene: ContractHarness, task_id: str, *steps: NewStep | str) -> tuple[NewStep, ...]:
    task = await scene.store.tasks.task(task_id)
    return make_more(task, (await scene.store.runs.run(task.root_run_id)).identity, *steps)


async def grow(scene: ContractHarness, task_id: str, *steps: NewStep | str) -> None:
    await update(scene, task_id, TaskChange(steps=await added(scene, task_id, *steps)))


async def attempt(scene: ContractHarness, step_key: str, plan: StepSpec | None = None) -> NewStep:
    step = await scene.store.tasks.step(step_key)
    return retried_step(step, await scene.store.runs.run(step.run_id), plan, lambda _: {"v": 1, "tools": []})


def edges(task_id: str, *pairs: tuple[str, str]) -> TaskChange:
    return TaskChange(edges=tuple((f"{task_id}/{child}", f"{task_id}/{parent}") for child, parent in pairs))


async def settle_all(scene: ContractHarness) -> None:
    while failures := await scene.store.tasks.failures(scene.own):
        await scene.settle(failures[0].key, failures[0].on_failure)


# -- growing
async def test_step_that_grows_onto_a_running_one_waits_for_it_and_gets_its_result(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await grow(scene, claim.identity.task_id, make_step("b", depends_on=("a",)), make_step("c", depends_on=("b",)))

    assert await scene.claim() == ()
    await scene.complete(claim, "result of a")
    later = await scene.claim_one()

    assert later.dependencies["a"].output == "result of a"
    assert (await scene.statuses(claim.identity.task_id))["c"] is StepStatus.PENDING


async def test_step_that_grows_onto_a_completed_one_is_ready_at_once(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "other")
    await scene.complete((await scene.claim(1))[0], "done before")

    await grow(scene, task_id, make_step("b", depends_on=("a",)), make_map("m", depends_on=("a",)))

    assert (await scene.statuses(task_id))["m"] is StepStatus.EXPANDING
    steps = await scene.steps(task_id)
    assert await scene.event_types(steps["b"].run_id) == ["run_created", "step_created", "step_ready"]
    claims = {claim.step_key.rpartition("/")[2]: claim for claim in await scene.claim()}
    assert claims["b"].dependencies["a"].output == "done before"


async def test_growth_has_its_runs_under_the_tasks_root_is_reported_and_keeps_the_task_open(
    scene: ContractHarness,
) -> None:
    claim = await scene.start("a")
    task_id = claim.identity.task_id
    await grow(scene, task_id, make_step("b", depends_on=("a",)))

    task, step = await scene.store.tasks.task(task_id), (await scene.steps(task_id))["b"]
    assert (await scene.store.runs.run(step.run_id)).identity.parent_run_id == task.root_run_id
    assert "task_updated" in await scene.root_event_types(task_id)
    await scene.complete(claim)
    assert await scene.finish(task_id) is None


async def test_growth_of_a_paused_task_waits_for_its_resume(scene: ContractHarness) -> None:
    task_id = await scene.task("a")
    await scene.store.tasks.pause_task(scene.own, task_id, reason="r", now_us=scene.now_us)

    await grow(scene, task_id, "b")

    assert await scene.claim() == ()
    await scene.store.tasks.resume_task(scene.own, task_id, now_us=scene.now_us)
    assert len(await scene.claim()) == 2


async def test_kept_failure_holds_back_no_step_that_grows_onto_it(scene: ContractHarness) -> None:
    task_id = await scene.task(make_step("a", on_failure=FailurePolicy.KEEP), "other")
    await scene.fail((await scene.claim(1))[0])
    await settle_all(scene)

    await grow(scene, task_id, make_step("b", depends_on=("a",)))

    claims = {claim.step_key.rpartition("/")[2]: claim for claim in await scene.claim()}
    assert claims["b"].dependencies["a"].status is StepStatus.FAILED


# -- what growth refuses, all or nothing
async def test_refused_growth_leaves_nothing(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_map("m"))
    await scene.expand(f"{task_id}/m", "x")
    new = await added(scene, task_id, "good", make_step("a"))
    with pytest.raises(ConflictError, match="a step 'a' already"):
        await update(scene, task_id, TaskChange(steps=new))
    with pytest.raises(NotFoundError, match="nowhere"):
        await grow(scene, task_id, "good", make_step("b", depends_on=("nowhere",)))
    with pytest.raises(ConflictError, match="depend on the map step"):
        await grow(scene, task_id, "good", make_step("b", depends_on=("m[x]",)))

    assert (await scene.statuses(task_id)).keys() == {"a", "m", "m[x]"}
    assert "task_updated" not in await scene.root_event_types(task_id)


async def test_nothing_grows_onto_what_will_never_complete(scene: ContractHarness) -> None:
    task_id = await scene.task("bad", make_step("below", depends_on=("bad",)), "other")
    await scene.fail((await scene.claim(1))[0])
    await settle_all(scene)

    for parent in ("bad", "below"):
        with pytest.raises(ConflictError, match=f"step '{parent}' is"):
            await grow(scene, task_id, make_step("b", depends_on=(parent,)))


async def test_ended_task_does_not_grow(scene: ContractHarness) -> None:
    task_id = await scene.task("a")
    await scene.store.tasks.cancel_task(scene.own, task_id, reason="r", now_us=scene.now_us)

    with pytest.raises(InvalidTransitionError, match="cancelled"):
        await grow(scene, task_id, "b")


async def test_only_the_owner_changes_a_task(scene: ContractHarness) -> None:
    task_id, other = await scene.task("a"), await scene.another_session()
    change = TaskChange(priorities={f"{task_id}/a": 1})

    stale = replace(scene.own, epoch=scene.own.epoch - 1)
    with pytest.raises(NotOwnerError):
        await scene.store.tasks.update_task(stale, task_id, change, now_us=scene.now_us)
    with pytest.raises(NotFoundError):
        await scene.store.tasks.update_task(other, task_id, change, now_us=scene.now_us)


# -- further dependencies
async def test_pending_step_waits_for_more(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_step("end", depends_on=("a",)))
    new = await added(scene, task_id, "b")
    await update(scene, task_id, replace(edges(task_id, ("end", "b"), ("end", "a")), steps=new))
    first, second = await scene.claim()

    await scene.complete(first, 1)
    assert (await scene.statuses(task_id))["end"] is StepStatus.PENDING
    await scene.complete(second, 2)

    assert {name: one.output for name, one in (await scene.claim_one()).dependencies.items()} == {"a": 1, "b": 2}


@pytest.mark.spec("DAG-02")
async def test_step_that_left_pending_gets_no_additional_dependency(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b", make_step("c", depends_on=("a",)))

    with pytest.raises(ConflictError, match="step 'b' is ready"):
        await update(scene, task_id, edges(task_id, ("b", "a")))
    await scene.claim()
    with pytest.raises(ConflictError, match="step 'b' is running"):
        await update(scene, task_id, edges(task_id, ("b", "a")))

    assert (await scene.steps(task_id))["b"].depends_on == ()


@pytest.mark.spec("DAG-02")
async def test_circle_is_refused_with_its_steps(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_step("b", depends_on=("a",)), make_step("c", depends_on=("b",)))

    with pytest.raises(ConflictError, match=r"b -> c -> b|c -> b -> c"):
        await update(scene, task_id, edges(task_id, ("b", "c")))

    assert (await scene.steps(task_id))["b"].open_deps == 1


# -- further attempts
@pytest.mark.spec("DAG-05")
async def test_failed_step_is_tried_again_by_another_agent_while_its_dependents_wait(scene: ContractHarness) -> None:
    task_id = await scene.task(
        make_step("a", kind=StepKind.AGENT, definition="weak"), make_step("b", depends_on=("a",)), "other"
    )
    first = (await scene.claim(1))[0]
    await scene.fail(first)

    plan = StepSpec("a", agent="strong", model="big", instructions="Look again.", allowed_tools=("code.search",))
    await update(scene, task_id, TaskChange(attempts=(await attempt(scene, first.step_key, plan),)))

    steps = await scene.steps(task_id)
    assert (steps["a"].status, steps["a"].attempt, steps["b"].status) == (StepStatus.READY, 2, StepStatus.PENDING)
    assert await scene.store.tasks.failures(scene.own) == []
    again = next(claim for claim in await scene.claim() if claim.step_key == first.step_key)
    assert (again.identity.definition, again.identity.model) == ("strong", "big")
    assert (again.spec.instructions, again.spec.allowed_tools) == ("Look again.", ("code.search",))
    run = await scene.store.runs.run(again.identity.run_id)
    assert (run.attempt, run.retry_of) == (2, first.identity.run_id)


@pytest.mark.spec("DAG-05")
async def test_only_an_open_failure_is_tried_again(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b", make_step("c", depends_on=("a",)))
    running, _ = await scene.claim()

    with pytest.raises(InvalidTransitionError, match="running"):
        await update(scene, task_id, TaskChange(attempts=(await attempt(scene, running.step_key),)))
    await scene.fail(running)
    await settle_all(scene)
    with pytest.raises(InvalidTransitionError, match="settled"):
        await update(scene, task_id, TaskChange(attempts=(await attempt(scene, running.step_key),)))


# -- priorities
async def test_changed_priority_decides_the_next_claim(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b", "c")

    await update(scene, task_id, TaskChange(priorities={f"{task_id}/c": 5, f"{task_id}/b": 1}))

    order = [(await scene.claim_one()).step_key.rpartition("/")[2] for _ in range(3)]
    assert order == ["c", "b", "a"]


# -- skipping and cancelling steps
@pytest.mark.spec("DAG-06")
async def test_skipped_step_takes_all_below_it_and_no_other(scene: ContractHarness) -> None:
    task_id = await scene.task(
        "a", make_step("b", depends_on=("a",)), make_step("c", depends_on=("b",)), make_step("d", depends_on=("a",))
    )

    holders = await update(scene, task_id, TaskChange(skipped=(f"{task_id}/b",), reason="not needed"))

    steps = await scene.steps(task_id)
    assert holders == frozenset()
    assert [steps[name].status for name in "abcd"] == ["ready", "skipped", "skipped", "pending"]
    run = await scene.store.runs.run(steps["b"].run_id)
    assert (run.status, run.end_reason) == (RunStatus.CANCELLED, EndReason.CANCELLED)
    assert (await scene.event_types(run.id))[-2:] == ["step_skipped", "run_cancelled"]


@pytest.mark.spec("DAG-06")
async def test_cancelled_step_that_runs_is_asked_to_stop_and_the_rest_goes_on(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_step("b", depends_on=("a",)), "other")
    claim = (await scene.claim(1))[0]

    holders = await update(scene, task_id, TaskChange(cancelled=(claim.step_key,), reason="enough"))

    (interrupt,) = await scene.store.claims.interrupts(scene.worker)
    assert holders == {scene.worker}
    assert (interrupt.kind, interrupt.run_id, interrupt.reason) == ("cancel", claim.identity.run_id, "enough")
    await scene.release(claim)
    assert await scene.statuses(task_id) == {"a": "cancelled", "b": "skipped", "other": "ready"}


@pytest.mark.spec("DAG-06")
async def test_cancelled_map_takes_its_children_with_it(scene: ContractHarness) -> None:
    task_id = await scene.task(make_map("m"), make_step("end", depends_on=("m",)), "other")
    await scene.expand(f"{task_id}/m", "x", "y")
    held = next(claim for claim in await scene.claim(3) if claim.step_key.endswith("[x]"))

    await update(scene, task_id, TaskChange(cancelled=(f"{task_id}/m",)))

    statuses = await scene.statuses(task_id)
    assert (statuses["m"], statuses["end"]) == (StepStatus.CANCELLED, StepStatus.SKIPPED)
    assert {one.step_key for one in await scene.store.claims.interrupts(scene.worker)} == {
        f"{task_id}/m[x]",
        f"{task_id}/m[y]",
    }
    await scene.complete(held)
    assert (await scene.statuses(task_id))["m"] is StepStatus.CANCELLED


@pytest.mark.spec("DAG-05")
@pytest.mark.parametrize("is_skipped", [True, False], ids=["skipped", "cancelled"])
async def test_failure_that_is_given_up_is_settled(scene: ContractHarness, is_skipped: bool) -> None:
    task_id = await scene.task("a", make_step("b", depends_on=("a",)))
    claim = await scene.claim_one()
    await scene.fail(claim)

    keys = (claim.step_key,)
    await update(scene, task_id, TaskChange(skipped=keys) if is_skipped else TaskChange(cancelled=keys))

    assert await scene.store.tasks.failures(scene.own) == []
    assert await scene.statuses(task_id) == {"a": StepStatus.FAILED, "b": StepStatus.SKIPPED}


async def test_what_has_ended_is_neither_skipped_nor_cancelled(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b", make_map("m"))
    await scene.expand(f"{task_id}/m", "x")
    await scene.complete((await scene.claim(1))[0])

    for change in (TaskChange(skipped=(f"{task_id}/a",)), TaskChange(cancelled=(f"{task_id}/a",))):
        with pytest.raises(InvalidTransitionError):
            await update(scene, task_id, change)
    with pytest.raises(ConflictError, match="an item of a map step"):
        await update(scene, task_id, TaskChange(cancelled=(f"{task_id}/m[x]",)))


async def test_task_whose_step_was_taken_out_fails_and_says_so(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b")
    await update(scene, task_id, TaskChange(skipped=(f"{task_id}/a",)))
    await scene.complete(await scene.claim_one())

    assert await scene.finish(task_id) is TaskStatus.FAILED
    assert (await scene.store.tasks.task(task_id)).reason == "a was skipped"


# -- ending
async def end(scene: ContractHarness, task_id: str, event: TaskEvent) -> frozenset[str]:
    assert event in (TaskEvent.COMPLETE, TaskEvent.FAIL)
    return await scene.store.tasks.end_task(scene.own, task_id, event, reason="says the agent", now_us=scene.now_us)


async def test_task_is_completed_by_word_when_all_its_steps_have_ended(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b")
    first, second = await scene.claim()
    await scene.complete(first)
    with pytest.raises(ConflictError, match=r"1 steps have not ended \(b\)"):
        await end(scene, task_id, TaskEvent.COMPLETE)
    await scene.fail(second)

    await end(scene, task_id, TaskEvent.COMPLETE)

    task = await scene.store.tasks.task(task_id)
    assert (task.status, task.reason) == (TaskStatus.COMPLETED, "says the agent")
    assert await scene.store.tasks.failures(scene.own) == []
    assert (await scene.store.runs.run(task.root_run_id)).end_reason is EndReason.COMPLETED


@pytest.mark.spec("DAG-06")
async def test_task_is_failed_by_word_and_what_runs_is_stopped(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b", make_step("c", depends_on=("b",)))
    await scene.claim(1)

    holders = await end(scene, task_id, TaskEvent.FAIL)

    assert holders == {scene.worker}
    assert (await scene.store.tasks.task(task_id)).status is TaskStatus.FAILED
    assert await scene.statuses(task_id) == {"a": "running", "b": "cancelled", "c": "cancelled"}
    with pytest.raises(InvalidTransitionError):
        await end(scene, task_id, TaskEvent.FAIL)


# -- a join that was missed
async def test_recounting_what_is_counted_right_changes_nothing(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_step("b", depends_on=("a",)))

    assert await scene.store.tasks.recount(scene.own, task_id, now_us=scene.now_us) == 0
    await scene.complete(await scene.claim_one())
    assert await scene.store.tasks.recount(scene.own, task_id, now_us=scene.now_us) == 0

    assert await scene.statuses(task_id) == {"a": StepStatus.COMPLETED, "b": StepStatus.READY}


# -- commands
async def test_command_ends_with_the_change_that_carries_it_out(scene: ContractHarness) -> None:
    task_id = await scene.task("a")
    own, now_us = scene.own, scene.now_us
    for kind in (CommandKind.UPDATE, CommandKind.CANCEL, CommandKind.RETRY, CommandKind.FAIL):
        command = await scene.command(task_id, kind)
        match kind:
            case CommandKind.UPDATE:
                change = TaskChange(priorities={f"{task_id}/a": 1})
                await scene.store.tasks.update_task(own, task_id, change, now_us=now_us, command_id=command)
            case CommandKind.CANCEL:
                await scene.store.tasks.cancel_task(own, task_id, reason="r", now_us=now_us, command_id=command)
            case CommandKind.RETRY:
                await scene.retry_task(task_id, command_id=command)
            case _:
                await scene.store.tasks.end_task(
                    own, task_id, TaskEvent.FAIL, reason="r", now_us=now_us, command_id=command
                )
        assert (await scene.store.sessions.command(command))[1]
        assert command not in {each.id for each in await scene.store.sessions.take_commands(scene.own)}
