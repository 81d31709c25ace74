import time
from datetime import timedelta

import pytest
from msgspec.structs import replace

from soong.shared.core.timing import utc_date
from soong.shared.engine.runs.budgets import (
    DAY,
    TASK_LIMIT,
    Budget,
    BudgetState,
    Charge,
    TaskLimitError,
    TaskTime,
    session_scope,
    task_scope,
)
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Claim, StepEnd, StepError
from tests.contract.scene import ContractHarness, completed
from tests.model.builders import make_task

pytestmark = pytest.mark.spec("DIS-07")

TODAY = utc_date(time.time_ns() // 1000)
SECOND_US = 1_000_000
TURN = Charge(100, 10_000, 1)


async def limited(scene: ContractHarness, limits: Budget, *steps: str) -> str:
    """Make a task with limits."""
    task = replace(make_task(scene.own.session_id, *(steps or ("a",))), limits=limits)
    await scene.store.tasks.create_task(task)
    return task.id


async def reserve(scene: ContractHarness, claim: Claim, number: int, charge: Charge = TURN) -> float | None:
    run_id = claim.identity.run_id
    return await scene.store.budgets.reserve(run_id, claim.fence, number, charge, day=TODAY)


async def settle(scene: ContractHarness, claim: Claim, number: int, charge: Charge = TURN) -> None:
    await scene.store.budgets.settle(claim.identity.run_id, claim.fence, number, charge)


async def state(scene: ContractHarness, task_id: str) -> BudgetState:
    scope = task_scope(task_id)
    return (await scene.store.budgets.budgets([scope], day=TODAY))[scope]


def at_limit(claim: Claim, words: str = "it is reached") -> StepEnd:
    error = StepError(TASK_LIMIT, words)
    return replace(completed(claim), status=StepStatus.FAILED, end_reason=EndReason.TOKEN_LIMIT, error=error)


@pytest.mark.spec("DIS-07.e", "DIS-07.f", "DIS-07.g")
@pytest.mark.parametrize(
    ("limits", "words", "reason"),
    [
        (Budget(turns=2), "its limit max_turns: 2 of 2 model turns are used", EndReason.MAX_TURNS),
        (
            Budget(tokens=150),
            "its limit tokens: 100 of 150 tokens are used; requests under way reserve 100",
            EndReason.TOKEN_LIMIT,
        ),
        (
            Budget(microusd=20_000),
            "its limit cost_usd: 0.01 of 0.02 USD are used; requests under way reserve 0.01",
            EndReason.COST_LIMIT,
        ),
    ],
    ids=["turns", "tokens", "money"],
)
async def test_a_limit_counts_what_all_runs_of_the_task_use(
    scene: ContractHarness, limits: Budget, words: str, reason: EndReason
) -> None:
    task_id = await limited(scene, limits, "a", "b")
    await scene.task("other")
    one, two, other = await scene.claim()
    await reserve(scene, one, 1)
    await settle(scene, one, 1)
    await reserve(scene, two, 1)

    with pytest.raises(TaskLimitError, match=words) as refused:
        await reserve(scene, one, 2)

    assert (refused.value.end_reason, refused.value.code) == (reason, "limit_exceeded")
    assert await reserve(scene, other, 1) is None, "another task of the session has none"
    found = await state(scene, task_id)
    assert (found.used, found.reserved) == (TURN, TURN)


async def test_a_limit_in_money_needs_a_price(scene: ContractHarness) -> None:
    await limited(scene, Budget(microusd=20_000))
    claim = await scene.claim_one()

    with pytest.raises(TaskLimitError, match="no price is known"):
        await reserve(scene, claim, 1, Charge(10, None, 1))


async def test_a_request_without_an_answer_is_no_turn_and_the_limits_can_be_raised(scene: ContractHarness) -> None:
    task_id = await limited(scene, Budget(turns=1))
    claim = await scene.claim_one()
    await reserve(scene, claim, 1)
    await settle(scene, claim, 1, Charge())
    await reserve(scene, claim, 2)
    assert (await state(scene, task_id)).reserved == TURN

    await scene.store.budgets.set_budget(task_scope(task_id), Budget(turns=2, wall_us=SECOND_US))

    await reserve(scene, claim, 3)
    assert (await state(scene, task_id)).budget == Budget(turns=2, wall_us=SECOND_US)


async def test_what_ended_runs_have_used_counts_and_what_a_dead_process_reserved_does_not(
    scene: ContractHarness,
) -> None:
    task_id = await limited(scene, Budget(turns=3))
    claim = await scene.claim_one()
    await reserve(scene, claim, 1)
    await settle(scene, claim, 1)
    await reserve(scene, claim, 2)
    await scene.release(claim)
    again = await scene.claim_one()
    await reserve(scene, again, 1)
    await settle(scene, again, 1)
    await scene.fail(again)
    await scene.retry(again.step_key)
    await scene.store.tasks.promote_due(scene.own, now_us=scene.now_us)
    retried = await scene.claim_one()
    await reserve(scene, retried, 1)

    with pytest.raises(TaskLimitError):
        await reserve(scene, retried, 2)
    found = await state(scene, task_id)
    assert (found.used.turns, found.reserved.turns) == (2, 1)


async def test_a_charge_counts_for_the_task_its_session_and_the_day(scene: ContractHarness) -> None:
    task_id = await limited(scene, Budget(tokens=1000))
    claim = await scene.claim_one()
    scope = session_scope(scene.own.session_id)
    for name in (DAY, scope):
        await scene.store.budgets.set_budget(name, Budget(tokens=10_000))

    assert await reserve(scene, claim, 1) == pytest.approx(0.1)

    found = await scene.store.budgets.budgets([DAY, scope, task_scope(task_id)], day=TODAY)
    assert [one.reserved.tokens for one in found.values()] == [100, 100, 100]


# -- time
async def test_the_time_of_a_task_starts_with_its_first_step(scene: ContractHarness) -> None:
    task_id = await limited(scene, Budget(wall_us=SECOND_US), "a", "b")
    before = await scene.store.budgets.task_time(task_id)
    scene.clock.advance(timedelta(seconds=5))
    started_us = scene.now_us
    await scene.claim_one()
    scene.clock.advance(timedelta(seconds=0.5))
    await scene.claim_one()

    after = await scene.store.budgets.task_time(task_id)

    assert before == TaskTime(SECOND_US, None)
    assert after == TaskTime(SECOND_US, started_us + SECOND_US)
    assert (await state(scene, task_id)).started_us == started_us


async def test_a_task_without_limits_has_no_time_to_look_at(scene: ContractHarness) -> None:
    unlimited = await scene.task("a")
    in_turns = await limited(scene, Budget(turns=1), "b")
    await scene.claim()

    assert await scene.store.budgets.task_time(unlimited) is None
    assert await scene.store.budgets.task_time(in_turns) == TaskTime(None, None)


async def test_a_task_whose_time_is_over_is_stopped_while_steps_of_it_wait(scene: ContractHarness) -> None:
    task_id = await limited(scene, Budget(wall_us=SECOND_US), "a", "b")
    await limited(scene, Budget(turns=1), "c")
    owner = scene.own.owner_id
    (claim,) = await scene.claim(1)
    at_once = await scene.store.budgets.stopped_tasks(owner, now_us=scene.now_us)
    scene.clock.advance(timedelta(seconds=1))

    (found,) = await scene.store.budgets.stopped_tasks(owner, now_us=scene.now_us)
    of_another = await scene.store.budgets.stopped_tasks("own_other", now_us=scene.now_us)
    await scene.store.tasks.stop_task(scene.own, task_id, reason=found.reason, now_us=scene.now_us)

    assert (list(at_once), list(of_another)) == ([], [])
    assert (found.session_id, found.task_id) == (scene.own.session_id, task_id)
    assert found.reason == "the task has reached its limit wall_s: its 1 s have passed"
    assert await scene.statuses(task_id) == {"a": StepStatus.RUNNING, "b": StepStatus.CANCELLED}
    assert list(await scene.store.budgets.stopped_tasks(owner, now_us=scene.now_us)) == [], "nothing waits"
    await scene.release(claim)
    (again,) = await scene.store.budgets.stopped_tasks(owner, now_us=scene.now_us)
    assert again == found, "what is handed back after the stop is cancelled, too"


# -- the stop
async def test_a_stopped_task_fails_for_the_limit_once_what_is_held_has_ended(scene: ContractHarness) -> None:
    task_id = await limited(scene, Budget(tokens=1), "a", "b", "c")
    one, two = await scene.claim(2)
    await scene.advance([at_limit(one)])
    reached = await scene.store.budgets.task_time(task_id)

    await scene.store.tasks.stop_task(scene.own, task_id, reason="it is reached", now_us=scene.now_us)
    await scene.store.tasks.stop_task(scene.own, task_id, reason="said again", now_us=scene.now_us)
    is_open = await scene.finish(task_id)
    interrupts = await scene.store.claims.interrupts(scene.worker)
    await scene.complete(two)
    status = await scene.finish(task_id)

    assert reached == TaskTime(None, None, "it is reached"), "before its owner has looked"
    assert (is_open, list(interrupts), status) == (None, [], TaskStatus.FAILED)
    assert (await scene.store.tasks.task(task_id)).reason == "it is reached"
    assert await scene.statuses(task_id) == {
        "a": StepStatus.FAILED,
        "b": StepStatus.COMPLETED,
        "c": StepStatus.CANCELLED,
    }
    stopped = await scene.store.budgets.task_time(task_id)
    assert stopped == TaskTime(None, None, "it is reached")


async def test_a_limit_of_a_run_alone_stops_no_task(scene: ContractHarness) -> None:
    task_id = await limited(scene, Budget(tokens=100), "a", "b")
    claim = await scene.claim_one()
    end = replace(at_limit(claim), error=StepError("token_limit", "the run has used 5 of its 5 tokens"))
    await scene.advance([end])

    time = await scene.store.budgets.task_time(task_id)

    assert time == TaskTime(None, None)


async def test_a_retry_gives_the_time_again_and_keeps_what_was_used(scene: ContractHarness) -> None:
    task_id = await limited(scene, Budget(turns=2, wall_us=SECOND_US))
    claim = await scene.claim_one()
    await reserve(scene, claim, 1)
    await settle(scene, claim, 1)
    await scene.advance([at_limit(claim)])
    await scene.store.tasks.stop_task(scene.own, task_id, reason="it is reached", now_us=scene.now_us)
    await scene.finish(task_id)
    scene.clock.advance(timedelta(seconds=60))

    await scene.retry_task(task_id)
    before = await scene.store.budgets.task_time(task_id)
    scene.clock.advance(timedelta(seconds=60))
    await scene.claim_one()

    assert before == TaskTime(SECOND_US, None)
    after = await scene.store.budgets.task_time(task_id)
    assert after == TaskTime(SECOND_US, scene.now_us + SECOND_US)
    assert (await state(scene, task_id)).used == TURN


async def test_a_task_that_has_ended_is_not_stopped(scene: ContractHarness) -> None:
    task_id = await limited(scene, Budget(tokens=1))
    await scene.complete(await scene.claim_one())
    await scene.finish(task_id)

    await scene.store.tasks.stop_task(scene.own, task_id, reason="late", now_us=scene.now_us)

    assert (await scene.store.tasks.task(task_id)).status is TaskStatus.COMPLETED
    time = await scene.store.budgets.task_time(task_id)
    assert time == TaskTime(None, None)
