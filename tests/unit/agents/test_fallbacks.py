"""Fallback models: which are tried, at whose pace, and at which price (DIS-09, DIS-11)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from soong.shared.agents.definition import AgentLimits, Price
from soong.shared.agents.ports import AgentEnd
from soong.shared.agents.run_models import Fallbacks, LocalPacer, Pacing, RunModel
from soong.shared.agents.scripted_model import UnusableModel
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import EndReason
from soong.shared.tools.definition import Permission, ToolContext, ToolDefinition
from tests.unit.agents.parts import Notebook, make_task, run_task
from tests.unit.agents.test_charging import Purse

LONG = f"test.{'very_' * 20}long"
"""A name that some providers take, and others do not."""


async def _look(_context: ToolContext, _call_input: JsonObject) -> Json:
    return "seen"


TOOL = ToolDefinition(LONG, "Looks.", {"type": "object", "properties": {}}, _look, Permission.READONLY)


def answering(name: str, text: str = "done") -> FunctionModel:
    def answer(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        return ModelResponse([TextPart(text)], usage=RequestUsage(input_tokens=1_000_000), model_name=name)

    return FunctionModel(answer, model_name=name)


def failing(name: str, status: int = 401) -> FunctionModel:
    def fail(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        raise ModelHTTPError(status, name, "no")

    return FunctionModel(fail, model_name=name)


@dataclass
class Scene:
    """Runs an agent on models of the test; what is not there cannot be asked."""

    models: dict[str, RunModel]
    prices: dict[str, Price] = field(default_factory=dict)
    notebook: Notebook = field(default_factory=Notebook)

    async def run(self, own: Any, names: Sequence[str], **given: Any) -> AgentEnd:
        async def opened(name: str) -> RunModel:
            if name not in self.models:
                raise InvalidConfigError(f"the model {name!r} needs a key")
            return self.models[name]

        task = make_task(tools=(TOOL,), price=Price(1, 1), limits=given.pop("limits", AgentLimits()))
        task = replace(task, identity=replace(task.identity, model="first:a"))
        fallbacks = Fallbacks(tuple(names), opened, self.prices.get)
        return await run_task(task, own, self.notebook, clock=SystemClock(), fallbacks=fallbacks, **given)


def run_model(name: str, make: Callable[[str], FunctionModel] = answering, **more: Any) -> tuple[str, RunModel]:
    return name, RunModel(name, make(name), **more)


@pytest.mark.spec("DIS-09")
async def test_one_that_cannot_be_asked_here_is_passed_over() -> None:
    scene = Scene(dict([run_model("third:c")]))

    end = await scene.run(failing("a"), ["second:b", "third:c"])

    assert (end.output, list(end.usage.by_model)) == ("done", ["third:c"])
    assert scene.notebook.events.count(EventType.MODEL_FALLBACK) == 1


async def test_a_model_of_the_run_that_cannot_be_asked_here_is_replaced_at_once() -> None:
    scene = Scene(dict([run_model("second:b")]))

    end = await scene.run(UnusableModel("first:a", "the model 'first:a' needs A_KEY"), ["second:b"])

    assert end.output == "done"


async def test_without_one_the_reason_ends_the_run() -> None:
    end = await Scene({}).run(UnusableModel("first:a", "the model 'first:a' needs A_KEY"), ["second:b"])

    assert end.end_reason is EndReason.PROVIDER_FAILED
    assert end.error is not None
    assert "needs A_KEY" in end.error.message


async def test_a_budget_that_is_spent_asks_no_fallback() -> None:
    scene = Scene(dict([run_model("second:b")]))

    end = await scene.run(failing("a"), ["second:b"], limits=AgentLimits(tokens=0))

    assert end.end_reason is EndReason.TOKEN_LIMIT


async def test_requests_are_charged_and_paced_by_the_account_of_their_model() -> None:
    pacer, purse = Keys(), Purse()
    scene = Scene(
        dict([run_model("second:b", price=Price(3, 3), pacing=Pacing(pacer, "second"))]), {"second:b": Price(3, 3)}
    )

    await scene.run(failing("a", 503), ["second:b"], pacing=Pacing(pacer, "first"), budgets=purse)

    assert pacer.keys == ["first:pause:"] * 5 + ["second:pause:"]
    first, second = purse.charges
    assert second.microusd == 3 * (first.microusd or 0)
    assert [charge.microusd for _, charge in purse.settled] == [0, 3_000_000]


class Keys(LocalPacer):
    """Keeps the keys that requests waited under."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[str] = []

    async def pause_left_s(self, key: str) -> float:
        self.keys.append(key)
        return 0.0
