"""Operations called in this process: no socket, no token, a caller that is known."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from soong.orchestrator.client.home_api import Calls, OperationAnswer, Query, query_string
from soong.orchestrator.operations.authentication import Caller
from soong.orchestrator.operations.context import CALLER, ServiceParts
from soong.shared.core.jsontext import Json


@dataclass(frozen=True, slots=True)
class DirectCalls(Calls):
    """The operations for one caller. ``app`` is the application behind the edge (``http.app.make_routes``)."""

    app: Any
    caller: Caller

    @property
    def service(self) -> ServiceParts:
        """The parts of the server that runs the operations."""
        parts: ServiceParts = self.app.state.service
        return parts

    @asynccontextmanager
    async def sent(
        self, method: str, path: str, query: Query, body: Json, headers: Mapping[str, str]
    ) -> AsyncGenerator[OperationAnswer]:
        exchange = _Exchange(b"" if body is None else json.dumps(body).encode())
        scope = self._scope(method, path, query, headers)
        serving = asyncio.ensure_future(self.app(scope, exchange.receive, exchange.send))
        serving.add_done_callback(exchange.end)
        try:
            await exchange.begun.wait()
            if exchange.status:
                yield exchange
            if serving.done():
                await serving
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def _scope(self, method: str, path: str, query: Query, headers: Mapping[str, str]) -> dict[str, Any]:
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
            "query_string": query_string(query).encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in sent.items()],
            "client": None,
            "server": None,
            CALLER: self.caller,
        }


@dataclass(slots=True)
class _Exchange:
    """One request and its response. The caller never hangs up: it cancels the call."""

    body: bytes
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    is_read: bool = False
    _pieces: "asyncio.Queue[bytes]" = field(default_factory=asyncio.Queue)

    async def receive(self) -> dict[str, Any]:
        if self.is_read:
            await asyncio.Event().wait()
        self.is_read = True
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
            self.begun.set()
        elif message.get("body"):
            self._pieces.put_nowait(message["body"])

    def end(self, _serving: object) -> None:
        self.begun.set()
        self._pieces.put_nowait(b"")

    async def pieces(self) -> AsyncGenerator[bytes]:
        while piece := await self._pieces.get():
            yield piece
