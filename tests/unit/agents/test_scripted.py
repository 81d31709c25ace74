"""The model ``script`` beside other runs of its process: a script that computes for long holds up none of them."""

import asyncio
from collections.abc import Sequence

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.models import ModelRequestParameters

from soong.shared.agents.expressions import evaluate
from soong.shared.agents.scripted import INLINE_LOOKUPS, script_model
from soong.shared.core.errors import BudgetExceededError
from soong.shared.core.jsontext import Json, dump
from soong.shared.engine.tasks.plan.budget import Budget

FACTS: Json = {"inputs": {}, "workplace": {}}


def counted(rounds: int, nested: int) -> list[Json]:
    """Return a script that looks up about ``rounds * nested`` references before its first turn ends."""
    items: list[Json] = list(range(nested))
    again: Json = {"while": True, "limit": rounds, "do": [{"set": {"b": {"$map": "${a}", "to": "${item}"}}}]}
    return [{"set": {"a": items}}, again, {"finish": {"$count": "${b}"}}]


async def answer_of(script: Sequence[Json]) -> ModelResponse:
    messages = [ModelRequest(parts=[UserPromptPart(["do it", dump(FACTS)])])]
    return await script_model(script).request(list(messages), None, ModelRequestParameters())


async def turns_meanwhile(work: "asyncio.Task[ModelResponse]") -> int:
    """Return how often the event loop came round until the work was done."""
    turns = 0
    while not work.done():
        turns += 1
        await asyncio.sleep(0)
    return turns


async def test_a_first_turn_that_takes_long_leaves_the_loop_to_other_runs() -> None:
    work = asyncio.ensure_future(answer_of(counted(200, 100)))

    turns = await turns_meanwhile(work)

    assert turns > 3
    assert (await work).text == "100"


async def test_a_short_first_turn_is_played_at_once() -> None:
    work = asyncio.ensure_future(answer_of(counted(1, INLINE_LOOKUPS // 10)))

    assert await turns_meanwhile(work) <= 3
    assert (await work).text == str(INLINE_LOOKUPS // 10)


@pytest.mark.spec("OPS-12")
@pytest.mark.timeout(60)
async def test_a_cancelled_run_does_not_compute_on() -> None:
    work = asyncio.ensure_future(answer_of(counted(10_000, 1_900)))
    await asyncio.sleep(0.05)  # it is under way by then, or begins and ends at once

    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work

    # Played to its end it takes half a minute.
    async with asyncio.timeout(10):
        await asyncio.get_running_loop().shutdown_default_executor()


@pytest.mark.spec("OPS-12")
def test_a_regular_expression_of_many_states_is_not_searched_in_a_long_text() -> None:
    condition: Json = {"$if": {"matches": ["${text}", "(([ab]?){30}){30}c"]}, "then": 1, "else": 0}
    long, short = {"text": "ab" * 1_000_000}, {"text": "ab" * 100}

    with pytest.raises(BudgetExceededError, match="more than 20,000,000 lookups"):
        evaluate(condition, dict(long), Budget("the test", work=20_000_000))

    assert evaluate(condition, dict(short), Budget("the test", work=20_000_000)) == 0
