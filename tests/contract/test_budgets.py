import asyncio
import time
from datetime import timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from soong.orchestrator.operations.service import usage_totals
from soong.shared.core.errors import LeaseLostError
from soong.shared.core.timing import utc_date
from soong.shared.engine.runs.budgets import (
    DAY,
    TASK_LIMIT,
    Budget,
    BudgetSpentError,
    BudgetState,
    Charge,
    TaskLimitError,
    TaskTime,
    session_scope,
    task_scope,
)
from soong.shared.engine.runs.record import EndReason, UnsummedUsage, Usage, UsageBy
from soong.shared.engine.tasks.spec import FailurePolicy, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Claim, NewStep, StepEnd, StepError
from tests.contract.conftest import OpenStore
from tests.contract.scene import ContractHarness, completed
from tests.model.builders import make_step, make_task

DAY_US = 86_400_000_000
TODAY, TOMORROW = (utc_date(time.time_ns() // 1000 + days * DAY_US) for days in (0, 1))
CENT = Charge(1000, 10_000)


async def reserve(scene: ContractHarness, claim: Claim, number: int, charge: Charge = CENT) -> float | None:
    run_id = claim.identity.run_id
    return await scene.store.budgets.reserve(run_id, claim.fence, number, charge, day=TODAY)


async def settle(scene: ContractHarness, claim: Claim, number: int, charge: Charge = CENT) -> None:
    await scene.store.budgets.settle(claim.identity.run_id, claim.fence, number, charge)


async def limit(scene: ContractHarness, claim: Claim, *, tokens: int | None = None, cents: int | None = None) -> str:
    scope = session_scope(claim.identity.session_id)
    await scene.store.budgets.set_budget(scope, Budget(tokens, None if cents is None else cents * 10_000))
    return scope


async def state(scene: ContractHarness, scope: str, day: str = TODAY) -> BudgetState:
    return (await scene.store.budgets.budgets([scope], day=day))[scope]


@pytest.mark.spec("DIS-11")
async def test_without_a_budget_nothing_is_charged(scene: ContractHarness) -> None:
    claim = await scene.start("a")

    assert await reserve(scene, claim, 1) is None
    scope = await limit(scene, claim, cents=5)

    assert await state(scene, scope) == BudgetState(scope, Budget(None, 50_000), Charge(), Charge())


@pytest.mark.spec("DIS-11.a", "DIS-11")
async def test_a_request_is_charged_with_its_estimate_and_then_with_what_it_used(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    scope = await limit(scene, claim, cents=5, tokens=100_000)

    share = await reserve(scene, claim, 1)
    reserved = await state(scene, scope)
    await settle(scene, claim, 1, Charge(500, 7_000))

    assert share == pytest.approx(0.2)
    assert (reserved.used, reserved.reserved) == (Charge(), CENT)
    used = await state(scene, scope)
    assert (used.used, used.reserved) == (Charge(500, 7_000), Charge())


@pytest.mark.spec("DIS-11")
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"cents": 2}, "has used 0.02 of its budget of 0.02 USD"),
        ({"tokens": 1500}, "2,000 of its budget of 1,500 tokens"),
    ],
    ids=["money", "tokens"],
)
async def test_a_budget_that_is_used_up_permits_no_request(
    scene: ContractHarness, limits: dict[str, int], words: str
) -> None:
    claim = await scene.start("a")
    scope = await limit(scene, claim, **limits)
    for number in (1, 2):
        await reserve(scene, claim, number)
        await settle(scene, claim, number)

    with pytest.raises(BudgetSpentError, match=words):
        await reserve(scene, claim, 3)

    await limit(scene, claim, cents=1000)
    assert await reserve(scene, claim, 3) == pytest.approx(0.003)
    assert (await state(scene, scope)).used == Charge(2000, 20_000)


