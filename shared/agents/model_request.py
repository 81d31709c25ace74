"""One model request: sent until an answer is complete, or until it is clear that none comes (DIS-09, DIS-12).

Owns the one retry policy: the providers' clients do not retry by themselves. A provider sends the time to wait
(``Retry-After``, RFC 9110 section 10.2.3), and the run waits that long, up to a bound: a longer pause is a final
failure of that model. An answer is streamed where the model can, and its end is judged on the wire: by the provider's
own final mark, without which a stream was cut, whatever the library made of it.
"""

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast

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
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings, ThinkingLevel

from soong.shared.agents.definition import ModelOptions
from soong.shared.agents.messages import taken_in
from soong.shared.agents.ports import NO_FOLLOWER, AnswerFollower
from soong.shared.agents.run_models import Pacing, Sleep
from soong.shared.agents.scripted_model import UnusableModelError
from soong.shared.core import timing
from soong.shared.core.errors import SoongError
from soong.shared.core.settings import without_password

_STREAMED: Final = frozenset({"anthropic"})
"""Providers whose answers arrive as a stream within one request, also when they are asked for complete ones."""

UNMARKED_STREAMS: Final = 2
"""Streams in a row without a final mark, after which an answer is asked for in one piece."""

_UNMARKED: Final[set[tuple[str, str]]] = set()
"""Models whose answers have no final mark, streamed or not, as this process has seen: by address and name."""

_NO_STREAM: Final = ("application/json", "text/html")
_IS_ASKED: Final = (b'"stream":true', b'"stream": true')


class BrokenAnswerError(AgentRunError):
    """The answer is not complete: the stream was cut, or the provider broke the answer off.

    ``response`` is the part that arrived, if known: the provider may bill it.
    """

    def __init__(self, message: str, response: ModelResponse | None = None) -> None:
        super().__init__(message)
        self.response = response


class UnmarkedAnswerError(BrokenAnswerError):
    """The stream ended in order, but without the provider's final mark."""


_Arriving: TypeAlias = dict[int, list[tuple[ToolCallPart, list[str]]]]
"""By index the calls of an answer, each with the pieces of its arguments."""


@dataclass(slots=True)
class AnswerSource:
    """The model of one run. Its answers are streamed where ``is_streamed`` and the model can.

    An endpoint whose streams never have a final mark (some that are like OpenAI's) is asked for answers in one piece:
    after two such streams for the next, and when that has no mark either, for all later ones of this process.
    """

    model: Model[Any]
    is_streamed: bool = False
    _unmarked: int = 0
    """How many streams in a row ended without a mark."""

    def __post_init__(self) -> None:
        self.is_streamed = self.is_streamed and _key(self.model) not in _UNMARKED and can_stream(self.model)

    async def next(
        self,
        messages: list[ModelMessage],
        settings: ModelSettings,
        parameters: ModelRequestParameters,
        follower: AnswerFollower = NO_FOLLOWER,
    ) -> ModelResponse:
        """Return a complete answer. Raises: AgentRunError, UserError; the streamed part has been discarded."""
        if not self.is_streamed or self._unmarked >= UNMARKED_STREAMS:
            self._unmarked = 0
            response = _checked(await self.model.request(messages, settings, parameters), is_streamed=False)
            if self.is_streamed and not _has_mark(response):
                self.is_streamed = False
                _UNMARKED.add(_key(self.model))
            return response
        is_whole = False
        try:
            response = _checked(await self._streamed(messages, settings, parameters, follower), is_streamed=True)
            is_whole, self._unmarked = True, 0
        except UnmarkedAnswerError:
            self._unmarked += 1
            raise
        finally:
            if not is_whole:
                await follower.discard()
        return response

    async def _streamed(
        self,
        messages: list[ModelMessage],
        settings: ModelSettings,
        parameters: ModelRequestParameters,
        follower: AnswerFollower,
    ) -> ModelResponse:
        watch_bodies(self.model)
        calls: _Arriving = {}
        try:
            async with self.model.request_stream(messages, settings, parameters) as stream:
                async for event in stream:
                    follower.take(event)
                    _collect(calls, event)
                return _apart(stream.get(), calls)
        except UnexpectedModelBehavior as error:
            if type(error) is UnexpectedModelBehavior:  # the stream was empty, or not one
                raise BrokenAnswerError(str(error)) from error
            raise


def _collect(calls: _Arriving, event: ModelResponseStreamEvent) -> None:
    """Keep a piece of a call: a name under another id begins the next call, which some servers give the same index."""
    match event:
        case PartStartEvent(index=index, part=ToolCallPart() as part):
            calls[index] = [(part, [str(part.args or "")])]
        case PartDeltaEvent(index=index, delta=ToolCallPartDelta() as delta) if index in calls:
            following = delta.as_part() if delta.tool_name_delta else None
            if following is not None and following.tool_call_id != calls[index][-1][0].tool_call_id:
                calls[index].append((following, []))
            calls[index][-1][1].append(str(delta.args_delta or ""))


def _apart(answer: ModelResponse, calls: _Arriving) -> ModelResponse:
    """Return an answer with the calls apart that the library made one of: that one has the id of the last."""
    apart = {own[-1][0].tool_call_id: own for own in calls.values() if len(own) > 1}
    parts: list[Any] = []
    for part in answer.parts:
        own = apart.get(part.tool_call_id) if isinstance(part, ToolCallPart) else None
        parts += [part] if own is None else [replace(call, args="".join(pieces)) for call, pieces in own]
    return replace(answer, parts=parts) if apart else answer


