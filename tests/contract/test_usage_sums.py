"""Sums of what agents have used, over each store."""

from decimal import Decimal

import pytest
from msgspec.structs import replace

from soong.orchestrator.client.workers import usage_totals
from soong.shared.engine.runs.budgets import Budget, Charge, session_scope
from soong.shared.engine.runs.record import UnsummedUsage, Usage, UsageBy
from tests.contract.scene import ContractHarness, completed
from tests.model.builders import make_step

pytestmark = pytest.mark.spec("DIS-11")


async def used(scene: ContractHarness, *runs: tuple[str, Usage]) -> None:
    """Run one agent step for each (model, usage)."""
    for model, usage in runs:
        claim = await scene.start(make_step("a", model=model, definition="agent-of-" + model))
        await scene.advance([replace(completed(claim), usage=usage)])


def of(tokens: int, cost: str | None) -> Usage:
    return Usage(2, tokens, 10, 1, None if cost is None else Decimal(cost), 3)


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


async def test_runs_before_the_asked_time_and_of_other_sessions_are_left_out(scene: ContractHarness) -> None:
    await used(scene, ("a", of(1, "0")))
    (run,) = [run for run in await scene.store.runs.list_runs() if run.usage.requests]

    (counted,) = await usage_totals(scene.store.runs, UsageBy.MODEL, since_us=run.created_us)

    assert counted.input_tokens == 1
    assert await usage_totals(scene.store.runs, UsageBy.MODEL, since_us=run.created_us + 1) == []
    assert await usage_totals(scene.store.runs, UsageBy.MODEL, session_id="sess_other") == []


async def test_runs_under_way_and_requests_of_lost_processes_are_counted_apart(scene: ContractHarness) -> None:
    claim = await scene.start(make_step("a", model="a", definition="b"))
    await scene.store.budgets.set_budget(session_scope(claim.identity.session_id), Budget(100_000))
    for number in (1, 2):
        await scene.store.budgets.reserve(
            claim.identity.run_id, claim.fence, number, Charge(1000, 20_000), day="2026-11-24"
        )
    await scene.store.budgets.settle(claim.identity.run_id, claim.fence, 2, Charge(10, 10))
    runs = scene.store.runs
    before = await runs.unsummed_usage()

    await scene.lost_fence(claim)

    assert before == UnsummedUsage(open_runs=1)
    after = await runs.unsummed_usage(session_id=scene.own.session_id)
    assert (after.lost_requests, after.lost_tokens, after.lost_microusd) == (1, 1000, 20_000)
    assert await runs.unsummed_usage(session_id="sess_other") == UnsummedUsage()
