"""What agents have used, added up."""

from dataclasses import replace
from decimal import Decimal

import pytest

from soong.orchestrator.cli.usage import _cost
from soong.orchestrator.client.usage import UsageBy, UsageTotal, usage_totals
from soong.orchestrator.schemas.usage import UsageSum
from soong.shared.engine.runs.record import Run, Usage
from tests.model.builders import make_step, open_session, open_task
from tests.model.memory import MemoryStore

pytestmark = pytest.mark.spec("DIS-11")
DAY_US = 86_400 * 1_000_000


async def store_with(*used: tuple[str, int, str | None]) -> MemoryStore:
    """Return a store with one ended run for each (model, tokens, cost), the last two of them a day later."""
    store = MemoryStore()
    own = await open_session(store)
    for number, (model, tokens, cost) in enumerate(used):
        task_id = await open_task(store, own, make_step(f"s{number}"))
        run = next(run for run in store.rows.runs.values() if run.identity.step_key == f"{task_id}/s{number}")
        price = None if cost is None else Decimal(cost)
        store.rows.runs[run.id] = replace(
            run,
            identity=replace(run.identity, model=model, definition="agent-of-" + model),
            usage=Usage(2, tokens, 10, 1, price),
            created_us=run.created_us + (DAY_US if number >= len(used) - 2 else 0),
        )
    return store


async def test_sums_are_by_what_is_asked_for_and_unknown_prices_are_counted_apart() -> None:
    store = await store_with(("a", 100, "0.5"), ("b", 900, "0.1"), ("a", 100, None))

    by_model = await usage_totals(store.runs, UsageBy.MODEL)
    by_day = await usage_totals(store.runs, UsageBy.DAY)
    by_agent = await usage_totals(store.runs, UsageBy.AGENT)

    assert [(one.key, one.runs, one.input_tokens, one.cost_usd, one.unpriced) for one in by_model] == [
        ("a", 2, 200, Decimal("0.5"), 1),
        ("b", 1, 900, Decimal("0.1"), 0),
    ]
    assert [(one.runs, one.requests, one.output_tokens) for one in by_day] == [(2, 4, 20), (1, 2, 10)]
    assert [one.key for one in by_agent] == ["agent-of-a", "agent-of-b"]


async def test_of_a_run_that_fell_back_each_model_has_its_part() -> None:
    store = await store_with(("a", 100, "0.5"))
    ((run_id, run),) = [(run.id, run) for run in store.rows.runs.values() if run.usage.requests]
    parts = {"a": Usage(1, 40, 10, 0, None), "b": Usage(1, 60, 0, 1, Decimal("0.5"))}
    store.rows.runs[run_id] = replace(run, usage=replace(run.usage, cost_usd=None, by_model=parts))

    by_model = await usage_totals(store.runs, UsageBy.MODEL)
    (by_agent,) = await usage_totals(store.runs, UsageBy.AGENT)

    assert [(one.key, one.input_tokens, one.cost_usd, one.unpriced) for one in by_model] == [
        ("b", 60, Decimal("0.5"), 0),
        ("a", 40, 0, 1),
    ]
    assert (by_agent.runs, by_agent.requests, by_agent.unpriced) == (1, 2, 1)


async def test_runs_before_the_asked_time_and_of_other_sessions_are_left_out() -> None:
    store = await store_with(("a", 1, "0"), ("a", 2, "0"), ("a", 4, "0"))
    runs: list[Run] = list(store.rows.runs.values())
    latest_us = max(run.created_us for run in runs)

    (late,) = await usage_totals(store.runs, UsageBy.MODEL, since_us=latest_us)
    nothing = await usage_totals(store.runs, UsageBy.MODEL, session_id="sess_other")

    assert late.input_tokens == 6
    assert nothing == []


def test_an_unknown_price_is_not_zero() -> None:
    total = UsageTotal("m", runs=2, cost_usd=Decimal("0.25"), unpriced=1)

    assert _cost(total) == "$0.2500, 1 runs without a known price"
    assert _cost(UsageTotal("m", runs=1, unpriced=1)) == "1 runs without a known price"
    assert UsageSum.of(total).model_dump()["cost_usd"] == "0.25"
