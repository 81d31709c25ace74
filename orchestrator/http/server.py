"""Serving: a socket that is bound before anything else begins, connections within bounds, and an end in order.

Loopback by default; TLS and names belong to the proxy in front (docs/reference/api.md).

The unix socket of the home has no token and no port: the kernel names who connects (PER-13). The caller is the user of
the service and may do everything, except that a program of a run approves nothing. A command whose environment would
make other rows is refused (``environment_differs``), and so is one that sees other files: it then calls the operations
in a process of its own.
"""

import asyncio
import errno
import math
import os
import select
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from soong.orchestrator.approvals.approval import provenance_of, workers_here
from soong.orchestrator.client.bootstrap import open_artifacts, open_client, open_metrics
from soong.orchestrator.client.client import Client
from soong.orchestrator.client.home_api import CHANNEL_HEADER, ENVIRONMENT_HEADER
from soong.orchestrator.embedded.control import environment_digest
from soong.orchestrator.http.app import make_app, make_routes
from soong.orchestrator.http.edge import HEADERS, EdgeMiddleware, RequestPolicy, Scope
from soong.orchestrator.operations.authentication import Caller, local_caller
from soong.orchestrator.operations.context import Limits, ServiceParts
from soong.orchestrator.operations.problems import ProblemCode, ProblemError
from soong.shared.core import timing
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value

log = get_logger(__name__)

MAX_HEADER_BYTES: Final = 16 * 1024
PEER: Final = "peer"
CHANNELS: Final = frozenset({"cli", "terminal", "sdk"})
_SAME: Final = ("root", "ns/mnt", "ns/user")
_CREDENTIALS: Final = struct.Struct("3i")
"""``struct ucred``: process, user, group."""
_SO_PEERPIDFD = 77
"""Linux 6.5: a descriptor of the process that connected."""


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


class SocketPeer(Value):
    """The process that connected, by the kernel's word. It is kept by a descriptor: its id may be another's later."""

    pid: int
    descriptor: int


class HomeConnection(BoundedConnection):
    """A connection to the socket of the home, with the process that opened it."""

    _peer: SocketPeer | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the class above
        self._peer = _peer_of(transport.get_extra_info("socket"))
        self.app_state = {**self.app_state, PEER: self._peer}
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._peer is not None:
            os.close(self._peer.descriptor)
            self._peer = None


class HomeCallers(Value):
    """The user whose service this is, in whichever process."""

    service: ServiceParts

    async def caller(self, scope: Scope) -> Caller:
        """Look who connected. Raises: ProblemError (unauthenticated, environment_differs)."""
        peer: SocketPeer | None = scope["state"].get(PEER)
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if peer is None:
            raise ProblemError(ProblemCode.UNAUTHENTICATED, "the kernel does not name this connection's process")
        if headers.get(ENVIRONMENT_HEADER.encode()) != environment_digest() or not _sees_the_same(peer):
            detail = "the service has another environment, or sees other files, than its caller"
            raise ProblemError(ProblemCode.ENVIRONMENT_DIFFERS, detail)
        workers = await workers_here(self.service.store.sessions)
        provenance = await asyncio.to_thread(provenance_of, peer.pid, workers)
        # While it has not ended, whatever was read of its id until now was read of it.
        if not provenance.processes or select.select([peer.descriptor], [], [], 0)[0]:
            raise ProblemError(ProblemCode.UNAUTHENTICATED, "the process of this connection has ended")
        if provenance.problem and scope["method"] != "GET":
            detail = f"a program of a run only reads here: {provenance.problem}"
            raise ProblemError(ProblemCode.ENVIRONMENT_DIFFERS, detail)
        client, channel = self.service.client, headers.get(CHANNEL_HEADER.encode(), "")
        channel = channel if channel in CHANNELS else "cli"
        return local_caller(client.settings.principal, provenance, channel, client.clock.now_us())


def _sees_the_same(peer: SocketPeer) -> bool:
    """Say whether a process has our root folder, mounts and user namespace."""
    try:
        return all(os.path.samestat(*map(os.stat, (f"/proc/{peer.pid}/{of}", f"/proc/self/{of}"))) for of in _SAME)
    except OSError:
        return False


def _peer_of(connection: Any) -> SocketPeer | None:
    """Return the process that connected, if it is this user's and the kernel names it."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    found = connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    pid, user, _group = _CREDENTIALS.unpack(found)
    if user != os.getuid() or not pid:
        return None
    try:
        return SocketPeer(pid, connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            return None  # it has ended
    with suppress(OSError):
        # An older kernel: the process that has the id now, a moment after it connected.
        return SocketPeer(pid, os.pidfd_open(pid))
    return None


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


async def serve_home(client: Client, listener: socket.socket, stop: Callable[[], Awaitable[Any]]) -> None:
    """Serve the operations on the bound socket of the home until ``stop`` returns."""
    service = ServiceParts(client, open_metrics(client.settings), open_artifacts(client.settings), takes_modules=True)
    callers = HomeCallers(service)
    edge = EdgeMiddleware(make_routes(service), None, callers, service.limits, service.requests)
    try:
        await until_stopped(service, edge, HomeConnection, listener, stop)
    finally:
        await asyncio.shield(service.close())
