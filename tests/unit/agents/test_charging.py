"""Limits and charges of a run, in tokens and money."""

import dataclasses
from dataclasses import dataclass, field
from decimal import Decimal

import pytest
from msgspec.structs import replace
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.usage import RequestUsage

from soong.shared.agents.definition import AgentLimits, Price
from soong.shared.agents.ports import AgentEnd, AgentTask
from soong.shared.agents.requests import Reserved, charge_of, limit_reached, price_of, warning
from soong.shared.core.errors import InvalidConfigError, UsageError
from soong.shared.engine.runs.budgets import MOST, Budget, BudgetSpentError, Charge, configured_budget, parse_budget
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import EndReason, Usage
from tests.unit.agents.parts import Notebook, make_task, run_task
from tests.unit.agents.test_loop import SHOUT, Talker, calls, says

DEAR = Price(1_000_000, 2_000_000)
"""One dollar for a token read, two for one written."""


@dataclass
class Purse:
    """Takes charges and permits ``requests`` of them."""

    requests: int = 9
    share: float = 0.1
    of: str = "money"
    charges: list[Charge] = field(default_factory=list)
    settled: list[tuple[int, Charge]] = field(default_factory=list)

    async def reserve(self, charge: Charge) -> Reserved | None:
        if len(self.charges) == self.requests:
            raise BudgetSpentError("the session has used 2 of its budget of 2 USD", self.of)
        self.charges.append(charge)
        return Reserved(len(self.charges), self.share)

    async def settle(self, reserved: Reserved, charge: Charge) -> None:
        self.settled.append((reserved.number, charge))


async def run(
    talker: Talker, purse: Purse, task: AgentTask | None = None, notebook: Notebook | None = None
) -> tuple[AgentEnd, Notebook]:
    task = replace(task or make_task(), tools=(SHOUT,), price=DEAR)
    notebook = notebook or Notebook()
    return await run_task(task, talker.model, notebook, budgets=purse), notebook


def used(text: str, read: int, written: int) -> ModelResponse:
    return dataclasses.replace(says(text), usage=RequestUsage(input_tokens=read, output_tokens=written))


@pytest.mark.spec("DIS-11")
async def test_each_request_is_charged_and_then_settled_with_what_it_used() -> None:
    purse = Purse()
    call = dataclasses.replace(
        calls(("test__shout", {"text": "x"}, "c1")), usage=RequestUsage(input_tokens=10, output_tokens=5)
    )

    end, _ = await run(Talker(call, used("done", 20, 7)), purse)

    assert end.end_reason is EndReason.COMPLETED
    assert purse.settled == [(1, Charge(15, 20_000_000, 1)), (2, Charge(27, 34_000_000, 1))]
    first, second = purse.charges
    assert first.tokens > 4096
    assert second.tokens > 15 + 4096  # what was read and written last, and what is new


@pytest.mark.spec("DIS-11")
@pytest.mark.parametrize(("of", "reason"), [("money", EndReason.COST_LIMIT), ("tokens", EndReason.TOKEN_LIMIT)])
async def test_a_budget_that_is_used_up_ends_the_run_before_its_request(of: str, reason: EndReason) -> None:
    talker = Talker(calls(("test__shout", {"text": "x"}, "c1")), says("never"))

    end, _ = await run(talker, Purse(requests=1, of=of))

    assert (end.end_reason, len(talker.told)) == (reason, 1)
    assert end.error is not None
    assert (end.error.type, end.error.retryable) == ("budget_exceeded", False)
    assert "budget of 2 USD" in end.error.message


@pytest.mark.spec("DIS-11", "DIS-07.e")
@pytest.mark.parametrize(("is_limited", "charged"), [(True, [Charge(turns=1)]), (False, [])])
async def test_a_turn_of_a_scripted_agent_counts_for_a_task_with_limits_alone(
    is_limited: bool, charged: list[Charge]
) -> None:
    purse, task = Purse(), replace(make_task(), is_limited=is_limited)

    end, _ = await run(Talker(says("done"), name="script"), purse, task)

    assert end.end_reason is EndReason.COMPLETED
    assert purse.charges == charged


@pytest.mark.spec("DIS-11")
async def test_a_request_without_an_answer_costs_nothing() -> None:
    purse = Purse()

    end, _ = await run(Talker(ModelHTTPError(400, "m", "no")), purse)

    assert end.end_reason is EndReason.PROVIDER_FAILED
    assert purse.settled == [(1, Charge())]


@pytest.mark.spec("DIS-11")
async def test_an_answer_that_is_refused_is_charged_before_the_next_attempt() -> None:
    purse = Purse(requests=1)
    talker = Talker(dataclasses.replace(used("x", 20, 7), finish_reason="error"), says("never"))

    end, _ = await run(talker, purse)

    assert (end.end_reason, len(talker.told)) == (EndReason.COST_LIMIT, 1)
    assert purse.settled == [(1, Charge(27, 34_000_000))]
    assert (end.usage.requests, end.usage.input_tokens) == (1, 20)


