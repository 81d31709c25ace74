"""Limits of a run in tokens and money: the answer that reaches one is the last."""

from decimal import Decimal

import pytest

from soong.shared.agents.definition import AgentLimits
from soong.shared.agents.requests import limit_reached, warning
from soong.shared.engine.runs.record import EndReason, Usage


def used(tokens: int, cost: str | None = "0") -> Usage:
    return Usage(1, tokens, 0, 0, None if cost is None else Decimal(cost))


@pytest.mark.spec("DIS-07.b", "DIS-07.c")
@pytest.mark.parametrize(
    ("usage", "limits", "reason"),
    [
        (used(10**9, "10000"), AgentLimits(), None),
        (used(99), AgentLimits(tokens=100), None),
        (used(100), AgentLimits(tokens=100), EndReason.TOKEN_LIMIT),
        (used(0), AgentLimits(tokens=0), EndReason.TOKEN_LIMIT),
        (used(0, "0.09"), AgentLimits(cost_usd=0.1), None),
        (used(0, "0.1"), AgentLimits(cost_usd=0.1), EndReason.COST_LIMIT),
        (used(0, "0"), AgentLimits(cost_usd=0), EndReason.COST_LIMIT),
        (used(0, None), AgentLimits(cost_usd=0.1), EndReason.COST_LIMIT),
        (used(0, None), AgentLimits(tokens=100), None),
    ],
)
def test_a_run_ends_when_it_has_used_what_it_may(usage: Usage, limits: AgentLimits, reason: EndReason | None) -> None:
    reached = limit_reached(usage, limits, "test:model")

    assert (reached and reached[0]) == reason


@pytest.mark.spec("DIS-07.c")
def test_an_unknown_price_is_named() -> None:
    reached = limit_reached(used(5, None), AgentLimits(cost_usd=2), "acme:large")

    assert reached is not None
    assert "no price is known for the model 'acme:large'" in reached[1]


@pytest.mark.spec("DIS-07")
def test_an_agent_is_told_once_at_80_percent() -> None:
    limits = AgentLimits(tokens=100, cost_usd=1)

    told = [warning(used(a), used(b), limits) for a, b in ((0, 79), (79, 80), (80, 95))]
    by_cost = warning(used(0, "0.1"), used(0, "0.9"), limits)

    assert [bool(one) for one in told] == [False, True, False]
    assert "80%" in by_cost.replace(" ", "")
    assert warning(used(0), used(10**9), AgentLimits()) == ""
