"""The cost of model requests: the price of an answer, and the estimate that is charged beforehand (DIS-11).

Prices are those of the model library's data unless the configuration has its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Protocol

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.usage import RequestUsage

from soong.shared.agents.compaction import tokens_of
from soong.shared.agents.definition import AgentLimits, Price
from soong.shared.agents.model import SCRIPT
from soong.shared.core.timing import Clock, utc_date
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import MICRO, WARN_AT, BudgetStore, Charge
from soong.shared.engine.runs.record import EndReason, Usage

USUAL_ANSWER_TOKENS: Final = 4096
"""The estimate for an answer without a limit of its own."""

NEARLY_SPENT: Final = "What this session or task may use is nearly used up. Finish soon: report what you have."


class Reserved(Value):
    """A request that was charged. ``share`` is the largest part of a budget that is charged by now."""

    number: int
    share: float


class Spending(Protocol):
    """The budgets of a run, under its fence."""

    async def reserve(self, charge: Charge) -> Reserved | None:
        """Charge a request before it is sent; None where no budget concerns the run.
        Raises: BudgetSpentError, a budget is used up; LeaseLostError, the run is no longer ours.
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
    """Return the estimate of a request: the last input, the messages since, and the longest answer."""
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


def _micro(usd: Decimal | None) -> int | None:
    """Return millionths of a dollar, rounded up: many small requests are not free."""
    return None if usd is None else int((usd * MICRO).to_integral_value(rounding="ROUND_CEILING"))


def limit_reached(used: Usage, limits: AgentLimits, model: str) -> tuple[EndReason, str] | None:
    """Return how a run ends that has used this much, and why in words; None: it may ask its model again.

    A limit in money ends a run whose model has no known price: unknown is not zero.
    """
    tokens = used.input_tokens + used.output_tokens
    if limits.tokens is not None and tokens >= limits.tokens:
        return EndReason.TOKEN_LIMIT, f"the run has used {tokens} of its {limits.tokens} tokens"
    if limits.cost_usd is None:
        return None
    if used.cost_usd is None:
        words = f"no price is known for the model {model!r}, so its limit of {limits.cost_usd} USD cannot be kept"
        return EndReason.COST_LIMIT, words
    if used.cost_usd >= Decimal(str(limits.cost_usd)):
        return EndReason.COST_LIMIT, f"the run has used {used.cost_usd} of its {limits.cost_usd} USD"
    return None


def warning(before: Usage, used: Usage, limits: AgentLimits) -> str:
    """Return the note for an agent whose answer took it past 80 % of a limit; empty otherwise."""
    if limits.tokens is None and limits.cost_usd is None:
        return ""
    if _share(before, limits) < WARN_AT <= _share(used, limits):
        return f"You have used {WARN_AT:.0%} of what this run may use. Finish soon: report what you have."
    return ""


def _share(used: Usage, limits: AgentLimits) -> float:
    """Return the part of the nearest limit that is used; 0 without limits."""
    shares = [0.0]
    if limits.tokens:
        shares.append((used.input_tokens + used.output_tokens) / limits.tokens)
    if limits.cost_usd and used.cost_usd is not None:
        shares.append(float(used.cost_usd) / limits.cost_usd)
    return max(shares)


@dataclass(slots=True)
class StoredBudget:
    """Implements :class:`Spending`."""

    store: BudgetStore
    clock: Clock
    run_id: str
    fence: int
    _sent: int = 0

    async def reserve(self, charge: Charge) -> Reserved | None:
        self._sent += 1
        number = self._sent
        share = await self.store.reserve(self.run_id, self.fence, number, charge, day=utc_date(self.clock.now_us()))
        return None if share is None else Reserved(number, share)

    async def settle(self, reserved: Reserved, charge: Charge) -> None:
        await self.store.settle(self.run_id, self.fence, reserved.number, charge)