@pytest.mark.spec("DIS-11")
async def test_an_answer_that_is_refused_is_counted_when_its_process_is_gone() -> None:
    refused = dataclasses.replace(used("x", 20, 7), finish_reason="error")
    _, notebook = await run(Talker(refused, says("never written")), Purse())

    end, _ = await run(Talker(used("done", 3, 1)), Purse(), replace(make_task(), is_resumed=True), notebook)

    assert (end.output, end.usage.requests, end.usage.input_tokens, end.usage.output_tokens) == ("done", 2, 23, 8)


@pytest.mark.spec("DIS-11")
async def test_an_agent_is_told_once_that_a_budget_is_nearly_used_up() -> None:
    talker = Talker(*(calls(("test__shout", {"text": "x"}, f"c{n}")) for n in range(3)), says("done"))

    _, notebook = await run(talker, Purse(share=0.85))

    parts = [part for message in talker.told[-1] if isinstance(message, ModelRequest) for part in message.parts]
    told = [part for part in parts if isinstance(part, UserPromptPart) and "nearly used up" in str(part.content)]
    assert len(told) == 1
    assert notebook.events.count(EventType.BUDGET_WARNED) == 1


@pytest.mark.spec("DIS-11")
def test_prices_of_the_configuration_come_first() -> None:
    answer = ModelResponse(
        [TextPart("x")], usage=RequestUsage(input_tokens=1000, output_tokens=500), model_name="gpt-5",
        provider_name="openai",
    )  # fmt: skip

    assert str(price_of(answer)) == "0.00625"
    assert price_of(answer, Price(2, 4)) == 4000 * Price(1, 0).of(1, 0)
    assert price_of(dataclasses.replace(answer, model_name="nobody-knows-it")) is None


@pytest.mark.spec("DIS-11")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("2usd",), Budget(None, 2_000_000)),
        (("$0.50",), Budget(None, 500_000)),
        (("1.5 USD",), Budget(None, 1_500_000)),
        (("200ktok",), Budget(200_000)),
        (("1.5m tokens",), Budget(1_500_000)),
        (("3usd,2mtok",), Budget(2_000_000, 3_000_000)),
        (("3usd", "9tok"), Budget(9, 3_000_000)),
        (("0usd",), Budget(None, 0)),
        ((), Budget()),
        (("",), Budget()),
    ],
)
def test_budgets_are_read_as_people_write_them(words: tuple[str, ...], expected: Budget) -> None:
    assert parse_budget(*words) == expected


@pytest.mark.spec("DIS-11")
@pytest.mark.parametrize("text", ["2", "-2usd", "2eur", "usd", "1e9tok", "٣usd", "2usd,3usd", f"{MOST}usd", "nan usd"])
def test_what_is_no_budget_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"2usd|twice|too large"):
        parse_budget(text)
    with pytest.raises(InvalidConfigError, match=r"\[budgets\] day: "):
        configured_budget(text, "day")


@pytest.mark.spec("DIS-11")
@pytest.mark.parametrize("usd", ["0.0000001", "0.0000009"])
def test_a_request_below_a_millionth_of_a_dollar_is_not_free(usd: str) -> None:
    assert charge_of(Usage(cost_usd=Decimal(usd))).microusd == 1


def usage_of(tokens: int, cost: str | None = "0") -> Usage:
    return Usage(1, tokens, 0, 0, None if cost is None else Decimal(cost))


@pytest.mark.spec("DIS-07.b", "DIS-07.c")
@pytest.mark.parametrize(
    ("usage", "limits", "reason"),
    [
        (usage_of(10**9, "10000"), AgentLimits(), None),
        (usage_of(99), AgentLimits(tokens=100), None),
        (usage_of(100), AgentLimits(tokens=100), EndReason.TOKEN_LIMIT),
        (usage_of(0), AgentLimits(tokens=0), EndReason.TOKEN_LIMIT),
        (usage_of(0, "0.09"), AgentLimits(cost_usd=0.1), None),
        (usage_of(0, "0.1"), AgentLimits(cost_usd=0.1), EndReason.COST_LIMIT),
        (usage_of(0, "0"), AgentLimits(cost_usd=0), EndReason.COST_LIMIT),
        (usage_of(0, None), AgentLimits(cost_usd=0.1), EndReason.COST_LIMIT),
        (usage_of(0, None), AgentLimits(tokens=100), None),
    ],
)
def test_a_run_ends_when_it_has_used_what_it_may(usage: Usage, limits: AgentLimits, reason: EndReason | None) -> None:
    reached = limit_reached(usage, limits, "test:model")

    assert (reached and reached[0]) == reason


@pytest.mark.spec("DIS-07")
def test_an_agent_is_told_once_at_80_percent() -> None:
    limits = AgentLimits(tokens=100, cost_usd=1)

    told = [warning(usage_of(a), usage_of(b), limits) for a, b in ((0, 79), (79, 80), (80, 95))]
    by_cost = warning(usage_of(0, "0.1"), usage_of(0, "0.9"), limits)

    assert [bool(one) for one in told] == [False, True, False]
    assert "80%" in by_cost.replace(" ", "")
    assert warning(usage_of(0), usage_of(10**9), AgentLimits()) == ""
