"""The operations on the unix socket of the home: no token and no port, the kernel names who connects (PER-13).

The caller is the user of the service and may do everything, except that a program of a run approves nothing. A command
whose environment would make other rows is refused (``environment_differs``), and so is one that sees other files: it
then calls the operations in a process of its own.
"""

import asyncio
import errno
import os
import select
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from soong.orchestrator.approvals.approval import provenance_of, workers_here
from soong.orchestrator.client.bootstrap import open_artifacts, open_metrics
from soong.orchestrator.client.client import Client
from soong.orchestrator.client.home_api import CHANNEL_HEADER, ENVIRONMENT_HEADER
from soong.orchestrator.embedded.environment import own_environment_digest
from soong.orchestrator.http.app import make_routes
from soong.orchestrator.http.edge import EdgeMiddleware, Scope
from soong.orchestrator.http.server import BoundedConnection, until_stopped
from soong.orchestrator.operations.authentication import Caller, local_caller
from soong.orchestrator.operations.context import ServiceParts
from soong.orchestrator.operations.problems import ProblemCode, ProblemError
from soong.shared.core.value import Value

PEER: Final = "peer"
CHANNELS: Final = frozenset({"cli", "terminal", "sdk"})
_SAME: Final = ("root", "ns/mnt", "ns/user")


_CREDENTIALS: Final = struct.Struct("3i")
"""``struct ucred``: process, user, group."""
_SO_PEERPIDFD = 77
"""Linux 6.5: a descriptor of the process that connected."""


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
        if headers.get(ENVIRONMENT_HEADER.encode()) != own_environment_digest() or not _sees_the_same(peer):
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


async def serve_home(client: Client, listener: socket.socket, stop: Callable[[], Awaitable[Any]]) -> None:
    """Serve the operations on the bound socket of the home until ``stop`` returns."""
    service = ServiceParts(client, open_metrics(client.settings), open_artifacts(client.settings), takes_modules=True)
    callers = HomeCallers(service)
    edge = EdgeMiddleware(make_routes(service), None, callers, service.limits, service.requests)
    try:
        await until_stopped(service, edge, HomeConnection, listener, stop)
    finally:
        await asyncio.shield(service.close())
