"""The model requests of one run: charged to its budgets, sent, and counted (DIS-09, DIS-11).

Prices are those of the model library's data unless the configuration has its own. A request is charged by an estimate
before it is sent, and by what it used after that.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Protocol

from msgspec.structs import replace
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.usage import RequestUsage

from soong.shared.agents.compaction import refused_node, tokens_of
from soong.shared.agents.conversation import Conversation
from soong.shared.agents.definition import AgentLimits, Compaction, Price
from soong.shared.agents.messages import calls_of
from soong.shared.agents.model import SCRIPT
from soong.shared.agents.model_request import AnswerSource, ProviderFailedError, request
from soong.shared.agents.ports import NO_FOLLOWER, AgentTask, AnswerFollower
from soong.shared.agents.provider_schema import SchemaUnsupportedError
from soong.shared.agents.run_models import NO_FALLBACKS, Fallbacks, Pacing, RunModel, Sleep, answered_by, marked
from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import Json
from soong.shared.core.timing import Clock, utc_date
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import MICRO, WARN_AT, BudgetStore, Charge
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import EndReason, Usage
from soong.shared.engine.tasks.plan.plan import OWN_PREFIX

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


def usage_of(response: ModelResponse, price: Price | None = None) -> Usage:
    """Return what one request used; ``price`` is the configuration's own. The cost is None where none is known."""
    read, written = response.usage.input_tokens, response.usage.output_tokens
    return Usage(1, read, written, len(calls_of(response)), price_of(response, price), response.usage.cache_read_tokens)


def add(first: Usage, second: Usage) -> Usage:
    """Return the sum; an unknown price makes the sum's unknown."""
    costs = (first.cost_usd, second.cost_usd)
    return Usage(
        first.requests + second.requests,
        first.input_tokens + second.input_tokens,
        first.output_tokens + second.output_tokens,
        first.tool_calls + second.tool_calls,
        None if costs[0] is None or costs[1] is None else costs[0] + costs[1],
        first.cached_tokens + second.cached_tokens,
    )


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
    def _has_own_model(self) -> bool:
        return self.task.identity.definition.startswith(OWN_PREFIX)  # its row names none

    @property
    def usage(self) -> Usage:
        total = self._used.get("", NOTHING_USED)
        if not self._has_own_model and all(name in ("", self._own.name) for name in self._used):
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
        own = f"{answer.provider_name}:{answer.model_name}" if self._has_own_model else self._own.name
        for name in ("", fallback or own):
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
