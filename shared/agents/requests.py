"""The model requests of one run: charged to its budgets, sent, and counted (DIS-09, DIS-11)."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from msgspec.structs import replace
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters

from soong.shared.agents.charging import NEARLY_SPENT, Reserved, Spending, charge_of, estimate, warning
from soong.shared.agents.compaction import refused_node
from soong.shared.agents.conversation import Conversation
from soong.shared.agents.definition import Compaction
from soong.shared.agents.fallbacks import NO_FALLBACKS, Fallbacks, RunModel, answered_by, marked
from soong.shared.agents.model import SCRIPT
from soong.shared.agents.model_answers import NO_FOLLOWER, AnswerFollower, AnswerSource
from soong.shared.agents.model_request import ProviderFailedError, request
from soong.shared.agents.pacing import Pacing, Sleep
from soong.shared.agents.ports import AgentTask
from soong.shared.agents.provider_schema import SchemaUnsupportedError
from soong.shared.agents.turn import add, usage_of
from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.budgets import WARN_AT, Charge
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import Usage

NOTHING_USED: Final = Usage(cost_usd=Decimal(0))

Check = Callable[[Model[Any]], None]
"""Finds out whether a model can take what the run offers it. Raises: SchemaUnsupportedError."""


@dataclass(slots=True)
class ModelRequests:
    """Sends the requests of one run, to ``model`` until a fallback takes its place."""

    task: AgentTask
    model: RunModel
    talk: Conversation
    sleep: Sleep
    budgets: Spending | None = None
    fallbacks: Fallbacks = NO_FALLBACKS
    check: Check = lambda _model: None
    note: str = ""
    """About what the run may still use, which its agent has not got yet."""
    last: Usage = NOTHING_USED
    """The usage of the last request."""
    is_warned: bool = False
    """The agent knows that a budget is nearly used up."""
    _own: RunModel = field(init=False)
    _source: AnswerSource = field(init=False)
    _used: dict[str, Usage] = field(default_factory=dict)
    """By the name of the model; in all under no name."""

    def __post_init__(self) -> None:
        self._own = self.model
        self._use(self.model)

    def _use(self, model: RunModel) -> None:
        self.model, self._source = model, AnswerSource(model.model, self.task.is_streamed)

    @property
    def usage(self) -> Usage:
        """Return what all requests have used, those of former lives too."""
        total = self._used.get("", NOTHING_USED)
        if all(name in ("", self._own.name) for name in self._used):
            return total
        return replace(total, by_model={name: used for name, used in self._used.items() if name})

    @property
    def compaction(self) -> Compaction:
        own = self.task.compaction
        return own if own.window == self.model.window else replace(own, window=self.model.window)

    def count(self, answer: ModelResponse) -> Usage:
        """Add what an answer used; return it."""
        fallback = answered_by(answer)
        price = self.fallbacks.price(fallback) if fallback else self._own.price
        used = usage_of(answer, price)
        for name in ("", fallback or self._own.name):
            self._used[name] = add(self._used.get(name, NOTHING_USED), used)
        return used

    async def restore(self, answers: Sequence[ModelResponse]) -> None:
        """Count the answers of former lives, and continue with the model that gave the last one."""
        for answer in answers:
            self.count(answer)
        last = answered_by(answers[-1]) if answers else ""
        if last in self.fallbacks.names and (model := await self._opened((last,))) is not None:
            self._use(model)

    async def fall_back(self, error: ProviderFailedError) -> bool:
        """Continue with the next model that can be asked, after a failure that is not of the request.

        Return whether there is one.
        """
        if not error.is_of_model:
            return False
        model = await self._opened(self.fallbacks.after(self.model.name))
        if model is None:
            return False
        data: dict[str, Json] = {"turn": self.talk.turns + 1, "from": self.model.name, "to": model.name}
        self.talk.note(EventType.MODEL_FALLBACK, {**data, "why": str(error)[:1000]})
        self._use(model)
        await self.talk.flush()
        return True

    async def _opened(self, names: Sequence[str]) -> RunModel | None:
        """Return the first that this process can ask and that takes what the run offers."""
        for name in names:
            try:
                model = await self.fallbacks.open(name)
                self.check(model.model)
            except (InvalidConfigError, SchemaUnsupportedError) as error:
                self._failed(0, f"the fallback {name!r} cannot be asked: {error}", is_retried=False)
            else:
                return model
        return None

    async def send(
        self,
        messages: list[ModelMessage],
        parameters: ModelRequestParameters,
        follower: AnswerFollower = NO_FOLLOWER,
        *,
        turns: int = 1,
    ) -> ModelResponse:
        """Send one request and return its answer, which is a turn, or none of the agent's.

        Raises:
            BudgetSpentError: a budget of the run is used up; nothing was sent.
            ProviderFailedError: no answer came.
            LeaseLostError: the run is no longer ours.
        """
        reserved, pacing = await self._reserve(messages, turns), self._paced()

        async def refused(answer: ModelResponse, is_retried: bool) -> None:
            nonlocal reserved
            if not answer.usage.total_tokens:
                return
            billed = self._named(dataclasses.replace(answer, parts=[]))
            used = self.count(billed)
            self.talk.add_node(refused_node(billed))
            await self.talk.flush()
            await self._settle(reserved, charge_of(used))
            reserved = await self._reserve(messages, turns, warns=False) if is_retried else None

        try:
            answer = await request(
                self._source,
                messages,
                parameters,
                options=self.task.options,
                attempts=self.task.limits.model_attempts,
                failed=self._failed,
                refused=refused,
                sleep=self._wait,
                follower=follower,
                pacing=pacing,
                tokens=self._estimate(messages).tokens if pacing and pacing.limits.tokens else 0,
            )
        except ProviderFailedError:
            await self._settle(reserved, Charge())
            raise
        answer, before = self._named(answer), self.usage
        self.last = self.count(answer)
        await self._settle(reserved, charge_of(self.last, turns))
        self.note = self.note or warning(before, self.usage, self.task.limits)
        return answer

    def _paced(self) -> Pacing | None:
        """Return how requests are paced; those of a script are not."""
        pacing = self.model.pacing
        return None if pacing is None or self.model.model.model_name == SCRIPT else replace(pacing, sleep=self._wait)

    def _named(self, answer: ModelResponse) -> ModelResponse:
        """Return an answer that names the fallback which gave it, if one did."""
        return answer if self.model is self._own else marked(answer, self.model.name)

    def last_facts(self) -> dict[str, Json]:
        """Return the log's facts of the last request: its model and its usage."""
        used = self.last
        return {
            "model": self.model.name,
            "input_tokens": used.input_tokens,
            "cached_tokens": used.cached_tokens,
            "output_tokens": used.output_tokens,
            "cost_usd": None if used.cost_usd is None else str(used.cost_usd),
        }

    def _failed(self, attempt: int, message: str, is_retried: bool, status: int = 0) -> None:
        data: dict[str, Json] = {
            "turn": self.talk.turns + 1,
            "attempt": attempt,
            "message": message[:1000],
            "is_retried": is_retried,
            "model": self.model.name,
        }
        if status:
            data["status"] = status
        self.talk.note(EventType.MODEL_FAILED, data)

    def _estimate(self, messages: Sequence[ModelMessage]) -> Charge:
        return estimate(messages, self.model.model, self.task.options.max_tokens, self.model.price)

    async def _wait(self, seconds: float) -> None:
        """Wait; one that a person may wonder about is recorded as it begins."""
        if seconds >= timing.SIGN_OF_LIFE_S:
            self.talk.note(EventType.MODEL_WAITING, {"turn": self.talk.turns + 1, "seconds": round(seconds, 1)})
            await self.talk.flush()
        await self.sleep(seconds)

    async def _reserve(self, messages: Sequence[ModelMessage], turns: int, *, warns: bool = True) -> Reserved | None:
        is_script = self.model.model.model_name == SCRIPT
        if self.budgets is None or (is_script and not self.task.is_limited):
            return None
        if is_script:  # free of tokens and money; its turns count for its task
            return await self.budgets.reserve(Charge(turns=turns))
        reserved = await self.budgets.reserve(replace(self._estimate(messages), turns=turns))
        if warns and reserved is not None and reserved.share >= WARN_AT and not self.is_warned:
            self.is_warned = True
            self.note = self.note or NEARLY_SPENT
            self.talk.note(EventType.BUDGET_WARNED, {"share": round(reserved.share, 3)})
        return reserved

    async def _settle(self, reserved: Reserved | None, charge: Charge) -> None:
        if reserved is not None and self.budgets is not None:
            await self.budgets.settle(reserved, charge)
