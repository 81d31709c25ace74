"""Whether a model can take a run's tools is known before it is asked anything (SCH-04, REG-04)."""

import re
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic_ai import ModelProfile
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.profiles import InlineDefsJsonSchemaTransformer
from pydantic_ai.settings import ModelSettings

from soong.shared.agents.ports import AgentEnd
from soong.shared.agents.provider_schema import LIMITS, SchemaUnsupportedError, limits_of, names_for
from soong.shared.agents.turn import FINAL_TOOL
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.record import EndReason
from soong.shared.tools.definition import Permission, ToolContext, ToolDefinition
from tests.unit.agents.parts import Notebook, make_task, run_task

NOTHING: JsonObject = {"type": "object", "properties": {}}
OUTPUT: JsonObject = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def _nothing(_context: ToolContext, _call_input: JsonObject) -> Json:
    return None


def make_tools(*names: str) -> tuple[ToolDefinition, ...]:
    return tuple(ToolDefinition(name, "Does nothing.", NOTHING, _nothing, Permission.READONLY) for name in names)


class Asked:
    """Counts the requests that reach a model."""

    def __init__(self) -> None:
        self.count = 0

    def model(self, profile: ModelProfile | None = None) -> FunctionModel:
        return FunctionModel(self._answer, model_name="clever", profile=profile)

    def _answer(self, _messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        self.count += 1
        return ModelResponse(parts=[TextPart("done")])


class OfProvider(WrapperModel):
    """A model as a named provider would serve it."""

    def __init__(self, wrapped: Model[Any], provider: str) -> None:
        super().__init__(wrapped)
        self._provider_name = provider

    @property
    def system(self) -> str:
        return self._provider_name

    @property
    def canonical_system(self) -> str:
        return self._provider_name


class Picky(InlineDefsJsonSchemaTransformer):
    """A transformer that refuses what its provider would."""

    def transform(self, schema: dict[str, Any]) -> dict[str, Any]:
        if "maxLength" in schema:
            raise UserError("maxLength is not supported")
        return schema


async def run(model: Model[Any], tools: tuple[ToolDefinition, ...], output: JsonObject | None = None) -> AgentEnd:
    task = make_task(tools=tools, output_schema=output)
    notebook = Notebook()
    end = await run_task(task, model, notebook)
    assert notebook.written == []
    return end


def refused(end: AgentEnd) -> str:
    assert end.end_reason is EndReason.SCHEMA_UNSUPPORTED
    assert end.usage.requests == 0
    assert end.error is not None
    assert not end.error.retryable
    return end.error.message


@pytest.mark.spec("SCH-04", "DIS-05")
async def test_too_many_tools_end_the_run_before_the_model_is_asked() -> None:
    asked = Asked()
    tools = make_tools(*(f"test.tool_{n}" for n in range(129)))

    message = refused(await run(OfProvider(asked.model(), "openai"), tools))

    assert "openai takes at most 128" in message
    assert asked.count == 0


@pytest.mark.spec("SCH-04")
async def test_the_final_results_tool_counts_too() -> None:
    tools = make_tools(*(f"test.tool_{n}" for n in range(128)))

    message = refused(await run(OfProvider(Asked().model(), "openai"), tools, OUTPUT))

    assert "there are 129" in message


@pytest.mark.spec("SCH-04")
@pytest.mark.parametrize(("output", "words"), [(None, "the run has 1"), (OUTPUT, "output schema needs one")])
async def test_a_model_without_tool_calls_is_refused_what_needs_them(output: JsonObject | None, words: str) -> None:
    asked = Asked()

    message = refused(await run(asked.model(ModelProfile(supports_tools=False)), make_tools("test.one"), output))

    assert words in message
    assert asked.count == 0


@pytest.mark.spec("SCH-04")
async def test_a_model_without_tool_calls_does_a_run_that_has_none() -> None:
    asked = Asked()

    end = await run(asked.model(ModelProfile(supports_tools=False)), ())

    assert (end.end_reason, end.output, asked.count) == (EndReason.COMPLETED, "done", 1)


@pytest.mark.spec("SCH-04")
async def test_a_schema_that_the_models_own_transformer_refuses_names_the_tool_by_its_canonical_name() -> None:
    asked = Asked()
    long: JsonObject = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 3}}}
    one, two = make_tools("test.plain", "test.long_text")
    model = asked.model(ModelProfile(json_schema_transformer=Picky))

    message = refused(await run(model, (one, replace(two, input_schema=long))))

    assert "the tool 'test.long_text'" in message
    assert "maxLength is not supported" in message
    assert asked.count == 0


@pytest.mark.spec("SCH-04")
async def test_every_member_of_a_fallback_must_be_able_to_take_the_tools() -> None:
    able, unable = Asked(), Asked()
    model = WrapperModel(FallbackModel(able.model(), unable.model(ModelProfile(supports_tools=False))))

    refused(await run(model, make_tools("test.one")))

    assert (able.count, unable.count) == (0, 0)


@pytest.mark.spec("REG-04.b")
@pytest.mark.parametrize("provider", sorted(LIMITS))
def test_every_name_is_in_the_providers_own_pattern(provider: str) -> None:
    limits = LIMITS[provider]
    tools = make_tools("a.b", "code.read_file", "mcp.x-y.z", "a.9", f"mcp.{'s' * 60}.{'t' * 60}")

    names = names_for(OfProvider(Asked().model(), provider), tools)
    table = {tool.name: names.to_provider(tool.name) for tool in tools}

    assert len(set(table.values())) == len(tools)
    assert all(re.fullmatch(limits.name_pattern, told) for told in table.values())
    assert re.fullmatch(limits.name_pattern, FINAL_TOOL)
    assert limits.source


@pytest.mark.spec("REG-04.b")
def test_a_fallbacks_names_fit_all_its_members() -> None:
    members = [OfProvider(Asked().model(), name) for name in ("anthropic", "google", "openai")]

    limits = limits_of(FallbackModel(*members))

    assert (limits.name_max_chars, limits.max_tools) == (64, 128)
    assert re.fullmatch(limits.name_pattern, "a-b")
    assert not re.fullmatch(limits.name_pattern, "9b")
    assert not re.fullmatch(limits.name_pattern, "a.b")


@pytest.mark.spec("SCH-04")
def test_a_name_that_cannot_be_said_is_refused_with_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = replace(LIMITS["openai"], name_pattern="[0-9]+", name_max_chars=8)
    monkeypatch.setitem(LIMITS, "openai", narrow)

    with pytest.raises(SchemaUnsupportedError) as caught:
        names_for(OfProvider(Asked().model(), "openai"), make_tools("code.search"))

    assert caught.value.tool == "code.search"


class Refusing(WrapperModel):
    """A model whose own preparation refuses the whole request, whichever tools are in it."""

    def prepare_request(
        self, model_settings: ModelSettings | None, model_request_parameters: ModelRequestParameters
    ) -> tuple[ModelSettings | None, ModelRequestParameters]:
        if len(model_request_parameters.function_tools) > 1:
            raise UserError("one tool is enough")
        return super().prepare_request(model_settings, model_request_parameters)


@pytest.mark.spec("SCH-04")
async def test_a_refusal_that_is_about_no_single_tool_is_about_all() -> None:
    message = refused(await run(Refusing(Asked().model()), make_tools("test.one", "test.two")))

    assert "the run's tools: one tool is enough" in message
