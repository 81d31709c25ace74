"""One turn: a model request that survives a provider's bad moments, and what its answer means.

Owns retries inside the lease (DIS-09) and the judgement of a final answer against the step's schema. What follows from
an answer is the loop's business.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from pydantic_ai.exceptions import (
    AgentRunError,
    ModelConnectionError,
    ModelHTTPError,
    ModelRateLimitError,
    ModelServerError,
    ModelUnavailableError,
    UserError,
)
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition as ToolForModel

from soong.shared.agents.messages import arguments_of, calls_of, text_of
from soong.shared.core.errors import InvalidJsonError, SoongError
from soong.shared.core.jsontext import Json, JsonObject, parse_strict
from soong.shared.core.settings import without_password
from soong.shared.engine.runs.record import Usage
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.naming import NameTable
from soong.shared.tools.schema import validate

FINAL_TOOL: Final = "final_result"
"""How a model gives its output when there is a schema for it. No tool of ours mangles to it: theirs have a dot."""

BACKOFF_S: Final = 1.0
BACKOFF_LIMIT_S: Final = 30.0

_PASSING = (ModelRateLimitError, ModelUnavailableError, ModelServerError, ModelConnectionError)
_PASSING_CODES = frozenset({408, 425, 429})

Sleep = Callable[[float], Awaitable[None]]


class ProviderFailedError(SoongError):
    """The provider gave no answer, after as many attempts as allowed or at once where more would not help."""

    def __init__(self, message: str, *, is_retryable: bool) -> None:
        super().__init__(message)
        self.is_retryable = is_retryable


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


async def request(
    model: Model[Any],
    messages: list[ModelMessage],
    parameters: ModelRequestParameters,
    *,
    attempts: int,
    failed: Callable[[int, str, bool], None],
    sleep: Sleep = asyncio.sleep,
) -> ModelResponse:
    """Ask the model, again after a pause where the provider's trouble may pass. ``failed`` gets each failure.

    Raises:
        ProviderFailedError: no answer came.
    """
    for attempt in range(1, attempts + 1):
        try:
            return await model.request(messages, None, parameters)
        except (AgentRunError, UserError) as error:
            may_pass = _may_pass(error)
            is_retried = may_pass and attempt < attempts
            failed(attempt, str(error), is_retried)
            if not is_retried:
                words = f"{attempt} attempts: {error}" if attempt > 1 else str(error)
                if isinstance(error, ModelConnectionError) and model.base_url:
                    words = f"{words} ({without_password(model.base_url)})"
                raise ProviderFailedError(words, is_retryable=may_pass) from error
            await sleep(_pause_s(error, attempt))
    raise ProviderFailedError("no attempt was allowed", is_retryable=False)


def _may_pass(error: Exception) -> bool:
    """Say whether a failure is of the provider's moment: busy, limited, down, unreachable."""
    if isinstance(error, ModelHTTPError) and (error.status_code >= 500 or error.status_code in _PASSING_CODES):
        return True
    return isinstance(error, _PASSING)


def _pause_s(error: Exception, attempt: int) -> float:
    asked = getattr(error, "retry_after", None)  # seconds, where the provider says so
    if isinstance(asked, int | float) and 0 <= asked <= BACKOFF_LIMIT_S:
        return float(asked)
    # Spread, so that the runs of one wave do not come back together.
    return float(min(BACKOFF_S * 2 ** (attempt - 1), BACKOFF_LIMIT_S) * (0.5 + random.random() / 2))  # noqa: S311


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What an answer means. With ``calls`` the turn continues; else it ends with ``output`` or ``problem``.

    ``finals`` are the calls of FINAL_TOOL among the answer's.
    """

    calls: tuple[ToolCallPart, ...]
    finals: tuple[ToolCallPart, ...]
    output: Json = None
    problem: str = ""


def judge(response: ModelResponse, schema: JsonObject | None) -> ModelAnswer:
    """Say what a model's answer means."""
    asked = calls_of(response)
    finals = tuple(part for part in asked if part.tool_name == FINAL_TOOL and schema is not None)
    calls = tuple(part for part in asked if part not in finals)
    if calls:
        return ModelAnswer(
            calls, finals, problem=f"call {FINAL_TOOL} alone, after you have seen the other calls' results"
        )
    if finals and schema is not None:
        return _judged(finals, arguments_of(finals[0]), schema)
    text = text_of(response).strip()
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


def usage_of(response: ModelResponse) -> Usage:
    """Return what one request used; the price is None where none is known."""
    return Usage(
        1, response.usage.input_tokens, response.usage.output_tokens, len(calls_of(response)), _price(response)
    )


def add(first: Usage, second: Usage) -> Usage:
    """Return the sum; an unknown price makes the sum's unknown."""
    costs = (first.cost_usd, second.cost_usd)
    return Usage(
        first.requests + second.requests,
        first.input_tokens + second.input_tokens,
        first.output_tokens + second.output_tokens,
        first.tool_calls + second.tool_calls,
        None if costs[0] is None or costs[1] is None else costs[0] + costs[1],
    )


def _price(response: ModelResponse) -> Decimal | None:
    if response.model_name == "script":
        return Decimal(0)
    try:
        return response.cost().total_price
    except (LookupError, ValueError, AssertionError):
        return None
