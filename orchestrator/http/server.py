"""Serving: a socket that is bound before anything else begins, connections within bounds, and an end in order.

Loopback by default; TLS and names belong to the proxy in front (docs/reference/api.md).
"""

import asyncio
import math
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from soong.orchestrator.client.bootstrap import open_artifacts, open_client, open_metrics
from soong.orchestrator.http.app import make_app, make_routes
from soong.orchestrator.http.edge import HEADERS, EdgeMiddleware, RequestPolicy
from soong.orchestrator.operations.context import Limits, ServiceParts
from soong.orchestrator.operations.problems import ProblemCode, ProblemError
from soong.shared.core import timing
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings

log = get_logger(__name__)

MAX_HEADER_BYTES: Final = 16 * 1024


class BoundedConnection(H11Protocol):
    """A connection that is closed when too many are open, or when its request's headers do not come to an end."""

    limits = Limits()
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the class above
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            log.warning("http_connection_refused", open=len(self.connections))
            transport.abort()
            return
        self._deadline = self.loop.call_later(self.limits.headers_s, self._too_slow)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def send_400_response(self, _msg: str) -> None:
        """Refuse bytes that are not a request; to a request that is being answered nothing can be said any more."""
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.abort()
            return
        problem = ProblemError(ProblemCode.INVALID_REQUEST, "the bytes received are not an HTTP/1.1 request").response()
        headers = [*problem.raw_headers, *HEADERS, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=problem.status_code, headers=headers),
            h11.Data(data=bytes(problem.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch(self) -> None:
        """Give the headers of a request that has begun their time; one whose headers have come has others."""
        if self.conn.their_state is not h11.IDLE:
            self._disarm()
        elif self.conn.trailing_data[0] and self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.headers_s, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        log.warning("http_headers_too_slow", client=self.client[0] if self.client else "")
        self.transport.abort()


class _Server(uvicorn.Server):
    """A server whose process listens to signals by itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def close_listeners(self) -> None:
        """Accept nothing more. Connections that are open stay open."""
        for listening in getattr(self, "servers", ()):  # there are none before its start
            listening.close()


async def serve(
    service: ServiceParts,
    settings: Settings,
    listener: socket.socket,
    stop: Callable[[], Awaitable[Any]],
    ready: Callable[[], None],
) -> None:
    """Serve on a bound socket until ``stop`` returns; then end streams and long polls, and finish what is under way.

    The socket is closed at once when that happens, so that a successor can listen while this one still answers.

    Raises: UsageError when a host or an origin of the settings is not valid.
    """
    from soong.orchestrator.http.mcp_endpoint import McpEndpoint  # late: the socket of the home serves no MCP

    mcp = McpEndpoint(service, make_routes(service))
    app = make_app(service, RequestPolicy.of(settings.http_allow_hosts, settings.http_origins), mcp)
    async with mcp.running():
        await until_stopped(service, app, BoundedConnection, listener, stop, ready)


async def until_stopped(
    service: ServiceParts,
    app: EdgeMiddleware,
    connection: type[BoundedConnection],
    listener: socket.socket,
    stop: Callable[[], Awaitable[Any]],
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve an application on a bound socket until ``stop`` returns; see :func:`serve`."""
    config = uvicorn.Config(
        cast(Any, app),
        http=type("Connection", (connection,), {"limits": service.limits}),
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        log_level="critical",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=service.limits.idle_s,
        timeout_graceful_shutdown=math.ceil(service.limits.stop_s + timing.SHORT_LIMIT_S),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    server = _Server(config)
    serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
    stopping = asyncio.ensure_future(stop())
    try:
        ready()
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.close_listeners()
        service.stop()
        app.stop()
        server.should_exit = True
        stopping.cancel()
        await asyncio.gather(serving, stopping, return_exceptions=True)
        listener.close()


async def run(
    settings: Settings,
    listener: socket.socket,
    stop: Callable[[], Awaitable[Any]],
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve the deployment that the settings name until ``stop`` returns; it is called once the parts are open.

    Raises:
        InvalidConfigError: no Redis is named.
        UsageError: a host or an origin is not valid.
        UnavailableError, SchemaVersionError: the database cannot be used.
    """
    service = ServiceParts(await open_client(settings), open_metrics(settings), open_artifacts(settings))
    try:
        await serve(service, settings, listener, stop, ready)
    finally:
        await asyncio.shield(service.close())
