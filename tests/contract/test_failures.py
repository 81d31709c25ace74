"""Failures: retried with backoff, or settled by policy (DAG-05); what an unclean end leaves behind (DAG-10)."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import InvalidTransitionError
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import NewNode, NodeKind
from soong.shared.engine.runs.record import EndReason, RunStatus
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.spec import FailurePolicy, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Claim, Outcome, StepEnd
from tests.contract.scene import ContractHarness, completed, failed, held
from tests.model.builders import make_call, make_map, make_step

TREE = (
    "a",
    "other",
    make_step("b", depends_on=("a",)),
    make_step("c", depends_on=("b",)),
    make_step("d", depends_on=("c", "other")),
)


@pytest.mark.spec("DAG-05")
async def test_failure_is_reported_with_its_error_until_it_is_settled(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await scene.fail(claim)

    (failure,) = await scene.store.tasks.failures(scene.own)

    run = await scene.store.runs.run(claim.identity.run_id)
    assert (failure.key, failure.error) == (claim.step_key, failed(claim).error)
    assert (run.status, run.end_reason) == (RunStatus.FAILED, EndReason.PROVIDER_FAILED)
    assert (await scene.event_types(run.id))[-2:] == ["step_failed", "run_failed"]
    said = (await scene.store.runs.events(run.id))[-2].data
    assert failure.error is not None
    assert {name: said[name] for name in ("type", "message", "retryable")} == failure.error.as_json()


@pytest.mark.spec("DAG-05")
async def test_failures_of_other_sessions_are_theirs(scene: ContractHarness) -> None:
    other = await scene.another_session()
    await scene.task("a", own=other)
    await scene.fail(await scene.claim_one())

    assert await scene.store.tasks.failures(scene.own) == []
    assert len(await scene.store.tasks.failures(other)) == 1


# -- retrying
@pytest.mark.spec("DAG-05")
async def test_retry_is_a_new_run_that_waits_for_its_time_and_is_ready_then(scene: ContractHarness) -> None:
    first = await scene.start("a")
    await scene.fail(first)
    await scene.retry(first.step_key, not_before_us=scene.later_us)

    step = await scene.store.tasks.step(first.step_key)
    run = await scene.store.runs.run(step.run_id)
    assert (step.status, step.attempt, step.error) == (StepStatus.PENDING, 2, None)
    assert (run.status, run.attempt, run.retry_of) == (RunStatus.QUEUED, 2, first.identity.run_id)
    assert await scene.store.tasks.failures(scene.own) == []

    due_us = await scene.store.tasks.promote_due(scene.own, now_us=scene.later_us - 1)
    assert await scene.claim() == ()
    nothing_more = await scene.store.tasks.promote_due(scene.own, now_us=scene.later_us)
    claim = await scene.claim_one()

    assert (due_us, nothing_more) == (scene.later_us, None)
    assert (claim.attempt, claim.is_resumed) == (2, False)
    assert claim.identity.run_id != first.identity.run_id
    assert claim.fence > first.fence


@pytest.mark.spec("DAG-05")
async def test_next_due_time_is_the_earliest_and_nothing_is_due_without_retries(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b", make_step("c", depends_on=("a",)))
    claims = await scene.claim()
    assert await scene.store.tasks.promote_due(scene.own, now_us=scene.later_us) is None
    assert (await scene.statuses(task_id))["c"] is StepStatus.PENDING

    for number, claim in enumerate(claims):
        await scene.fail(claim)
        await scene.retry(claim.step_key, not_before_us=scene.later_us - number)

    assert await scene.store.tasks.promote_due(scene.own, now_us=scene.now_us) == scene.later_us - 1


@pytest.mark.spec("DAG-05")
async def test_a_retry_that_got_another_dependency_is_due_with_that(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "b")
    first, second = await scene.claim()
    await scene.fail(first)
    await scene.retry(first.step_key, not_before_us=scene.later_us)
    change = TaskChange(edges=((first.step_key, second.step_key),))
    await scene.store.tasks.update_task(scene.own, task_id, change, now_us=scene.now_us)

    due_us = await scene.store.tasks.promote_due(scene.own, now_us=scene.later_us)

    assert (due_us, (await scene.store.tasks.session_work(scene.own)).retry_us) == (None, None)
    await scene.complete(second)
    assert (await scene.claim_one()).attempt == 2


@pytest.mark.spec("DAG-05")
async def test_dependents_wait_through_a_retry(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_step("b", depends_on=("a",)))
    first = await scene.claim_one()
    await scene.fail(first)
    await scene.retry(first.step_key)
    await scene.store.tasks.promote_due(scene.own, now_us=scene.now_us)

    await scene.complete(await scene.claim_one())

    assert await scene.statuses(task_id) == {"a": StepStatus.COMPLETED, "b": StepStatus.READY}


@pytest.mark.spec("DAG-05")
async def test_late_end_of_the_first_attempt_does_not_touch_the_second(scene: ContractHarness) -> None:
    first = await scene.start("a")
    await scene.fail(first)
    await scene.retry(first.step_key)
    await scene.store.tasks.promote_due(scene.own, now_us=scene.now_us)
    await scene.claim_one()

    advance = await scene.complete(first, "too late")

    assert advance.stale == {first.identity.run_id}
    assert (await scene.store.tasks.step(first.step_key)).status is StepStatus.RUNNING


@pytest.mark.spec("DAG-05")
async def test_only_an_open_failure_is_retried(scene: ContractHarness) -> None:
    running = await scene.start("a", "b")
    with pytest.raises(InvalidTransitionError):
        await scene.retry(running.step_key)

    await scene.fail(running)
    await scene.settle(running.step_key, FailurePolicy.KEEP)
    with pytest.raises(InvalidTransitionError):
        await scene.retry(running.step_key)

    step = await scene.store.tasks.step(running.step_key)
    assert (step.status, step.attempt) == (StepStatus.FAILED, 1)


# -- settling
@pytest.mark.spec("DAG-05.b", "DAG-05")
async def test_skip_dependents_skips_everything_below_and_nothing_else(scene: ContractHarness) -> None:
    task_id = await scene.task(*TREE)
    claim, _ = await scene.claim()
    await scene.fail(claim)
    below = await scene.steps(task_id)

    await scene.settle(claim.step_key, FailurePolicy.SKIP_DEPENDENTS)

    statuses = await scene.statuses(task_id)
    assert {name: status for name, status in statuses.items() if status is StepStatus.SKIPPED}.keys() == set("bcd")
    assert statuses["other"] is StepStatus.RUNNING
    for name in "bcd":
        run = await scene.store.runs.run(below[name].run_id)
        assert (run.status, run.end_reason) == (RunStatus.CANCELLED, EndReason.CANCELLED)
        assert (await scene.event_types(run.id))[-2:] == ["step_skipped", "run_cancelled"]


@pytest.mark.spec("DAG-05")
async def test_keep_lets_dependents_go_on_with_null(scene: ContractHarness) -> None:
    await scene.task("a", make_step("b", depends_on=("a",)))
    claim = await scene.claim_one()
    await scene.fail(claim)

    await scene.settle(claim.step_key, FailurePolicy.KEEP)

    result = (await scene.claim_one()).dependencies["a"]
    assert (result.status, result.output) == (StepStatus.FAILED, None)


@pytest.mark.spec("DAG-05.a", "DAG-05")
async def test_fail_task_cancels_the_rest_and_ends_the_task_as_failed(scene: ContractHarness) -> None:
    task_id = await scene.task("bad", "held", "idle", make_step("b", depends_on=("held",)))
    bad, running = await scene.claim(2)
    await scene.fail(bad)

    await scene.settle(bad.step_key, FailurePolicy.FAIL_TASK)

    statuses = await scene.statuses(task_id)
    assert (statuses["idle"], statuses["b"]) == (StepStatus.CANCELLED, StepStatus.CANCELLED)
    (interrupt,) = await scene.store.claims.interrupts(scene.worker)
    assert (interrupt.kind, interrupt.run_id) == ("cancel", running.identity.run_id)
    await scene.release(running)
    await scene.finish(task_id)
    assert (await scene.store.tasks.task(task_id)).status is TaskStatus.FAILED


@pytest.mark.spec("DAG-05")
async def test_settled_failure_has_its_effect_once(scene: ContractHarness) -> None:
    task_id = await scene.task("a", "other", make_step("b", depends_on=("a", "other")))
    claim, _ = await scene.claim()
    await scene.fail(claim)

    for _ in range(2):
        await scene.settle(claim.step_key, FailurePolicy.KEEP)

    assert (await scene.steps(task_id))["b"].open_deps == 1


@pytest.mark.spec("DAG-05")
async def test_only_a_failure_is_settled_and_its_task_does_not_end_before(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    with pytest.raises(InvalidTransitionError):
        await scene.settle(claim.step_key, FailurePolicy.KEEP)

    await scene.fail(claim)

    assert await scene.finish(claim.identity.task_id) is None


# -- the end of the task
@pytest.mark.spec("DAG-05")
async def test_task_completes_when_all_steps_have(scene: ContractHarness) -> None:
    task_id = await scene.task("a", make_step("b", depends_on=("a",)))
    claim = await scene.claim_one()
    assert await scene.finish(task_id) is None
    (second,) = (await scene.advance([completed(claim)], claim=1)).claims
    await scene.complete(second)

    status = await scene.finish(task_id)

    task = await scene.store.tasks.task(task_id)
    root = await scene.store.runs.run(task.root_run_id)
    assert status is task.status is TaskStatus.COMPLETED
    assert task.ended_us == scene.now_us
    assert (root.status, root.end_reason) == (RunStatus.COMPLETED, EndReason.COMPLETED)
    assert (await scene.root_event_types(task_id))[-2:] == ["task_completed", "run_completed"]


@pytest.mark.spec("DAG-05")
async def test_failed_task_names_the_failed_steps(scene: ContractHarness) -> None:
    task_id = await scene.task(*TREE)
    claim, other = await scene.claim()
    await scene.fail(claim)
    await scene.settle(claim.step_key, FailurePolicy.SKIP_DEPENDENTS)
    await scene.complete(other)

    status = await scene.finish(task_id)

    task = await scene.store.tasks.task(task_id)
    assert status is task.status is TaskStatus.FAILED
    assert "a" in task.reason
    assert "other" not in task.reason
    assert (await scene.store.runs.run(task.root_run_id)).status is RunStatus.FAILED


@pytest.mark.spec("DAG-05")
async def test_finishing_twice_tells_the_same_and_writes_once(scene: ContractHarness) -> None:
    task_id = await scene.task("a")
    await scene.complete(await scene.claim_one())

    statuses = [await scene.finish(task_id) for _ in range(2)]

    assert statuses == [TaskStatus.COMPLETED] * 2
    assert (await scene.root_event_types(task_id)).count("task_completed") == 1


@pytest.mark.spec("DAG-05")
async def test_finishing_a_cancelled_task_tells_so_also_while_a_step_is_held(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    task_id = claim.identity.task_id
    await scene.store.tasks.cancel_task(scene.own, task_id, reason="by a person", now_us=scene.now_us)

    assert await scene.finish(task_id) is TaskStatus.CANCELLED


@pytest.mark.spec("DAG-05")
async def test_task_without_steps_completes_and_is_no_longer_open(scene: ContractHarness) -> None:
    ended, open_id = await scene.task(), await scene.task("a")

    assert await scene.finish(ended) is TaskStatus.COMPLETED
    assert [task.id for task in await scene.store.tasks.open_tasks(scene.own)] == [open_id]


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


@pytest.mark.spec("DAG-10", "DAG-02")
async def test_dependents_learn_what_a_partial_step_was_denied(scene: ContractHarness) -> None:
    claim = await scene.start("a", make_step("b", depends_on=("a",)))

    (later,) = (await scene.advance([partly(claim)], claim=1)).claims

    result = later.dependencies["a"]
    assert (result.output, result.outcome, result.partial) == ("done", Outcome.PARTIAL, None)
    assert (result.denials, result.unknown_effects) == ((DENIAL,), (UNKNOWN,))
    assert await scene.store.tasks.result(claim.step_key) == result


@pytest.mark.spec("DAG-10.c", "DAG-10", "DAG-02")
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


@pytest.mark.spec("DAG-10", "DAG-02")
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


@pytest.mark.spec("DAG-10.b", "DAG-10", "DAG-02")
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


@pytest.mark.spec("DAG-10", "DAG-02")
async def test_what_a_bad_worker_lists_as_unknown_stops_no_dependent(scene: ContractHarness) -> None:
    claim = await scene.start("a", make_step("b", depends_on=("a",)))
    end = replace(partly(claim), nodes=(report(unknown=[{"tool_call_id": []}, "none"]),))

    (later,) = (await scene.advance([end], claim=1)).claims

    assert later.dependencies["a"].unknown_effects == ({"tool_call_id": []},)


@pytest.mark.spec("DAG-10.a", "DAG-10", "DAG-02")
async def test_clean_step_left_nothing(scene: ContractHarness) -> None:
    claim = await scene.start("a", make_step("b", depends_on=("a",)))

    (later,) = (await scene.advance([completed(claim, 1, nodes=(said("text"), report()))], claim=1)).claims

    result = later.dependencies["a"]
    assert (result.error, result.denials, result.unknown_effects, result.partial) == (None, (), (), None)


@pytest.mark.spec("DAG-10", "DAG-02")
async def test_next_attempt_leaves_nothing_of_the_last(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await scene.advance([replace(failed(claim), nodes=(said("half"), report(denials=[DENIAL])))])
    await scene.retry(claim.step_key)
    await scene.store.tasks.promote_due(scene.own, now_us=scene.now_us)
    await scene.complete(await scene.claim_one(), "whole")

    result = await scene.store.tasks.result(claim.step_key)

    assert (result.output, result.denials, result.partial) == ("whole", (), None)