def can_stream(model: Model[Any]) -> bool:
    if isinstance(model, WrapperModel):
        return can_stream(model.wrapped)
    if isinstance(model, FunctionModel):
        return model.stream_function is not None
    if model.system == "test":
        return False  # the library's own for tests marks no end of its answers
    return type(model).request_stream is not Model.request_stream


def _key(model: Model[Any]) -> tuple[str, str]:
    return model.base_url or "", model.model_name


def _checked(response: ModelResponse, *, is_streamed: bool) -> ModelResponse:
    """Return a complete answer. Raises: BrokenAnswerError.

    The library's ``finish_reason`` proves nothing: it makes one up for a stream that was cut. The provider's own is
    kept in the details. A model without a provider has no wire.
    """
    if response.finish_reason == "error":
        raise BrokenAnswerError("the provider broke its answer off", response)
    was_streamed = is_streamed or response.provider_name in _STREAMED
    if was_streamed and response.provider_name and not _has_mark(response):
        raise UnmarkedAnswerError("the answer ended before the provider's final mark", response)
    return response


def _has_mark(response: ModelResponse) -> bool:
    # The library replaces the mark of an answer that the provider filtered by its own reason.
    return bool((response.provider_details or {}).get("finish_reason")) or response.finish_reason == "content_filter"


def watch_bodies(model: Any) -> None:
    """Have the HTTP client of a model look at what it gets; again, it changes nothing."""
    while hasattr(model, "wrapped"):
        model = model.wrapped
    client = getattr(getattr(model, "_provider", None), "_own_http_client", None)
    hooks = getattr(client, "event_hooks", None)
    if isinstance(hooks, dict) and name_error not in hooks.get("response", ()):
        client.event_hooks = {**hooks, "response": [*hooks.get("response", ()), name_error]}  # type: ignore[union-attr]  # it has hooks


async def name_error(response: Any) -> None:
    """Give an answer of another kind than a stream the status that its error names."""
    kind = str(response.headers.get("content-type", "")).lower()
    if response.status_code != 200 or not kind.startswith(_NO_STREAM) or not _asks_for_a_stream(response.request):
        return
    body = await response.aread()
    if not body.lstrip().startswith((b"data:", b"event:", b":")):
        response.status_code = _named_status(body)


def _asks_for_a_stream(request: Any) -> bool:
    return "stream" in str(request.url).lower() or any(words in request.content for words in _IS_ASKED)


def _named_status(body: bytes) -> int:
    with suppress(ValueError, RecursionError):
        found = json.loads(body)
        error = found.get("error") if isinstance(found, Mapping) else None
        code = str(error.get("code", "")) if isinstance(error, Mapping) else ""
        if code.isdecimal() and 400 <= int(code) < 600:
            return int(code)
    return 502  # a proxy in front of the model wrote it


_PASSING: Final = (ModelRateLimitError, ModelUnavailableError, ModelServerError, ModelConnectionError)
_OF_THE_ACCOUNT: Final = (ModelAuthenticationError, ModelNotFoundError, ModelQuotaExceededError, UnusableModelError)

_THINKING: Final[Mapping[str, ThinkingLevel]] = {"off": False, "low": "low", "medium": "medium", "high": "high"}

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
            may_pass, asked = _may_pass(error), getattr(error, "retry_after", None)
            asked_s = float(asked) if isinstance(asked, int | float) and asked >= 0 else None
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
    is_of_account = isinstance(error, _OF_THE_ACCOUNT) or getattr(error, "status_code", 0) in {401, 402, 403, 404}
    failure = ProviderFailedError(words, is_retryable=is_retryable, is_of_model=is_retryable or is_of_account)
    failure.is_of_request = _status_of(error) in {400, 422}
    return failure


def _status_of(error: Exception) -> int:
    status = getattr(error, "status_code", 0)
    return status if isinstance(status, int) else 0


def _is_context_full(error: Exception) -> bool:
    """Say whether a server refuses a request for its length."""
    if isinstance(error, ModelContextWindowExceededError) or not isinstance(error, ModelHTTPError):
        return isinstance(error, ModelContextWindowExceededError)
    words = str(error).lower()
    return error.status_code == 413 or (error.status_code in _STATUSES and _ANY.search(words) is not None)


def _may_pass(error: Exception) -> bool:
    """Say whether a failure is of the provider's moment: busy, limited, down, unreachable, cut off."""
    if _is_context_full(error):
        return False  # Ollama refuses a long request with status 500
    if isinstance(error, ModelHTTPError) and (error.status_code >= 500 or error.status_code in {408, 425, 429}):
        return True
    # The base class alone: the answer could not be decoded.
    return isinstance(error, (*_PASSING, BrokenAnswerError)) or type(error) is ModelAPIError


def _backoff_s(attempt: int) -> float:
    # Spread, so that the runs of one wave do not come back together.
    return float(min(timing.BACKOFF_S * 2 ** (attempt - 1), timing.LONGEST_BACKOFF_S) * (0.5 + random.random() / 2))  # noqa: S311
