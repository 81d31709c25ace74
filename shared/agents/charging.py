"""What model requests cost: the price of an answer, and the estimate that is charged beforehand (DIS-11).

Prices are those of the model library's data unless the configuration has its own.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, Protocol

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.usage import RequestUsage

from soong.shared.agents.compaction import tokens_of
from soong.shared.agents.definition import Price
from soong.shared.agents.model import SCRIPT
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import MICRO, Charge
from soong.shared.engine.runs.record import Usage

USUAL_ANSWER_TOKENS: Final = 4096
"""What an answer is estimated with that has no limit of its own."""


class Reserved(Value):
    """A request that was charged. ``share`` is the largest part of a budget that is charged by now."""

    number: int
    share: float


class Spending(Protocol):
    """The budgets of a run, under its fence."""

    async def reserve(self, charge: Charge) -> Reserved | None:
        """Charge a request before it is sent; None where no budget concerns the run.

        Raises:
            BudgetSpentError: a budget is used up.
            LeaseLostError: the run is no longer ours.
        """
        ...

    async def settle(self, reserved: Reserved, charge: Charge) -> None:
        """Put what it used in the place of its estimate. Raises: LeaseLostError."""
        ...


def price_of(answer: ModelResponse, own: Price | None = None) -> Decimal | None:
    """Return what an answer cost in US dollars; None when no price is known."""
    if answer.model_name == SCRIPT:
        return Decimal(0)
    if own is not None:
        return own.of(answer.usage.input_tokens, answer.usage.output_tokens)
    try:
        return answer.cost().total_price
    except (LookupError, ValueError, AssertionError):
        return None


def estimate(messages: Sequence[ModelMessage], model: Model[Any], most_tokens: int | None, own: Price | None) -> Charge:
    """Return what a request may use: what was read last, what is new since, and the longest answer."""
    answers = [place for place, message in enumerate(messages) if isinstance(message, ModelResponse)]
    last = messages[answers[-1]] if answers else None
    known = last.usage.input_tokens + last.usage.output_tokens if isinstance(last, ModelResponse) else 0
    new = messages[answers[-1] + 1 :] if answers else messages
    used = RequestUsage(input_tokens=known + tokens_of(new), output_tokens=most_tokens or USUAL_ANSWER_TOKENS)
    answer = ModelResponse(parts=[], usage=used, model_name=model.model_name, provider_name=model.system)
    return Charge(used.input_tokens + used.output_tokens, _micro(price_of(answer, own)))


def charge_of(used: Usage, turns: int = 0) -> Charge:
    """Return what a request is charged with that used this much."""
    return Charge(used.input_tokens + used.output_tokens, _micro(used.cost_usd), turns)


def total(charges: Sequence[Charge]) -> Charge:
    """Return the sum of charges; an unknown price makes the sum's unknown."""
    prices = [one.microusd for one in charges]
    known = [price for price in prices if price is not None]
    micro = sum(known) if len(known) == len(prices) else None
    return Charge(sum(one.tokens for one in charges), micro, sum(one.turns for one in charges))


def _micro(usd: Decimal | None) -> int | None:
    """Return millionths of a dollar, rounded up: many small requests are not free."""
    return None if usd is None else int((usd * MICRO).to_integral_value(rounding="ROUND_CEILING"))
