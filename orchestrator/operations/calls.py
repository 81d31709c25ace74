"""Operations called in this process: no socket, no token, a caller that is known."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from soong.orchestrator.client.home_api import ApiProblemError, Document, Query, events_of, texts_of
from soong.orchestrator.operations.authentication import Caller
from soong.orchestrator.operations.documents import OperationReply
from soong.orchestrator.operations.limits import CALLER
from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value

_END: Final = None


class DirectCalls(Value):
    """The operations for one caller. ``app`` is the application behind the edge (``http.app.make_routes``)."""

    app: Any
    caller: Caller

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
    ) -> Document:
        """Return the document that an operation returns. Raises: ApiProblemError."""
        return dict((await self.reply(method, path, query=query, body=body, headers=headers)).document)

    async def reply(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
    ) -> OperationReply:
        """Return the document of an operation with its status and headers. Raises: ApiProblemError."""
        exchange = _Exchange(b"" if body is None else json.dumps(body).encode())
        await self.app(self._scope(method, path, query, headers or {}), exchange.receive, exchange.send)
        document: Any = json.loads(bytes(exchange.received)) if exchange.received else {}
        if exchange.status >= 400:
            raise ApiProblemError(exchange.status, document)
        return OperationReply(document, exchange.status, exchange.headers)

    async def text(self, path: str, *, query: Query | None = None) -> str:
        """Return what an operation answers with that sends text. Raises: ApiProblemError."""
        exchange = _Exchange(b"")
        await self.app(self._scope("GET", path, query, {}), exchange.receive, exchange.send)
        if exchange.status >= 400:
            raise ApiProblemError(exchange.status, json.loads(bytes(exchange.received)))
        return exchange.received.decode()

    async def stream(self, path: str, *, query: Query | None = None) -> AsyncIterator[tuple[str, Document]]:
        """Yield name and data of each event of a stream, until it ends. Raises: ApiProblemError."""
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        exchange = _Exchange(b"", pieces=pieces)
        serving = asyncio.ensure_future(self.app(self._scope("GET", path, query, {}), exchange.receive, exchange.send))
        serving.add_done_callback(lambda _: pieces.put_nowait(_END))
        kept = b""
        try:
            while (piece := await pieces.get()) is not _END:
                if exchange.status >= 400:
                    raise ApiProblemError(exchange.status, json.loads(piece))
                *whole, kept = (kept + piece).split(b"\n\n")
                for event in events_of(whole):
                    yield event
            if serving.done():
                await serving
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def _scope(self, method: str, path: str, query: Query | None, headers: Mapping[str, str]) -> dict[str, Any]:
        sent = {"content-type": "application/json", **headers}
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": urlencode(texts_of(query or {})).encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in sent.items()],
            "client": None,
            "server": None,
            CALLER: self.caller,
        }


@dataclass(slots=True)
class _Exchange:
    """One request and its response. The caller never hangs up: it cancels the call."""

    body: bytes
    pieces: "asyncio.Queue[bytes | None] | None" = None
    """Where the pieces of a stream go; without it the response is kept."""
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    received: bytearray = field(default_factory=bytearray)
    is_read: bool = False

    async def receive(self) -> dict[str, Any]:
        if self.is_read:
            await asyncio.Event().wait()
        self.is_read = True
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
        elif self.pieces is None:
            self.received += message.get("body", b"")
        elif message.get("body"):
            self.pieces.put_nowait(message["body"])
