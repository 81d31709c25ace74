"""What an agent of others is charged."""

from typing import Any, cast

import pytest
from acp import schema

from soong.shared.agents.charging import Spending
from soong.shared.agents.definition import AgentLimits
from soong.shared.engine.runs.budgets import Charge
from soong.worker.acp.meter import UsageMeter


class Charges:
    """Budgets without an end that remember what is charged."""

    def __init__(self) -> None:
        self.settled: list[Charge] = []

    async def reserve(self, _charge: Charge) -> object:
        return object()

    async def settle(self, _reserved: object, now: Charge) -> None:
        self.settled.append(now)


@pytest.mark.spec("DIS-11.a", "ACP-01.c")
async def test_less_than_a_millionth_of_a_dollar_is_charged_as_one() -> None:
    charges = Charges()
    meter = UsageMeter(AgentLimits(), cast(Spending, cast(Any, charges)))
    await meter.begin(0)

    meter.tell(
        schema.UsageUpdate(session_update="usage_update", used=1, size=10, cost={"amount": 1e-7, "currency": "USD"})
    )
    await meter.charge(1)

    assert [one.microusd for one in charges.settled] == [1]
