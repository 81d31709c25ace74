"""How what agents have used is shown."""

from decimal import Decimal

import pytest

from soong.orchestrator.cli.usage import _cost, _left_out
from soong.orchestrator.schemas.worker import UsageSum, UsageSums
from soong.shared.engine.runs.record import UnsummedUsage, UsageBy, UsageTotal

pytestmark = pytest.mark.spec("DIS-11")


def sums(unsummed: UnsummedUsage) -> dict[str, object]:
    return UsageSums.of_totals(UsageBy.DAY, [], unsummed).model_dump()


def test_an_unknown_price_is_not_zero() -> None:
    total = UsageTotal("m", runs=2, cost_usd=Decimal("0.25"), unpriced=1)

    assert _cost(UsageSum.of(total).model_dump()) == "$0.2500, 1 runs without a known price"
    assert _cost(UsageSum.of(UsageTotal("m", runs=1, unpriced=1)).model_dump()) == "1 runs without a known price"
    assert UsageSum.of(total).model_dump()["cost_usd"] == "0.25"


def test_what_no_sum_has_is_named() -> None:
    assert list(_left_out(sums(UnsummedUsage()))) == []
    assert list(_left_out(sums(UnsummedUsage(2, 3, 4200, 12_500)))) == [
        "not counted: 2 runs under way or parked",
        "in addition, estimated: 3 requests whose process died or was cancelled: 4,200 tokens, 0.0125 USD",
    ]
