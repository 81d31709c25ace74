"""A server that plays a recording, and the model that asks it: through the provider's own client."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from tests.loopback import http_on_a_thread
from tests.wires.recordings import Exchange

PIECE_BYTES: Final = 97
"""Bodies are sent in pieces of this size: events are cut anywhere, also within a character."""
ENDED: Final = "the recording ends here"
_END: Final = f'{{"message": "{ENDED}", "error": {{"message": "{ENDED}", "code": 400}}}}'.encode()


@dataclass(slots=True)
class Recording:
    """A conversation being played; ``asked`` are the bodies of the requests that were answered from it."""

    exchanges: Sequence[Exchange]
    asked: list[bytes] = field(default_factory=list)

    @property
    def next(self) -> Exchange | None:
        return self.exchanges[len(self.asked)] if len(self.asked) < len(self.exchanges) else None


@contextmanager
def playing(recording: Recording) -> Iterator[str]:
    """Serve a recording on a free port of the loopback, whose address is yielded. Past its end it refuses."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            exchange = recording.next
            if exchange is None:
                return self._send(400, {"content-type": "application/json"}, _END)
            recording.asked.append(body)
            return self._send(exchange.status, exchange.headers, exchange.body)

        def _send(self, status: int, headers: Any, body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            for start in range(0, len(body), PIECE_BYTES):
                self.wfile.write(body[start : start + PIECE_BYTES])

        def log_message(self, *_words: Any) -> None:
            return

    with http_on_a_thread(Handler) as port:
        yield f"http://127.0.0.1:{port}"


def environment(address: str) -> dict[str, str]:
    """Return the variables by which the providers' clients find the server."""
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"), "recorded")
    bases = {"OPENAI_BASE_URL": f"{address}/v1", "ANTHROPIC_BASE_URL": address, "GOOGLE_GEMINI_BASE_URL": address}
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    aws = {**dict.fromkeys(names, "recorded"), "AWS_DEFAULT_REGION": "us-east-1"}
    return {**keys, **bases, **aws, "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": address}


class RecordedModel(WrapperModel):
    """Asks for a stream where the recording's next answer is one; keeps what its client made of each answer."""

    def __init__(self, wrapped: Model[Any], recording: Recording) -> None:
        super().__init__(wrapped)
        self.recording = recording
        self.heard: list[tuple[Exchange, ModelResponse]] = []
        self.told: list[list[ModelMessage]] = []

    async def request(
        self, messages: list[ModelMessage], settings: ModelSettings | None, parameters: ModelRequestParameters
    ) -> ModelResponse:
        exchange = self.recording.next
        response = await self.wrapped.request(messages, settings, parameters)
        self._keep(exchange, response, messages)
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
        run_context: Any = None,
    ) -> AsyncGenerator[StreamedResponse]:
        exchange = self.recording.next
        if exchange is not None and exchange.is_stream:
            async with self.wrapped.request_stream(messages, settings, parameters, run_context) as stream:
                yield stream
        else:
            whole = await self.wrapped.request(messages, settings, parameters)
            stream = CompletedStreamedResponse(whole, model_request_parameters=parameters)
            yield stream
        self._keep(exchange, stream.get(), messages)

    def _keep(self, exchange: Exchange | None, response: ModelResponse, messages: list[ModelMessage]) -> None:
        assert exchange is not None
        self.heard.append((exchange, response))
        self.told.append(list(messages))
