"""What a foreign agent has used, as far as it tells, and the limits that end its run (DIS-07, DIS-11).

Turns are counted here. Tokens are reported at the end of a prompt and costs while it runs, by agents that do so: a
limit in what an agent does not report ends nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from acp import schema
from pydantic_ai.usage import RequestUsage

from soong.shared.agents.charging import Reserved, Spending
from soong.shared.agents.definition import AgentLimits
from soong.shared.engine.runs.budgets import MICRO, BudgetSpentError, Charge
from soong.shared.engine.runs.events import Node
from soong.shared.engine.runs.record import Usage
from soong.shared.engine.runs.status import EndReason
from soong.worker.acp.narrative import usage_of_node

MOST_USD: Final = Decimal(1_000_000)
"""Of one run; more is a mistake and not a cost."""


class LimitReachedError(Exception):
    """A limit ends the run."""

    def __init__(self, reason: EndReason, message: str, type: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.type = type


@dataclass(slots=True)
class UsageMeter:
    """One run's. ``budgets`` are those of its session, of its task and of the day."""

    limits: AgentLimits
    budgets: Spending | None
    counts_turns: bool = False
    """Its task has limits."""
    read: int = 0
    written: int = 0
    cached: int = 0
    _past_usd: Decimal | None = None
    """What former prompts and former lives have cost."""
    _told_usd: Decimal | None = None
    """What this life's session has cost, as it was reported last."""
    _closed_usd: Decimal = field(default_factory=Decimal)
    """Of that, what belongs to former prompts."""
    _past_turns: int = 0
    """The run's turns before the prompt under way."""
    _reserved: Reserved | None = None
    _charged: Charge = field(default_factory=Charge)

    def restore(self, nodes: Sequence[Node]) -> None:
        """Count what former lives have used."""
        for node in nodes:
            read, written, cached, cost = usage_of_node(node)
            self.read, self.written, self.cached = self.read + read, self.written + written, self.cached + cached
            if cost is not None:
                self._past_usd = (self._past_usd or Decimal()) + cost

    def usage(self, turns: int, calls: int) -> Usage:
        """Return what the run has used in all."""
        return Usage(turns, self.read, self.written, calls, self.cost_usd, self.cached)

    @property
    def cost_usd(self) -> Decimal | None:
        """Return what the run has cost; None where nothing was reported."""
        if self._told_usd is None:
            return self._past_usd
        return (self._past_usd or Decimal()) + self._told_usd - self._closed_usd

    def tell(self, said: schema.UsageUpdate) -> None:
        """Take what the agent tells of its costs: they only grow."""
        cost = said.cost
        if cost is None or cost.currency.upper() != "USD" or not 0 <= cost.amount <= MOST_USD:
            return
        self._told_usd = max(self._told_usd or Decimal(), Decimal(str(cost.amount)))

    def of_prompt(self, answer: schema.PromptResponse) -> tuple[RequestUsage, Decimal | None]:
        """Return what a prompt has used that has ended, and count it."""
        used = answer.usage
        read, written, cached = 0, 0, 0
        if used is not None:
            cached = used.cached_read_tokens or 0
            read, written = used.input_tokens + cached + (used.cached_write_tokens or 0), used.output_tokens
        self.read, self.written, self.cached = self.read + read, self.written + written, self.cached + cached
        cost = None
        if self._told_usd is not None:
            cost = self._told_usd - self._closed_usd
            self._past_usd, self._closed_usd = (self._past_usd or Decimal()) + cost, self._told_usd
        return RequestUsage(input_tokens=read, output_tokens=written, cache_read_tokens=cached), cost

    def check(self, turns: int) -> None:
        """Raises: LimitReachedError, when no other turn may begin."""
        tokens, cost = self.read + self.written, self.cost_usd
        if turns >= self.limits.max_turns:
            raise LimitReachedError(EndReason.MAX_TURNS, f"the run had {turns} turns of its agent")
        if self.limits.tokens is not None and tokens >= self.limits.tokens:
            words = f"the run has used {tokens:,} of its {self.limits.tokens:,} tokens"
            raise LimitReachedError(EndReason.TOKEN_LIMIT, words)
        if self.limits.cost_usd is not None and cost is not None and cost >= Decimal(str(self.limits.cost_usd)):
            words = f"the run has cost {cost:f} of its {self.limits.cost_usd:g} USD"
            raise LimitReachedError(EndReason.COST_LIMIT, words)

    # -- budgets
    async def begin(self, turns: int) -> None:
        """Ask the budgets before a prompt; ``turns`` are those of the run so far.

        Raises: LimitReachedError, LeaseLostError.
        """
        self._past_turns = turns
        if self.budgets is None:
            return
        try:
            self._reserved, self._charged = await self.budgets.reserve(Charge()), Charge()
        except BudgetSpentError as error:
            raise LimitReachedError(error.end_reason, str(error), type=error.code) from error

    async def charge(self, turns: int, tokens: int = 0) -> None:
        """Charge what the prompt under way has used; ``turns`` of the run have ended. Raises: LeaseLostError."""
        if self._reserved is None or self.budgets is None:
            return
        cost = (self._told_usd or Decimal()) - self._closed_usd
        microusd = int((cost * MICRO).to_integral_value(rounding="ROUND_CEILING"))
        now = Charge(tokens, microusd, max(0, turns - self._past_turns) if self.counts_turns else 0)
        if now != self._charged:
            self._charged = now
            await self.budgets.settle(self._reserved, now)

    async def charge_and_ask(self, turns: int) -> None:
        """Charge what is used, and ask the budgets whether there is more; ``turns`` of the run have ended.

        Raises: LimitReachedError, LeaseLostError.
        """
        before = self._charged
        await self.charge(turns)
        if self._charged != before:
            kept, charged = self._reserved, self._charged
            await self.begin(self._past_turns)
            self._reserved, self._charged = kept, charged
