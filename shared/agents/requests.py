"""The model requests of one run: charged to its budgets, sent, and counted (DIS-09, DIS-11)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters

from soong.shared.agents.charging import Reserved, Spending, charge_of, estimate
from soong.shared.agents.conversation import Conversation
from soong.shared.agents.model import SCRIPT
from soong.shared.agents.model_answers import NO_FOLLOWER, AnswerFollower, AnswerSource
from soong.shared.agents.model_request import ProviderFailedError, Sleep, request
from soong.shared.agents.pacing import Pacing
from soong.shared.agents.ports import AgentTask
from soong.shared.agents.spending import NEARLY_SPENT, WARN_AT, warning
from soong.shared.agents.turn import add, usage_of
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.budgets import Charge
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import Usage

SHOWN_WAIT_S: Final = 2.0
NOTHING_USED: Final = Usage(cost_usd=Decimal(0))


@dataclass(slots=True)
class ModelRequests:
    """Sends the requests of one run. ``usage`` is what all of them have used, those of former lives too."""

    task: AgentTask
    model: Model[Any]
    source: AnswerSource
    talk: Conversation
    sleep: Sleep
    budgets: Spending | None = None
    pacing: Pacing | None = None
    usage: Usage = NOTHING_USED
    note: str = ""
    """About what the run may still use, which its agent has not got yet."""
    is_warned: bool = False
    """The agent knows that a budget is nearly used up."""

    def count(self, answer: ModelResponse) -> Usage:
        """Add what an answer used; return it."""
        used = usage_of(answer, self.task.price)
        self.usage = add(self.usage, used)
        return used

    def take_note(self) -> str:
        """Return what the agent is to know of its limits and forget it."""
        note, self.note = self.note, ""
        return note

    async def send(
        self,
        messages: list[ModelMessage],
        parameters: ModelRequestParameters,
        follower: AnswerFollower = NO_FOLLOWER,
    ) -> ModelResponse:
        """Send one request and return its answer.

        Raises:
            BudgetSpentError: a budget of the run is used up; nothing was sent.
            ProviderFailedError: no answer came.
            LeaseLostError: the run is no longer ours.
        """
        reserved = await self._reserve(messages)
        try:
            answer = await request(
                self.source,
                messages,
                parameters,
                options=self.task.options,
                attempts=self.task.limits.model_attempts,
                failed=self._failed,
                sleep=self.sleep,
                follower=follower,
                pacing=self._pace(),
                tokens=self._estimate(messages).tokens if self.pacing and self.pacing.limits.tokens else 0,
            )
        except ProviderFailedError:
            await self._settle(reserved, Charge())
            raise
        before = self.usage
        await self._settle(reserved, charge_of(self.count(answer)))
        self.note = self.note or warning(before, self.usage, self.task.limits)
        return answer

    def _failed(self, attempt: int, message: str, is_retried: bool) -> None:
        data: dict[str, Json] = {
            "turn": self.talk.turns + 1,
            "attempt": attempt,
            "message": message[:1000],
            "is_retried": is_retried,
        }
        self.talk.note(EventType.MODEL_FAILED, data)

    def _estimate(self, messages: Sequence[ModelMessage]) -> Charge:
        return estimate(messages, self.model, self.task.options.max_tokens, self.task.price)

    def _pace(self) -> Pacing | None:
        if self.pacing is None or self.model.model_name == SCRIPT:
            return None
        return replace(self.pacing, sleep=self.sleep, told=self._waits)

    async def _waits(self, seconds: float) -> None:
        """Record a wait that a person may wonder about, at once."""
        if seconds >= SHOWN_WAIT_S:
            self.talk.note(EventType.MODEL_WAITING, {"turn": self.talk.turns + 1, "seconds": round(seconds, 1)})
            await self.talk.flush()

    async def _reserve(self, messages: Sequence[ModelMessage]) -> Reserved | None:
        if self.budgets is None or self.model.model_name == SCRIPT:
            return None
        charge = self._estimate(messages)
        reserved = await self.budgets.reserve(charge)
        if reserved is not None and reserved.share >= WARN_AT and not self.is_warned:
            self.is_warned = True
            self.note = self.note or NEARLY_SPENT
            self.talk.note(EventType.BUDGET_WARNED, {"share": round(reserved.share, 3)})
        return reserved

    async def _settle(self, reserved: Reserved | None, charge: Charge) -> None:
        if reserved is not None and self.budgets is not None:
            await self.budgets.settle(reserved, charge)
