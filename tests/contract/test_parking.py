"""A run that waits for consent gives up its slot, and goes on when its question is closed (PER-13, DAG-04)."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import AlreadyDecidedError, InvalidTransitionError, LeaseLostError
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.runs.record import EndReason, RunStatus
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.spec import FailurePolicy, StepStatus, TaskEvent, TaskStatus
from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.request import Choice, PermissionRequest, RequestState
from soong.shared.storage.store import Store
from tests.contract.conftest import OpenStore
from tests.contract.scene import ContractHarness, failed, held, outdated, step_ids
from tests.model.builders import make_call, make_decision, make_request, make_step


async def ask(scene: ContractHarness, claim: Claim, *calls: str) -> list[PermissionRequest]:
    """Raise a question for each of these calls."""
    return [await scene.raised(make_request(claim, call)) for call in calls or ("call_1",)]


async def park(
    scene: ContractHarness,
    claim: Claim,
    requests: Sequence[PermissionRequest],
    *,
    store: Store | None = None,
    worker: str = "",
    max_parked: int = 10,
) -> bool:
    ids = [request.id for request in requests]
    return await (store or scene.store).claims.park(
        worker or scene.worker, held(claim), ids, max_parked=max_parked, now_us=scene.now_us
    )


async def decide(
    scene: ContractHarness,
    request: PermissionRequest,
    choice: Choice = Choice.ALLOW_ONCE,
    *,
    state: RequestState = RequestState.DECIDED,
    store: Store | None = None,
) -> bool:
    events = [NewEvent("permission_decided")]
    decision = make_decision(request, choice)
    decided = await (store or scene.store).consent.decide(
        scene.own, decision, state=state, events=events, now_us=scene.now_us
    )
    return decided.was_parked


async def parked(scene: ContractHarness, *steps: str) -> tuple[Claim, PermissionRequest]:
    """Make a task, claim its first step and park it over one question."""
    claim = await scene.start(*(steps or ("a",)))
    (request,) = await ask(scene, claim)
    assert await park(scene, claim, [request])
    return claim, request


# -- parking
@pytest.mark.spec("PER-13", "DAG-04")
async def test_parked_run_holds_no_lease_and_keeps_its_fence_and_parking_twice_is_parking_once(
    scene: ContractHarness,
) -> None:
    claim, request = await parked(scene)

    step, run = await scene.store.tasks.step(claim.step_key), await scene.store.runs.run(claim.identity.run_id)
    assert (step.status, step.worker_id, step.fence) == (StepStatus.BLOCKED, "", claim.fence)
    assert (run.status, run.worker_id, run.fence, run.ended_us) == (RunStatus.PARKED, "", claim.fence, None)
    assert await scene.store.claims.leases(scene.worker) == []
    # A commit whose answer was lost is told again; otherwise the run would wait on in a slot that it has given up.
    assert await park(scene, claim, [request], max_parked=1)
    assert not await park(scene, outdated(claim), [request])
    events = await scene.event_types(run.id)
    assert (events[-2:], events.count("run_parked")) == (["step_blocked", "run_parked"], 1)


@pytest.mark.spec("DAG-03", "PER-13")
async def test_nothing_is_written_under_the_fence_of_a_parked_run(scene: ContractHarness) -> None:
    claim, request = await parked(scene)
    run_id = claim.identity.run_id

    with pytest.raises(LeaseLostError):
        await scene.store.runs.append(run_id, claim.fence, events=[NewEvent("model_requested")], now_us=scene.now_us)
    with pytest.raises(LeaseLostError):
        await scene.store.consent.withdraw(run_id, "call_1", claim.fence, reason="late", now_us=scene.now_us)
    assert (await scene.complete(claim)).stale == {run_id}
    assert await scene.release(claim) == {run_id}
    assert (await scene.store.consent.request(request.id))[1] is RequestState.PENDING


@pytest.mark.parametrize("state", [RequestState.DECIDED, RequestState.EXPIRED, RequestState.WITHDRAWN], ids=str)
@pytest.mark.spec("PER-13")
async def test_run_whose_question_is_closed_does_not_park(scene: ContractHarness, state: RequestState) -> None:
    claim = await scene.start("a")
    first, second = await ask(scene, claim, "call_1", "call_2")
    await decide(scene, second, state=state)

    assert not await park(scene, claim, [first, second])
    assert (await scene.store.tasks.step(claim.step_key)).status is StepStatus.RUNNING
    assert "step_blocked" not in await scene.event_types(claim.identity.run_id)


@pytest.mark.spec("PER-13")
async def test_run_does_not_park_over_the_question_of_another_or_at_the_limit_and_goes_on(
    scene: ContractHarness,
) -> None:
    await scene.task("a", "b")
    other, claim = await scene.claim()
    (request,) = await ask(scene, claim)

    assert not await park(scene, other, [request])
    assert not await park(scene, claim, [request], max_parked=0)
    assert not await decide(scene, request)
    assert (await scene.store.tasks.step(claim.step_key)).status is StepStatus.RUNNING


@pytest.mark.spec("DAG-03")
async def test_who_does_not_hold_the_lease_parks_nothing(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    requests = await ask(scene, claim)

    assert not await park(scene, outdated(claim), requests)
    assert not await park(scene, claim, requests, worker=await scene.another_worker())
    assert not await park(scene, replace(claim, step_key="task_none/a"), requests)
    assert (await scene.store.tasks.step(claim.step_key)).status is StepStatus.RUNNING


@pytest.mark.spec("PER-13")
async def test_limit_of_parked_runs_keeps_the_slots_of_those_beyond_it(scene: ContractHarness) -> None:
    await scene.task("a", "b", "c")
    claims = await scene.claim()
    asked = [await ask(scene, claim) for claim in claims]

    outcomes = [await park(scene, claim, requests, max_parked=2) for claim, requests in zip(claims, asked, strict=True)]

    assert outcomes == [True, True, False]
    await decide(scene, asked[0][0])
    assert await park(scene, claims[2], asked[2], max_parked=2)


@pytest.mark.spec("PER-13")
async def test_limit_holds_when_all_park_at_once(scene: ContractHarness, open_another: OpenStore) -> None:
    await scene.task(*(f"s{number}" for number in range(6)))
    claims = await scene.claim()
    asked = [await ask(scene, claim) for claim in claims]
    stores = [await open_another() for _ in claims]

    outcomes = await asyncio.gather(
        *(
            park(scene, claim, requests, store=store, max_parked=2)
            for claim, requests, store in zip(claims, asked, stores, strict=True)
        )
    )

    assert sum(outcomes) == 2


async def test_limit_counts_one_session_only(scene: ContractHarness) -> None:
    await parked(scene)
    other = await scene.another_session()
    await scene.task("a", own=other)
    claim = await scene.claim_one()

    assert await park(scene, claim, await ask(scene, claim), max_parked=1)


# -- going on
@pytest.mark.parametrize("state", [RequestState.DECIDED, RequestState.EXPIRED, RequestState.WITHDRAWN], ids=str)
@pytest.mark.spec("PER-13", "DAG-04")
async def test_closed_question_makes_the_step_ready_in_the_same_transaction(
    scene: ContractHarness, state: RequestState
) -> None:
    claim, request = await parked(scene)

    assert await decide(scene, request, state=state)

    step, run = await scene.store.tasks.step(claim.step_key), await scene.store.runs.run(claim.identity.run_id)
    assert (step.status, run.status, run.worker_id) == (StepStatus.READY, RunStatus.QUEUED, "")
    assert (await scene.event_types(run.id))[-2:] == ["permission_decided", "step_unparked"]
    assert (await scene.store.claims.backlog()).ready == {"default": 1}


@pytest.mark.spec("PER-13", "DAG-03", "DAG-07")
async def test_parked_run_outlives_its_worker_and_goes_on_under_its_id_with_a_higher_fence_elsewhere(
    scene: ContractHarness,
) -> None:
    claim, request = await parked(scene)
    await scene.expire(max_lost_leases=1)
    step = await scene.store.tasks.step(claim.step_key)
    assert (step.status, step.lost_leases, step.fence) == (StepStatus.BLOCKED, 0, claim.fence)

    await decide(scene, request)
    again = await scene.claim_one(worker=await scene.another_worker())

    assert again.identity == claim.identity
    assert (again.fence, again.is_resumed, again.attempt) == (claim.fence + 1, True, 1)
    (asked,) = await ask(scene, again)
    assert asked.id == request.id
    decision = await scene.store.consent.decision_of(request.id)
    assert decision is not None
    row = make_call(again, "call_1", decision_id=decision.id)
    await scene.store.runs.start_call(row, again.fence, events=(), now_us=scene.now_us)


@pytest.mark.spec("PER-13")
async def test_run_that_goes_on_may_park_again_over_its_other_question(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    first, second = await ask(scene, claim, "call_1", "call_2")
    assert await park(scene, claim, [first, second])
    await decide(scene, first)
    again = await scene.claim_one()

    assert await park(scene, again, [second])
    assert await decide(scene, second)
    assert (await scene.claim_one()).fence == claim.fence + 2


@pytest.mark.spec("PER-13")
async def test_what_was_parked_is_claimed_before_what_has_not_begun(scene: ContractHarness) -> None:
    await scene.task(make_step("parked"), make_step("asks_too"))
    claims = await scene.claim()
    requests = [(await ask(scene, claim))[0] for claim in claims]
    for claim, request in zip(claims, requests, strict=True):
        assert await park(scene, claim, [request])
    await scene.task(make_step("urgent", priority=9), make_step("plain"))
    await decide(scene, requests[1])
    await decide(scene, requests[0])

    assert step_ids([await scene.claim_one()]) == ["parked"]
    assert step_ids(await scene.claim()) == ["asks_too", "urgent", "plain"]


@pytest.mark.spec("PER-13")
async def test_what_was_parked_goes_first_among_the_lanes_of_its_session(scene: ContractHarness) -> None:
    claim, request = await parked(scene)
    await scene.task(make_step("urgent", priority=9, definition="other"), make_step("late", definition="other"))
    await decide(scene, request)

    assert step_ids(await scene.claim()) == ["a", "urgent", "late"]
    assert claim.step_key.endswith("/a")


@pytest.mark.spec("DIS-10", "PER-13")
async def test_what_was_parked_does_not_go_before_another_sessions_turn(scene: ContractHarness) -> None:
    _, request = await parked(scene)
    await scene.task("elsewhere", own=await scene.another_session())
    await decide(scene, request)

    assert step_ids(await scene.claim()) == ["elsewhere", "a"]


async def test_next_attempt_of_a_step_that_was_parked_waits_its_turn(scene: ContractHarness) -> None:
    await scene.task("urgent", "asks")
    await scene.complete((await scene.claim())[0])
    await scene.task(make_step("retried", max_attempts=2))
    claim = await scene.claim_one()
    (request,) = await ask(scene, claim)
    assert await park(scene, claim, [request])
    await decide(scene, request)
    await scene.fail(await scene.claim_one())
    await scene.retry(claim.step_key)
    await scene.store.tasks.promote_due(scene.own, now_us=scene.now_us)
    await scene.task(make_step("new", priority=1))

    assert step_ids(await scene.claim()) == ["new", "retried"]


# -- both at once
@pytest.mark.spec("PER-13")
async def test_parking_and_deciding_at_once_lose_neither(scene: ContractHarness, open_another: OpenStore) -> None:
    """Whichever comes first: the call goes on at once, or the step is ready; it never stays parked (PER-13)."""
    await scene.task(*(f"s{number}" for number in range(8)))
    claims = await scene.claim()
    asked = [(await ask(scene, claim))[0] for claim in claims]
    workers, owner = await open_another(), await open_another()

    async def one(claim: Claim, request: PermissionRequest) -> tuple[bool, bool]:
        return await asyncio.gather(park(scene, claim, [request], store=workers), decide(scene, request, store=owner))

    outcomes = await asyncio.gather(*(one(*pair) for pair in zip(claims, asked, strict=True)))

    for claim, (has_parked, was_parked) in zip(claims, outcomes, strict=True):
        assert has_parked == was_parked
        status = (await scene.store.tasks.step(claim.step_key)).status
        assert status is (StepStatus.READY if has_parked else StepStatus.RUNNING)


@pytest.mark.spec("PER-13", "DAG-06")
async def test_parking_and_cancelling_at_once_leave_nothing_parked(
    scene: ContractHarness, open_another: OpenStore
) -> None:
    task = await scene.task(*(f"s{number}" for number in range(8)))
    claims = await scene.claim()
    asked = [(await ask(scene, claim))[0] for claim in claims]
    other = await open_another()

    cancel = scene.store.tasks.cancel_task(scene.own, task, reason="enough", now_us=scene.now_us)
    await asyncio.gather(
        cancel, *(park(scene, claim, [request], store=other) for claim, request in zip(claims, asked, strict=True))
    )

    stopping = {interrupt.step_key for interrupt in await scene.store.claims.interrupts(scene.worker)}
    for claim in claims:
        status = (await scene.store.tasks.step(claim.step_key)).status
        assert status is StepStatus.CANCELLED or (status is StepStatus.RUNNING and claim.step_key in stopping)


# -- what happens to those that wait
@pytest.mark.spec("DAG-06", "PER-15")
async def test_cancelled_task_ends_its_parked_runs_withdraws_their_questions_and_can_be_tried_again(
    scene: ContractHarness,
) -> None:
    claim, request = await parked(scene)
    task_id = claim.identity.task_id

    assert await scene.store.tasks.cancel_task(scene.own, task_id, reason="enough", now_us=scene.now_us) == frozenset()

    run = await scene.store.runs.run(claim.identity.run_id)
    assert (run.status, run.end_reason) == (RunStatus.CANCELLED, EndReason.CANCELLED)
    assert (await scene.store.tasks.step(claim.step_key)).status is StepStatus.CANCELLED
    assert (await scene.store.consent.request(request.id))[1] is RequestState.WITHDRAWN
    assert await scene.store.consent.pending(scene.own.session_id) == []
    told = await scene.event_types(run.id)
    assert told[-3:] == ["permission_withdrawn", "step_cancelled", "run_cancelled"]
    with pytest.raises(AlreadyDecidedError, match="withdrawn"):
        await decide(scene, request)

    await scene.retry_task(task_id)
    again = await scene.claim_one()
    assert (again.step_key, again.attempt) == (claim.step_key, 2)
    assert again.identity.run_id != claim.identity.run_id


@pytest.mark.spec("DAG-06", "PER-15")
async def test_step_cancelled_alone_withdraws_its_question_and_no_other(scene: ContractHarness) -> None:
    task = await scene.task("a", "b")
    claims = await scene.claim()
    mine, other = [(await ask(scene, claim))[0] for claim in claims]
    for claim, request in zip(claims, (mine, other), strict=True):
        assert await park(scene, claim, [request])
    change = TaskChange(cancelled=(claims[0].step_key,), reason="not needed")

    await scene.store.tasks.update_task(scene.own, task, change, now_us=scene.now_us)

    assert await scene.statuses(task) == {"a": StepStatus.CANCELLED, "b": StepStatus.BLOCKED}
    assert (await scene.store.consent.request(mine.id))[1] is RequestState.WITHDRAWN
    assert (await scene.store.consent.request(other.id))[1] is RequestState.PENDING


async def test_parked_step_is_cancelled_and_not_skipped_and_its_question_is_no_orphan(scene: ContractHarness) -> None:
    claim, request = await parked(scene)
    change = TaskChange(skipped=(claim.step_key,))

    with pytest.raises(InvalidTransitionError, match="blocked"):
        await scene.store.tasks.update_task(scene.own, claim.identity.task_id, change, now_us=scene.now_us)
    assert list(await scene.store.consent.withdraw_orphans(scene.own.session_id, now_us=scene.now_us)) == []
    assert [one.id for one in await scene.store.consent.pending(scene.own.session_id)] == [request.id]


@pytest.mark.spec("DAG-05", "PER-15")
async def test_failure_that_fails_the_task_ends_its_parked_runs(scene: ContractHarness) -> None:
    task = await scene.task("asks", make_step("fails", on_failure=FailurePolicy.FAIL_TASK))
    asks, fails = await scene.claim()
    (request,) = await ask(scene, asks)
    assert await park(scene, asks, [request])
    await scene.advance([failed(fails)])

    await scene.settle(fails.step_key, FailurePolicy.FAIL_TASK)

    assert (await scene.statuses(task))["asks"] is StepStatus.CANCELLED
    assert (await scene.store.consent.request(request.id))[1] is RequestState.WITHDRAWN
    assert await scene.finish(task) is TaskStatus.FAILED


@pytest.mark.spec("PER-13")
async def test_task_with_a_parked_run_goes_on(scene: ContractHarness) -> None:
    claim, request = await parked(scene, "a", "b")
    await scene.complete(await scene.claim_one())
    task_id = claim.identity.task_id

    assert await scene.finish(task_id) is None

    await decide(scene, request)
    await scene.complete(await scene.claim_one())
    assert await scene.finish(task_id) is TaskStatus.COMPLETED


async def test_task_that_is_failed_by_its_planner_ends_its_parked_runs(scene: ContractHarness) -> None:
    claim, request = await parked(scene)
    task_id = claim.identity.task_id

    await scene.store.tasks.end_task(scene.own, task_id, TaskEvent.FAIL, reason="no use", now_us=scene.now_us)

    assert (await scene.store.tasks.step(claim.step_key)).status is StepStatus.CANCELLED
    assert (await scene.store.consent.request(request.id))[1] is RequestState.WITHDRAWN


@pytest.mark.spec("PER-13")
async def test_paused_task_keeps_what_is_parked_and_what_may_go_on(scene: ContractHarness) -> None:
    claim, request = await parked(scene)
    task_id = claim.identity.task_id
    await scene.store.tasks.pause_task(scene.own, task_id, reason="lunch", now_us=scene.now_us)
    assert (await scene.store.tasks.step(claim.step_key)).status is StepStatus.BLOCKED

    await decide(scene, request)

    assert (await scene.store.tasks.step(claim.step_key)).status is StepStatus.READY
    assert await scene.claim() == ()
    await scene.store.tasks.resume_task(scene.own, task_id, now_us=scene.now_us)
    assert step_ids(await scene.claim()) == ["a"]


async def test_task_resumed_while_its_run_is_parked_lets_it_go_on_later(scene: ContractHarness) -> None:
    claim, request = await parked(scene)
    await scene.store.tasks.pause_task(scene.own, claim.identity.task_id, reason="lunch", now_us=scene.now_us)
    await scene.store.tasks.resume_task(scene.own, claim.identity.task_id, now_us=scene.now_us)

    await decide(scene, request)

    assert step_ids(await scene.claim()) == ["a"]


@pytest.mark.spec("DAG-06")
async def test_run_of_a_paused_or_cancelled_task_does_not_park(scene: ContractHarness) -> None:
    paused, stopped = await scene.start("a"), await scene.start("b")
    asked = [await ask(scene, claim) for claim in (paused, stopped)]
    await scene.store.tasks.pause_task(scene.own, paused.identity.task_id, reason="lunch", now_us=scene.now_us)
    await scene.store.tasks.cancel_task(scene.own, stopped.identity.task_id, reason="enough", now_us=scene.now_us)

    assert not await park(scene, paused, asked[0])
    assert not await park(scene, stopped, asked[1])
    assert len(await scene.store.claims.interrupts(scene.worker)) == 2


# -- a decision that nobody used in time
@pytest.mark.spec("PER-13")
async def test_decision_that_expired_leaves_its_call_to_be_asked_again_and_nothing_pending_expires(
    scene: ContractHarness,
) -> None:
    claim = await scene.start("a")
    (first,) = await ask(scene, claim)
    run_id, expire = claim.identity.run_id, scene.store.consent.expire_decision

    assert not await expire(run_id, "call_1", claim.fence, now_us=scene.now_us)
    with pytest.raises(LeaseLostError):
        await expire(run_id, "call_1", claim.fence - 1, now_us=scene.now_us)
    assert (await scene.store.consent.request(first.id))[1] is RequestState.PENDING
    await decide(scene, first)
    assert await expire(run_id, "call_1", claim.fence, now_us=scene.now_us)
    (second,) = await ask(scene, claim)

    assert second.id != first.id
    assert (await scene.store.consent.request(first.id))[1] is RequestState.EXPIRED
    assert (await scene.store.consent.request(second.id))[1] is RequestState.PENDING
    assert "permission_expired" in await scene.event_types(run_id)


@pytest.mark.spec("PER-13")
async def test_decision_that_was_used_does_not_expire(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    (request,) = await ask(scene, claim)
    await decide(scene, request)
    decision = await scene.store.consent.decision_of(request.id)
    assert decision is not None
    row = make_call(claim, "call_1", decision_id=decision.id)
    await scene.store.runs.start_call(row, claim.fence, events=(), now_us=scene.now_us)

    assert not await scene.store.consent.expire_decision(
        claim.identity.run_id, "call_1", claim.fence, now_us=scene.now_us
    )
    assert (await scene.store.consent.request(request.id))[1] is RequestState.DECIDED
