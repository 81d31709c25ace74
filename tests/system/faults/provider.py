"""A model provider that misbehaves: a server that speaks the chat completions wire, and a model that speaks to it."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import httpx
import pydantic_ai.models
from pydantic_ai.exceptions import ModelConnectionError, ModelHTTPError, UnexpectedModelBehavior
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from tests.loopback import listening

PREFIX: Final = "wire:"
HUGE_CHARS: Final = 10_000_000
HANGS: Final = {("silent", 1), ("breaking", 2)}
BROKEN_OFF: Final = "broken off"
BILLED: Final = RequestUsage(input_tokens=300, output_tokens=40)
"""The usage of the answer that the provider breaks off."""


# -- the worker's side
class WireModel(Model[None]):
    """Asks the server that FAULT_PROVIDER names. One HTTP client a process, as real models have."""

    client: httpx.AsyncClient | None = None

    def __init__(self, behaviour: str) -> None:
        super().__init__()
        self._behaviour = behaviour

    @property
    def model_name(self) -> str:
        return self._behaviour

    @property
    def system(self) -> str:
        return "wire"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Raises: ModelHTTPError, ModelConnectionError, UnexpectedModelBehavior."""
        url = f"{os.environ['FAULT_PROVIDER']}/{self._behaviour}/chat/completions"
        if WireModel.client is None:
            WireModel.client = httpx.AsyncClient(timeout=httpx.Timeout(60.0), trust_env=False)
        try:
            answer = await WireModel.client.post(url, json={"model": self._behaviour, "messages": _told(messages)})
        except httpx.TransportError as error:
            raise ModelConnectionError(self._behaviour, f"the connection broke: {error!r}") from error
        if answer.status_code >= 400:
            headers = {"retry-after": answer.headers.get("retry-after", "0.05")}
            raise ModelHTTPError(answer.status_code, self._behaviour, answer.text[:200], headers=headers)
        return _heard(answer.text)


def _told(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                told.append({"role": "tool", "tool_call_id": part.tool_call_id, "content": str(part.content)})
            elif isinstance(part, UserPromptPart) and isinstance(message, ModelRequest):
                told.append({"role": "user", "content": str(part.content)})
    return told


def _heard(text: str) -> ModelResponse:
    try:
        said = json.loads(text)["choices"][0]["message"]
    except (ValueError, LookupError, TypeError) as error:
        raise UnexpectedModelBehavior(f"the answer is no completion: {error}", text[:200]) from error
    parts: list[Any] = [
        ToolCallPart(call["function"]["name"], call["function"]["arguments"], call["id"])
        for call in said.get("tool_calls") or ()
    ]
    if said["content"] == BROKEN_OFF:
        return ModelResponse(parts=[], model_name="wire", finish_reason="error", usage=BILLED)
    return ModelResponse(parts=parts or [TextPart(said["content"])], model_name="wire")


def install() -> None:
    """Let the model library know ``wire:`` in this process."""
    original = pydantic_ai.models.infer_model

    def infer(name: Any, *given: Any, **named: Any) -> Any:
        if isinstance(name, str) and name.startswith(PREFIX):
            return WireModel(name.removeprefix(PREFIX))
        return original(name, *given, **named)

    vars(pydantic_ai.models)["infer_model"] = infer


if "FAULT_PROVIDER" in os.environ:
    install()


# -- the server
@dataclass
class Provider:
    """``async with Provider() as provider``: answers each request as its path says. ``asked`` counts requests."""

    asked: Counter[str] = field(default_factory=Counter)
    told: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    hanging: int = 0
    port: int = 0
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        self.port = await self._open.enter_async_context(listening(self._serve))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while behaviour := await self._read(reader):
                self.asked[behaviour] += 1
                if not await self._answer(behaviour, reader, writer):
                    break

    async def _read(self, reader: asyncio.StreamReader) -> str:
        line = await reader.readline()
        size = 0
        while (header := (await reader.readline()).strip().lower()) != b"":
            if header.startswith(b"content-length:"):
                size = int(header.split(b":")[1])
        if not line:
            return ""
        behaviour = line.decode().split("/")[1]
        self.told[behaviour] = json.loads(await reader.readexactly(size))["messages"]
        return behaviour

    async def _answer(self, behaviour: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer once; say whether the connection may be used again."""
        number = self.asked[behaviour]
        match behaviour:
            case "hanging" | "silent" | "breaking" if (behaviour, number) in HANGS or behaviour == "hanging":
                self.hanging += 1
                await reader.read(1)  # until the other side has had enough
                self.hanging -= 1
                return False
            case "cut" if number <= 2:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b'{"choices": [{"mess')
                await writer.drain()
                return False
            case _:
                await _send(writer, *_reply(behaviour, number))
                return True


def _reply(behaviour: str, number: int) -> tuple[int, str, Mapping[str, str]]:
    """Return status, body and headers of the answer to the ``number``-th request."""
    replies: dict[str, tuple[int, str, Mapping[str, str]]] = {
        "down": (500, "it is broken", {}),
        "refusing": (400, "no such thing", {}),
        "rubbish": (200, "<html>Bad Gateway</html>", {}),
        "huge": (200, _completion(content="x" * HUGE_CHARS), {}),
    }
    if behaviour == "busy" and number <= 2:
        return 429, "slow down", {"Retry-After": "0.1"}
    if behaviour == "breaking" and number == 1:
        return 200, _completion(content=BROKEN_OFF), {}
    if behaviour == "confused" and number == 1:
        twice = [_call("same", "code__list_dir", {"path": "."})] * 2
        return 200, _completion(calls=[*twice, _call("", "no__such_tool", {})]), {}
    return replies.get(behaviour, (200, _completion(content="done"), {}))


def _call(id: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _completion(*, content: str = "", calls: Sequence[Mapping[str, Any]] = ()) -> str:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": content, "tool_calls": list(calls)}}]})


async def _send(writer: asyncio.StreamWriter, status: int, body: str, headers: Mapping[str, str]) -> None:
    data = body.encode()
    lines = [f"{name}: {text}" for name, text in {"Content-Length": str(len(data)), **headers}.items()]
    writer.write("\r\n".join([f"HTTP/1.1 {status} X", *lines, "", ""]).encode() + data)
    await writer.drain()
