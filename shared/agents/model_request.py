"""One model request: sent until an answer is complete, or until it is clear that none comes (DIS-09, DIS-12).

Owns the one retry policy: the providers' clients do not retry by themselves. A provider sends the time to wait
(``Retry-After``, RFC 9110 section 10.2.3), and the run waits that long, up to a bound: a longer pause is a final
failure of that model.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelServerError,
    ModelUnavailableError,
    UserError,
)
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings, ThinkingLevel

from soong.shared.agents.definition import ModelOptions
from soong.shared.agents.messages import taken_in
from soong.shared.agents.model_answers import NO_FOLLOWER, AnswerFollower, AnswerSource, BrokenAnswerError
from soong.shared.agents.pacing import Pacing, Sleep
from soong.shared.agents.scripted_model import UnusableModelError
from soong.shared.core import timing
from soong.shared.core.errors import SoongError
from soong.shared.core.settings import without_password

_PASSING: Final = (ModelRateLimitError, ModelUnavailableError, ModelServerError, ModelConnectionError)
_PASSING_CODES: Final = frozenset({408, 425, 429})
_OF_THE_ACCOUNT: Final = (ModelAuthenticationError, ModelNotFoundError, ModelQuotaExceededError, UnusableModelError)
_CODES_OF_THE_ACCOUNT: Final = frozenset({401, 402, 403, 404})
_CODES_OF_THE_REQUEST: Final = frozenset({400, 422})

_THINKING: Final[Mapping[str, ThinkingLevel]] = {"off": False, "low": "low", "medium": "medium", "high": "high"}

TOO_LARGE: Final = 413
_STATUSES: Final = frozenset({400, 413, 422, 500})

WORDS: Final = {
    "Anthropic, Fireworks": r"prompt is too long",
    "Azure and OpenAI": r"context_length_exceeded|maximum context length|exceeds? the context window",
    "Bedrock": r"input is too long|input tokens exceeded",
    "Cohere": r"too many tokens",
    "DashScope": r"range of input length should be",
    "Gemini": r"input token count.{0,80}exceeds|exceeds the maximum number of tokens",
    "GitHub Copilot": r"prompt token count.{0,80}exceeds",
    "Groq": r"reduce (your message size|the length of the messages)|request too large for model",
    "LiteLLM": r"contextwindowexceedederror",
    "llama.cpp": r"exceed_context_size|exceeds the available context size|context size has been exceeded",
    "LM Studio": r"trying to keep the first|context the overflows|greater than the context length",
    "MiniMax": r"context window exceeds limit",
    "Mistral": r"too large for model with .{0,40}maximum context length",
    "Moonshot": r"exceeded model token limit",
    "Ollama": r"input length exceeds|exceeds? (the )?(maximum )?context length|prompt too long",
    "SGLang": r"longer than the model'?s context length|exceeds the (model'?s )?maximum (allowed )?length",
    "Text Generation Inference": r"inputs` (tokens|must have less than)|input validation error.{0,80}tokens",
    "vLLM": r"longer than the maximum model length|maximum model length",
    "xAI": r"maximum prompt length",
    "Z.ai": r"prompt exceeds max(imum)? length",
}
"""Patterns in lower case, by the server."""

_ANY: Final = re.compile("|".join(f"(?:{pattern})" for pattern in WORDS.values()), re.DOTALL)


class ProviderFailedError(SoongError):
    """The provider gave no answer, after as many attempts as allowed or at once where more would not help."""

    def __init__(self, message: str, *, is_retryable: bool, is_of_model: bool = False) -> None:
        super().__init__(message)
        self.is_retryable = is_retryable
        self.is_of_model = is_of_model
        """The failure is the provider's or its account's: another model may answer the same request."""
        self.is_of_request = False
        """The provider refuses the request as such, in words that say nothing of its length."""


class ContextFullError(ProviderFailedError):
    """The history is longer than what the model can read."""


async def request(
    source: AnswerSource,
    messages: list[ModelMessage],
    parameters: ModelRequestParameters,
    *,
    options: ModelOptions,
    attempts: int,
    failed: Callable[[int, str, bool, int], None],
    refused: Callable[[ModelResponse, bool], Awaitable[None]],
    sleep: Sleep = asyncio.sleep,
    follower: AnswerFollower = NO_FOLLOWER,
    pacing: Pacing | None = None,
    tokens: int = 0,
) -> ModelResponse:
    """Ask the model, again after a pause where the provider's trouble may pass. ``failed`` gets each failure: its
    attempt, its words, whether the request is sent again, and its HTTP status, or 0. ``refused`` then gets the answer,
    if one arrived that cannot be taken, and whether the request is sent again.

    ``follower`` sees the answer while it arrives, of each attempt. ``pacing`` has each attempt wait with those of other
    processes; ``tokens`` is what it may use.
    Raises: ContextFullError, the model cannot read so much; ProviderFailedError, no answer came.
    """
    settings = settings_of(options, source.model.system)
    for attempt in range(1, attempts + 1):
        if pacing is not None:
            await pacing.before(tokens)
        try:
            answer = await source.next(messages, settings, parameters, follower)
            return _cut_where_it_ends(taken_in(answer), options.max_tokens)
        except (AgentRunError, UserError) as error:
            may_pass, asked_s = _may_pass(error), _asked_s(error)
            is_beyond = (asked_s or 0.0) > (timing.PROVIDER_PAUSE_LIMIT_S if pacing is None else pacing.longest_s)
            is_retried = may_pass and attempt < attempts and not is_beyond
            failed(attempt, str(error), is_retried, _status_of(error))
            if isinstance(error, BrokenAnswerError) and error.response is not None:
                await refused(error.response, is_retried)
            if not is_retried:
                asks = f"; it asks for a pause of {asked_s:,.0f} s, which is too long" if may_pass and is_beyond else ""
                raise _failure(error, attempt, source.model, is_retryable=may_pass, asks=asks) from error
            if pacing is None or asked_s is None:
                await sleep(_backoff_s(attempt) if asked_s is None else asked_s)
            else:
                await pacing.limited(asked_s)  # the next attempt waits with all others
    raise ProviderFailedError("no attempt was allowed", is_retryable=False)


def settings_of(options: ModelOptions, system: str) -> ModelSettings:
    """Return the settings of a request; the retries of the provider's client are off (Bedrock's: where it is made)."""
    settings = ModelSettings() if system == "bedrock" else ModelSettings(max_retries=0)
    if options.cache is not False:
        settings["cache"] = True  # a run's history only grows: each request begins with the one before
    thinking = None if options.thinking is None else _THINKING[options.thinking]
    given: dict[str, Any] = {"temperature": options.temperature, "max_tokens": options.max_tokens}
    given |= {"timeout": options.timeout_s, "parallel_tool_calls": options.parallel_calls, "thinking": thinking}
    settings.update(cast(ModelSettings, {name: value for name, value in given.items() if value is not None}))
    return settings


def _cut_where_it_ends(answer: ModelResponse, max_tokens: int | None) -> ModelResponse:
    """Tell an answer as cut that used all the tokens it had, where its server calls that a normal end (llama.cpp).

    Some providers count what their own tools wrote, too: a count above the limit does not show a cut answer.
    """
    is_cut = max_tokens is not None and answer.usage.output_tokens == max_tokens
    return replace(answer, finish_reason="length") if is_cut and answer.finish_reason in {None, "stop"} else answer


def _failure(
    error: Exception, attempt: int, model: Model[Any], *, is_retryable: bool, asks: str = ""
) -> ProviderFailedError:
    words = (f"{attempt} attempts: {error}" if attempt > 1 else str(error)) + asks
    if isinstance(error, ModelConnectionError) and model.base_url:
        words = f"{words} ({without_password(model.base_url)})"
    if _is_context_full(error):
        return ContextFullError(words, is_retryable=False)
    is_of_account = isinstance(error, _OF_THE_ACCOUNT) or getattr(error, "status_code", 0) in _CODES_OF_THE_ACCOUNT
    failure = ProviderFailedError(words, is_retryable=is_retryable, is_of_model=is_retryable or is_of_account)
    failure.is_of_request = _status_of(error) in _CODES_OF_THE_REQUEST
    return failure


def _status_of(error: Exception) -> int:
    status = getattr(error, "status_code", 0)
    return status if isinstance(status, int) else 0


def _is_context_full(error: Exception) -> bool:
    if isinstance(error, ModelContextWindowExceededError):
        return True
    return isinstance(error, ModelHTTPError) and is_too_long(error.status_code, str(error))


def _may_pass(error: Exception) -> bool:
    """Say whether a failure is of the provider's moment: busy, limited, down, unreachable, cut off."""
    if _is_context_full(error):
        return False  # Ollama refuses a long request with status 500
    if isinstance(error, ModelHTTPError) and (error.status_code >= 500 or error.status_code in _PASSING_CODES):
        return True
    # The base class alone: the answer could not be decoded.
    return isinstance(error, (*_PASSING, BrokenAnswerError)) or type(error) is ModelAPIError


def _asked_s(error: Exception) -> float | None:
    """Return how long the provider asks to wait; None where it does not say."""
    asked = getattr(error, "retry_after", None)
    return float(asked) if isinstance(asked, int | float) and asked >= 0 else None


def _backoff_s(attempt: int) -> float:
    # Spread, so that the runs of one wave do not come back together.
    return float(min(timing.BACKOFF_S * 2 ** (attempt - 1), timing.LONGEST_BACKOFF_S) * (0.5 + random.random() / 2))  # noqa: S311


def is_too_long(status: int, words: str) -> bool:
    """Say whether a server refuses a request for its length."""
    return status == TOO_LARGE or (status in _STATUSES and _ANY.search(words.lower()) is not None)
