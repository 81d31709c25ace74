"""Answers of one run's model: streamed where it can, and complete in the end or not at all (DIS-12).

Owns the judgement of an answer's end. It is made on the wire: the provider's own final mark, without which a stream was
cut, whatever the library made of it.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from pydantic_ai.exceptions import AgentRunError, UnexpectedModelBehavior
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
from pydantic_ai.settings import ModelSettings

_STREAMED: Final = frozenset({"anthropic"})
"""Providers whose answers arrive as a stream within one request, also when they are asked for complete ones."""

UNMARKED_STREAMS: Final = 2
"""Streams in a row without a final mark, after which an answer is asked for in one piece."""

_UNMARKED: Final[set[tuple[str, str]]] = set()
"""Models whose answers have no final mark, streamed or not, as this process has seen: by address and name."""

BAD_GATEWAY: Final = 502
"""For a body without a status of its own: a proxy in front of the model wrote it."""
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


class AnswerFollower:
    """Sees an answer while it arrives; this one does nothing with it."""

    def take(self, event: ModelResponseStreamEvent) -> None:
        """Take the next piece, at once: the stream waits."""

    async def discard(self) -> None:
        """Forget what has arrived of an answer: it broke off, or nobody waits for it any more."""


class AnswerView(AnswerFollower):
    """Shows people an answer while it arrives; this one shows nobody anything."""

    def begin(self, turn: int) -> None:
        """Take the pieces that follow as those of this turn's answer."""

    def complete(self) -> None:
        """Show the rest: the answer has arrived."""


NO_FOLLOWER: Final = AnswerFollower()


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
        if not self.is_streamed:
            return _checked(await self.model.request(messages, settings, parameters), is_streamed=False)
        if self._unmarked >= UNMARKED_STREAMS:
            self._unmarked = 0
            response = _checked(await self.model.request(messages, settings, parameters), is_streamed=False)
            if not _has_mark(response):
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
    """Say whether a model has a streamed form of its request."""
    if isinstance(model, WrapperModel):
        return can_stream(model.wrapped)
    if isinstance(model, FunctionModel):
        return model.stream_function is not None
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
        response.status_code = _status_of(body)


def _asks_for_a_stream(request: Any) -> bool:
    return "stream" in str(request.url).lower() or any(words in request.content for words in _IS_ASKED)


def _status_of(body: bytes) -> int:
    with suppress(ValueError, RecursionError):
        found = json.loads(body)
        error = found.get("error") if isinstance(found, Mapping) else None
        code = str(error.get("code", "")) if isinstance(error, Mapping) else ""
        if code.isdecimal() and 400 <= int(code) < 600:
            return int(code)
    return BAD_GATEWAY
