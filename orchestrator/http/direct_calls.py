"""Calls of the API from inside its process: the same routes, without a socket and without a token on the way.

For servers of other protocols, which have established who the caller is.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from soong.orchestrator.http.authentication import Caller
from soong.orchestrator.http.edge import CALLER, App, Message
from soong.orchestrator.mcp.api import ApiProblemError, ApiReply
from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value
from soong.shared.permissions.access.token import Right


class DirectCalls(Value):
    """The API for one caller. ``app`` is the application behind the edge. Implements ``mcp.api.ApiCalls``."""

    app: App
    caller: Caller
    project: str = ""

    @property
    def rights(self) -> frozenset[str]:
        return frozenset(str(right) for right in Right if self.caller.may(right))

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
    ) -> ApiReply:
        """Return what a request is answered with. Raises: ApiProblemError."""
        exchange = _Exchange(b"" if body is None else json.dumps(body).encode())
        sent = {"content-type": "application/json", **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": urlencode(query or {}).encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in sent.items()],
            "client": None,
            "server": None,
            CALLER: self.caller,
        }
        await self.app(scope, exchange.receive, exchange.send)
        return exchange.reply()


@dataclass(slots=True)
class _Exchange:
    """One request and its response. The caller never hangs up: it cancels the call."""

    body: bytes
    status: int = 0
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    received: bytearray = field(default_factory=bytearray)
    is_read: bool = False

    async def receive(self) -> Message:
        if self.is_read:
            await asyncio.Event().wait()
        self.is_read = True
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.received += message.get("body", b"")

    def reply(self) -> ApiReply:
        document: Any = json.loads(self.received) if self.received else {}
        if self.status >= 400:
            raise ApiProblemError(self.status, document)
        return ApiReply(document, self.headers.get(b"etag", b"").decode(), is_unchanged=self.status == 304)
