"""One turn: what a request tells of tools, and what its answer means.

Owns the judgement of a final answer against the step's schema. What follows from an answer is the loop's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition as ToolForModel

from soong.shared.agents.charging import price_of
from soong.shared.agents.definition import Price
from soong.shared.agents.messages import arguments_of, calls_of, text_of
from soong.shared.agents.ports import AgentTask
from soong.shared.agents.provider_schema import check_offer
from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.jsontext import Json, JsonObject, parse_strict
from soong.shared.core.value import Value
from soong.shared.engine.runs.record import Usage
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.naming import NameTable
from soong.shared.tools.result import ToolResult
from soong.shared.tools.schema import repaired, validate
from soong.shared.tools.surface import TOOL_SEARCH

FINAL_TOOL: Final = "final_result"
"""How a model gives its output when there is a schema for it. No tool of ours mangles to it: theirs have a dot."""
CONTINUE: Final = (
    "Your answer was cut at the limit of output tokens. Continue exactly where it stopped, and repeat nothing."
)
CUT_RESULT: Final = "your answer was cut at the limit of output tokens; give the result again, in fewer words"

CHECKED_AT_ONCE: Final = 32


def parameters_of(
    tools: Sequence[ToolDefinition], names: NameTable, output: JsonObject | None
) -> ModelRequestParameters:
    """Return what a request tells of tools: the surface only, in its order, under the provider's names (ETS-01)."""
    offered = [
        ToolForModel(
            name=names.to_provider(tool.name),
            description=f"{tool.description}\n\n{tool.prompt}" if tool.prompt else tool.description,
            parameters_json_schema=dict(tool.input_schema),
            strict=False,  # the schema is ours: sent as it is
        )
        for tool in tools
    ]
    if output is None:
        return ModelRequestParameters(function_tools=offered)
    final = ToolForModel(
        name=FINAL_TOOL,
        description="Give the step's result. Call it once, alone, when everything else is done.",
        parameters_json_schema=dict(output),
        strict=False,
        kind="output",
    )
    return ModelRequestParameters(
        function_tools=offered, output_tools=[final], output_mode="tool", allow_text_output=False
    )


class ModelAnswer(Value):
    """What an answer means. With ``calls`` the turn continues; else it ends with ``output`` or ``problem``.

    ``finals`` are the calls of FINAL_TOOL among the answer's. One that ``is_cut`` reached the model's limit of output
    tokens: what it says is not all, and ``problem`` asks for the rest.
    """

    calls: tuple[ToolCallPart, ...]
    finals: tuple[ToolCallPart, ...]
    output: Json = None
    problem: str = ""
    is_cut: bool = False


def judge(response: ModelResponse, schema: JsonObject | None, cut: Sequence[ModelResponse] = ()) -> ModelAnswer:
    """Say what a model's answer means; ``cut`` are the answers that it continues."""
    answer = _judged_answer(response, schema, "".join(map(text_of, cut)) if schema is None else "")
    if answer.calls or response.finish_reason != "length":
        return answer  # of cut calls the pipeline refuses those whose arguments are not whole
    ask = CONTINUE if schema is None else CUT_RESULT
    return replace(answer, output=None, problem=ask, is_cut=True)


def _judged_answer(response: ModelResponse, schema: JsonObject | None, before: str) -> ModelAnswer:
    asked = calls_of(response)
    finals = tuple(part for part in asked if part.tool_name == FINAL_TOOL and schema is not None)
    calls = tuple(part for part in asked if part not in finals)
    if calls:
        return ModelAnswer(
            calls, finals, problem=f"call {FINAL_TOOL} alone, after you have seen the other calls' results"
        )
    if finals and schema is not None:
        return _judged(finals, arguments_of(finals[0]), schema)
    text = (before + text_of(response)).strip()
    if schema is None:
        return ModelAnswer((), (), _output_of(text)) if text else ModelAnswer((), (), problem="your answer was empty")
    try:
        value = parse_strict(text)
    except InvalidJsonError:
        return ModelAnswer((), (), problem=f"give the result by calling {FINAL_TOOL}")
    return _judged((), value, schema)


def _judged(finals: tuple[ToolCallPart, ...], value: Json, schema: JsonObject) -> ModelAnswer:
    if isinstance(value, str):
        try:
            value = parse_strict(value)
        except InvalidJsonError as error:
            return ModelAnswer((), finals, problem=f"the result is not JSON: {error}")
    value = repaired(schema, value)
    violations = validate(schema, value)
    if violations:
        return ModelAnswer((), finals, problem="the result breaks its schema: " + "; ".join(map(str, violations)))
    return ModelAnswer((), finals, value)


def _output_of(text: str) -> Json:
    """Return the object or array that a text is, or the text."""
    if text[0] in "{[":
        try:
            return parse_strict(text)
        except InvalidJsonError:
            return text
    return text


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


@dataclass(slots=True)
class ToolOffer:
    """The offer of one run. ``names`` are the provider's, of all tools: they stay when some are found later."""

    task: AgentTask
    names: NameTable
    parameters: ModelRequestParameters = field(init=False)
    """Of the next request."""

    def __post_init__(self) -> None:
        self._renew()

    def take(self, tool: str, result: ToolResult) -> None:
        """Offer what a search found, from the next request on; called with the results of former lives, too."""
        if tool == TOOL_SEARCH and self.task.deferred.take(result):
            self._renew()

    def check(self, model: Model[Any]) -> None:
        """Find out whether a model can take all that the run may offer it. Raises: SchemaUnsupportedError."""
        check_offer(model, self.parameters, self.names)
        hidden = [tool for tool in self.task.tools if self.task.deferred.hint(tool.name)]
        for start in range(0, len(hidden), CHECKED_AT_ONCE):
            part = parameters_of(hidden[start : start + CHECKED_AT_ONCE], self.names, None)
            check_offer(model, part, self.names)

    def _renew(self) -> None:
        offered = self.task.deferred.offered(self.task.tools)
        self.parameters = parameters_of(offered, self.names, self.task.output_schema)
