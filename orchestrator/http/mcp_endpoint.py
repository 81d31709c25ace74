"""MCP over streamable HTTP, next to the API's routes: the same edge, the same tokens, the same calls (MCP-02).

A session of the handshake revisions belongs to the token that opened it; requests of 2026-07-28 have none. The edge has
checked the peer of the connection: a program of a run is refused, so the server is not a tool source inside a run.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any, Final, cast

from fastapi import FastAPI
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import MCPServer
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from msgspec.structs import replace
from starlette.requests import Request

from soong.orchestrator.http.edge import MCP_PATH, Receive, Scope, Send
from soong.orchestrator.mcp.api import ApiCalls, ServerState
from soong.orchestrator.mcp.server import make_server
from soong.orchestrator.operations.authentication import Caller
from soong.orchestrator.operations.context import CALLER, ServiceParts
from soong.orchestrator.operations.problems import ProblemCode, ProblemError
from soong.shared.core import timing
from soong.shared.core.log import get_logger

log = get_logger(__name__)
CHANNEL: Final = "mcp"
MOST_SESSIONS: Final = 256


@dataclass(slots=True)
class McpEndpoint:
    """The application behind the edge: MCP at its path, by the server that is ``made``; ``routes`` at every other."""

    service: ServiceParts
    routes: FastAPI
    made: Callable[[ServerState], MCPServer[ServerState]] = make_server
    _sessions: StreamableHTTPSessionManager = field(init=False)

    def __post_init__(self) -> None:
        async def calls_of(request: Request | None) -> ApiCalls:
            return self._calls(request)

        server = self.made(ServerState(calls_of, lambda request: self._calls(request).rights))
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

    def _calls(self, request: Request | None) -> ApiCalls:
        assert request is not None  # every message of this wire came in a request
        return ApiCalls(self.routes, replace(request.scope[CALLER], channel=CHANNEL))
