"""MCP over streamable HTTP, next to the API's routes: the same edge, the same tokens, the same calls (MCP-02).

A session of the handshake revisions belongs to the token that opened it; requests of 2026-07-28 have none. The edge has
looked who holds the connection: a program of a run is refused, so the server is nobody's tool source inside a run.
:class:`DirectCalls` calls the routes from inside the process, for callers that are known: no socket and no token.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlencode

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import MCPServer
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from msgspec.structs import replace
from starlette.requests import Request

from soong.orchestrator.http.edge import MCP_PATH, App, Message, Receive, Scope, Send
from soong.orchestrator.mcp.api import ApiProblemError, ApiReply, ServerState
from soong.orchestrator.mcp.server import make_server
from soong.orchestrator.operations.authentication import Caller
from soong.orchestrator.operations.context import ServiceParts
from soong.orchestrator.operations.limits import CALLER
from soong.orchestrator.operations.problems import ProblemCode, ProblemError
from soong.shared.core import timing
from soong.shared.core.jsontext import Json
from soong.shared.core.log import get_logger
from soong.shared.core.value import Value
from soong.shared.permissions.access.token import Right

log = get_logger(__name__)
CHANNEL: Final = "mcp"
MOST_SESSIONS: Final = 256


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


@dataclass(slots=True)
class McpEndpoint:
    """What lies behind the edge: MCP at its path, by the server that is ``made``; ``routes`` at every other."""

    service: ServiceParts
    routes: App
    made: Callable[[ServerState], MCPServer[ServerState]] = make_server
    _sessions: StreamableHTTPSessionManager = field(init=False)

    def __post_init__(self) -> None:
        server = self.made(ServerState(self._calls_of, lambda request: self._calls(request).rights))
        server.streamable_http_app(
            streamable_http_path=MCP_PATH,
            max_request_body_size=self.service.limits.body_bytes,
            max_sessions=MOST_SESSIONS,
            session_idle_timeout=15 * timing.MINUTE_S,
            # The edge has checked host and origin, by the names that the operator has allowed.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        self._sessions = server.session_manager

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve MCP inside this context; sessions end with it."""
        async with self._sessions.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. Raises: ProblemError, before anything was sent."""
        if scope["path"] != MCP_PATH:
            await self.routes(scope, receive, send)
            return
        caller = cast(Caller, scope[CALLER])
        if caller.refusal:
            log.warning("mcp_refused", principal=caller.principal, reason=caller.refusal)
            detail = f"MCP is not served to what a run started: {caller.refusal}"
            raise ProblemError(ProblemCode.FORBIDDEN, detail)
        token = AccessToken(token="", client_id=caller.token.id, scopes=[], subject=caller.principal)
        inner = {**scope, "user": AuthenticatedUser(token)}
        serving = self._sessions.handle_request(inner, cast(Any, receive), cast(Any, send))
        if scope["method"] != "GET":
            await serving
            return
        with closing(serving), self.service.held_open(caller):
            await self._while_valid(caller, serving)

    async def _while_valid(self, caller: Caller, serving: Coroutine[Any, Any, None]) -> None:
        """Keep a stream of notifications open until its caller leaves, its token ends or the server stops."""
        stream = asyncio.ensure_future(serving)
        stopping = asyncio.ensure_future(self.service.stopping.wait())
        every_s = self.service.limits.keep_alive_s
        try:
            while not (stream.done() or stopping.done()):
                await asyncio.wait({stream, stopping}, timeout=every_s, return_when=asyncio.FIRST_COMPLETED)
                if not await self.service.authenticator.still(caller):
                    return
        finally:
            for task in (stream, stopping):
                task.cancel()
            await asyncio.gather(stream, stopping, return_exceptions=True)

    async def _calls_of(self, request: Request | None) -> DirectCalls:
        return self._calls(request)

    def _calls(self, request: Request | None) -> DirectCalls:
        assert request is not None  # every message of this wire came in a request
        return DirectCalls(self.routes, replace(request.scope[CALLER], channel=CHANNEL))