@pytest.mark.spec("DIS-11.b", "DIS-11")
async def test_a_budget_of_zero_permits_nothing_and_none_permits_everything(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    scope = await limit(scene, claim, cents=0)
    with pytest.raises(BudgetSpentError, match="budget of 0 USD"):
        await reserve(scene, claim, 1, Charge(0, 0))

    await scene.store.budgets.set_budget(scope, Budget())

    assert await reserve(scene, claim, 1) is None
    assert await scene.store.budgets.budgets([scope], day=TODAY) == {}


@pytest.mark.spec("DIS-11")
async def test_money_without_a_price_is_refused_and_tokens_are_not(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await limit(scene, claim, tokens=10_000)
    assert await reserve(scene, claim, 1, Charge(10, None)) == pytest.approx(0.001)

    await limit(scene, claim, cents=1)

    with pytest.raises(BudgetSpentError, match="no price is known"):
        await reserve(scene, claim, 2, Charge(10, None))


@pytest.mark.spec("DIS-11.a", "DIS-11")
async def test_the_day_is_one_for_all_sessions(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await scene.store.budgets.set_budget(DAY, Budget(None, 10_000))
    await reserve(scene, claim, 1)

    with pytest.raises(BudgetSpentError, match="the day has used"):
        await reserve(scene, claim, 2)
    await scene.store.budgets.reserve(claim.identity.run_id, claim.fence, 2, CENT, day=TOMORROW)

    assert (await state(scene, DAY)).reserved == CENT
    assert (await state(scene, DAY, TOMORROW)).reserved == CENT


@pytest.mark.spec("DIS-11")
async def test_twenty_requests_at_once_overspend_by_one_estimate(
    scene: ContractHarness, open_another: OpenStore
) -> None:
    names = [f"s{number}" for number in range(20)]
    await scene.task(*names)
    claims = await scene.claim(20)
    scope = await limit(scene, claims[0], cents=5)
    stores = [await open_another() for _ in range(4)]
    refused = 0

    async def ask(place: int, claim: Claim) -> None:
        nonlocal refused
        for number in range(1, 4):
            store = stores[place % 4].budgets
            try:
                await store.reserve(claim.identity.run_id, claim.fence, number, Charge(10, 15_000), day=TODAY)
            except BudgetSpentError:
                refused += 1
                return
            await store.settle(claim.identity.run_id, claim.fence, number, Charge(10, 15_000))

    await asyncio.gather(*(ask(place, claim) for place, claim in enumerate(claims)))

    found = await state(scene, scope)
    assert refused == 20
    assert found.reserved == Charge()
    assert found.used == Charge(40, 60_000)


@pytest.mark.spec("DIS-11")
async def test_what_a_dead_process_reserved_is_used_at_its_estimate(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    scope = await limit(scene, claim, cents=1)
    await reserve(scene, claim, 1)
    with pytest.raises(BudgetSpentError):
        await reserve(scene, claim, 2)

    await scene.release(claim)
    again = await scene.claim_one()

    found = await state(scene, scope)
    assert (found.reserved, found.used) == (Charge(), CENT)
    with pytest.raises(BudgetSpentError, match=r"has used 0\.01 of its budget of 0\.01 USD$"):
        await reserve(scene, again, 1)
    await limit(scene, claim, cents=100)
    await reserve(scene, again, 1)
    with pytest.raises(LeaseLostError):
        await reserve(scene, claim, 3, Charge())
    with pytest.raises(LeaseLostError):
        await settle(scene, claim, 1)
    await settle(scene, again, 1)
    used = (await state(scene, scope)).used
    assert (used.tokens, used.microusd) == (2 * CENT.tokens, 20_000)


# -- sums of what agents have used, over each store
async def used(scene: ContractHarness, *runs: tuple[str, Usage]) -> None:
    """Run one agent step for each (model, usage)."""
    for model, usage in runs:
        claim = await scene.start(make_step("a", model=model, definition="agent-of-" + model))
        await scene.advance([replace(completed(claim), usage=usage)])


def of(tokens: int, cost: str | None) -> Usage:
    return Usage(2, tokens, 10, 1, None if cost is None else Decimal(cost), 3)


@pytest.mark.spec("DIS-11")
async def test_sums_are_by_what_is_asked_for_and_unknown_prices_are_counted_apart(scene: ContractHarness) -> None:
    await used(scene, ("a", of(100, "0.5")), ("b", of(900, "0.0000001")), ("a", of(100, None)), ("c", Usage()))
    runs = scene.store.runs

    by_model = await usage_totals(runs, UsageBy.MODEL)
    (by_day,) = await usage_totals(runs, UsageBy.DAY)
    by_agent = await usage_totals(runs, UsageBy.AGENT)
    (by_session,) = await usage_totals(runs, UsageBy.SESSION, session_id=scene.own.session_id)

    assert [(one.key, one.runs, one.input_tokens, one.cost_usd, one.unpriced) for one in by_model] == [
        ("a", 2, 200, Decimal("0.5"), 1),
        ("b", 1, 900, Decimal("0.0000001"), 0),
    ]
    assert (by_day.runs, by_day.requests, by_day.output_tokens, by_day.cached_tokens, by_day.tool_calls) == (
        *(3, 6, 30, 9),
        3,
    )
    assert len(by_day.key) == len("2026-11-24")
    assert [one.key for one in by_agent] == ["agent-of-a", "agent-of-b"]
    assert (by_session.key, by_session.runs) == (scene.own.session_id, 3)
    assert len(await usage_totals(runs, UsageBy.TASK)) == 3


@pytest.mark.spec("DIS-11")
async def test_of_a_run_that_fell_back_each_model_has_its_part(scene: ContractHarness) -> None:
    parts = {"a": Usage(1, 40, 10, 0, None), "b": Usage(1, 60, 0, 1, Decimal("0.5"))}
    await used(scene, ("a", replace(of(100, None), by_model=parts)), ("b", of(1, "0.25")))

    by_model = await usage_totals(scene.store.runs, UsageBy.MODEL)
    by_agent = await usage_totals(scene.store.runs, UsageBy.AGENT)

    assert [(one.key, one.runs, one.input_tokens, one.cost_usd, one.unpriced) for one in by_model] == [
        ("b", 2, 61, Decimal("0.75"), 0),
        ("a", 1, 40, Decimal(0), 1),
    ]
    assert [(one.key, one.requests, one.unpriced) for one in by_agent] == [("agent-of-b", 2, 0), ("agent-of-a", 2, 1)]


@pytest.mark.spec("DIS-11")
async def test_runs_before_the_asked_time_and_of_other_sessions_are_left_out(scene: ContractHarness) -> None:
    await used(scene, ("a", of(1, "0")))
    (run,) = [run for run in await scene.store.runs.list_runs() if run.usage.requests]

    (counted,) = await usage_totals(scene.store.runs, UsageBy.MODEL, since_us=run.created_us)

    assert counted.input_tokens == 1
    assert await usage_totals(scene.store.runs, UsageBy.MODEL, since_us=run.created_us + 1) == []
    assert await usage_totals(scene.store.runs, UsageBy.MODEL, session_id="sess_other") == []


@pytest.mark.spec("DIS-11")
async def test_runs_under_way_and_requests_of_lost_processes_are_counted_apart(scene: ContractHarness) -> None:
    claim = await scene.start(make_step("a", model="a", definition="b"))
    await scene.store.budgets.set_budget(session_scope(claim.identity.session_id), Budget(100_000))
    for number in (1, 2):
        await scene.store.budgets.reserve(claim.identity.run_id, claim.fence, number, Charge(1000, 20_000), day=TODAY)
    await scene.store.budgets.settle(claim.identity.run_id, claim.fence, 2, Charge(10, 10))
    runs = scene.store.runs
    before = await runs.unsummed_usage()

    await scene.lost_fence(claim)

    assert before == UnsummedUsage(open_runs=1)
    after = await runs.unsummed_usage(session_id=scene.own.session_id)
    assert (after.lost_requests, after.lost_tokens, after.lost_microusd) == (1, 1000, 20_000)
    assert await runs.unsummed_usage(session_id="sess_other") == UnsummedUsage()


SECOND_US = 1_000_000
TURN = Charge(100, 10_000, 1)


async def limited(scene: ContractHarness, limits: Budget, *steps: NewStep | str) -> str:
    """Make a task with limits."""
    task = replace(make_task(scene.own.session_id, *(steps or ("a",))), limits=limits)
    await scene.store.tasks.create_task(task)
    return task.id


async def task_state(scene: ContractHarness, task_id: str) -> BudgetState:
    scope = task_scope(task_id)
    return (await scene.store.budgets.budgets([scope], day=TODAY))[scope]


def at_limit(claim: Claim, words: str = "it is reached") -> StepEnd:
    error = StepError(TASK_LIMIT, words)
    return replace(completed(claim), status=StepStatus.FAILED, end_reason=EndReason.TOKEN_LIMIT, error=error)


@pytest.mark.spec("DIS-07.e", "DIS-07.f", "DIS-07.g", "DIS-07")
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
    await reserve(scene, one, 1, TURN)
    await settle(scene, one, 1, TURN)
    await reserve(scene, two, 1, TURN)

    with pytest.raises(TaskLimitError, match=words) as refused:
        await reserve(scene, one, 2, TURN)

    assert (refused.value.end_reason, refused.value.code) == (reason, "limit_exceeded")
    assert await reserve(scene, other, 1, TURN) is None, "another task of the session has none"
    found = await task_state(scene, task_id)
    assert (found.used, found.reserved) == (TURN, TURN)


@pytest.mark.spec("DIS-07")
async def test_a_limit_in_money_needs_a_price(scene: ContractHarness) -> None:
    await limited(scene, Budget(microusd=20_000))
    claim = await scene.claim_one()

    with pytest.raises(TaskLimitError, match="no price is known"):
        await reserve(scene, claim, 1, Charge(10, None, 1))


@pytest.mark.spec("DIS-07")
async def test_a_request_without_an_answer_is_no_turn_and_the_limits_can_be_raised(scene: ContractHarness) -> None:
    task_id = await limited(scene, Budget(turns=1))
    claim = await scene.claim_one()
    await reserve(scene, claim, 1, TURN)
    await settle(scene, claim, 1, Charge())
    await reserve(scene, claim, 2, TURN)
    assert (await task_state(scene, task_id)).reserved == TURN

    await scene.store.budgets.set_budget(task_scope(task_id), Budget(turns=2, wall_us=SECOND_US))

    await reserve(scene, claim, 3, TURN)
    assert (await task_state(scene, task_id)).budget == Budget(turns=2, wall_us=SECOND_US)


@pytest.mark.spec("DIS-07")
async def test_what_ended_runs_have_used_counts_and_what_a_dead_process_reserved_does_not(
    scene: ContractHarness,
) -> None:
    task_id = await limited(scene, Budget(turns=3))
    claim = await scene.claim_one()
    await reserve(scene, claim, 1, TURN)
    await settle(scene, claim, 1, TURN)
    await reserve(scene, claim, 2, TURN)
    await scene.release(claim)
    again = await scene.claim_one()
    await reserve(scene, again, 1, TURN)
    await settle(scene, again, 1, TURN)
    await scene.fail(again)
    await scene.retry(again.step_key)
    await scene.store.tasks.promote_due(scene.own, now_us=scene.now_us)
    retried = await scene.claim_one()
    await reserve(scene, retried, 1, TURN)

    with pytest.raises(TaskLimitError):
        await reserve(scene, retried, 2, TURN)
    found = await task_state(scene, task_id)
    assert (found.used.turns, found.reserved.turns) == (2, 1)


@pytest.mark.spec("DIS-07")
async def test_a_charge_counts_for_the_task_its_session_and_the_day(scene: ContractHarness) -> None:
    task_id = await limited(scene, Budget(tokens=1000))
    claim = await scene.claim_one()
    scope = session_scope(scene.own.session_id)
    for name in (DAY, scope):
        await scene.store.budgets.set_budget(name, Budget(tokens=10_000))

    assert await reserve(scene, claim, 1, TURN) == pytest.approx(0.1)

    found = await scene.store.budgets.budgets([DAY, scope, task_scope(task_id)], day=TODAY)
    assert [one.reserved.tokens for one in found.values()] == [100, 100, 100]


# -- time
@pytest.mark.spec("DIS-07")
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
    assert (await task_state(scene, task_id)).started_us == started_us


@pytest.mark.spec("DIS-07")
async def test_a_task_without_limits_has_no_time_to_look_at(scene: ContractHarness) -> None:
    unlimited = await scene.task("a")
    in_turns = await limited(scene, Budget(turns=1), "b")
    await scene.claim()

    assert await scene.store.budgets.task_time(unlimited) is None
    assert await scene.store.budgets.task_time(in_turns) == TaskTime(None, None)


@pytest.mark.spec("DIS-07")
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
@pytest.mark.spec("DIS-07", "DAG-05")
async def test_a_task_fails_for_the_limit_though_the_failure_of_its_step_is_kept(scene: ContractHarness) -> None:
    task_id = await limited(scene, Budget(tokens=1), make_step("a", on_failure=FailurePolicy.KEEP))
    await scene.advance([at_limit(claim) for claim in await scene.claim(1)])

    await scene.store.tasks.stop_task(scene.own, task_id, reason="it is reached", now_us=scene.now_us)

    assert await scene.finish(task_id) is TaskStatus.FAILED
    assert (await scene.store.tasks.task(task_id)).reason == "it is reached"


@pytest.mark.spec("DIS-07")
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


@pytest.mark.spec("DIS-07")
async def test_a_limit_of_a_run_alone_stops_no_task(scene: ContractHarness) -> None:
    task_id = await limited(scene, Budget(tokens=100), "a", "b")
    claim = await scene.claim_one()
    end = replace(at_limit(claim), error=StepError("token_limit", "the run has used 5 of its 5 tokens"))
    await scene.advance([end])

    time = await scene.store.budgets.task_time(task_id)

    assert time == TaskTime(None, None)


@pytest.mark.spec("DIS-07")
async def test_a_retry_gives_the_time_again_and_keeps_what_was_used(scene: ContractHarness) -> None:
    task_id = await limited(scene, Budget(turns=2, wall_us=SECOND_US))
    claim = await scene.claim_one()
    await reserve(scene, claim, 1, TURN)
    await settle(scene, claim, 1, TURN)
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
    assert (await task_state(scene, task_id)).used == TURN


@pytest.mark.spec("DIS-07")
async def test_a_task_that_has_ended_is_not_stopped(scene: ContractHarness) -> None:
    task_id = await limited(scene, Budget(tokens=1))
    await scene.complete(await scene.claim_one())
    await scene.finish(task_id)

    await scene.store.tasks.stop_task(scene.own, task_id, reason="late", now_us=scene.now_us)

    assert (await scene.store.tasks.task(task_id)).status is TaskStatus.COMPLETED
    time = await scene.store.budgets.task_time(task_id)
    assert time == TaskTime(None, None)
