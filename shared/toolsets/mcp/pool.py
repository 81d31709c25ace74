"""The running MCP servers of one process: one for each server and project, however many runs call it (MCP-01.g).

A server is started by the first call, shared by all, counted, and stopped when no call has used it for a while. One
that fails is not started again at once, but after a wait that doubles; a call in that time fails at once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from soong.shared.core import timing
from soong.shared.core.log import get_logger
from soong.shared.core.program_config import McpConfig, McpServerConfig
from soong.shared.toolsets.mcp.catalogue import LoginFolder, ServerSnapshot, SnapshotFolder, config_digest
from soong.shared.toolsets.mcp.connection import ServerConnection, ServerSetup, ServerUnavailableError

log = get_logger(__name__)


_Place = tuple[str, Path]


@dataclass(slots=True)
class _StartFailures:
    """How often in a row a server has failed to start, and when it may be tried again."""

    count: int = 0
    until_s: float = 0.0
    last: str = ""

    def add(self, now_s: float, problem: str) -> None:
        self.count += 1
        self.until_s = now_s + min(timing.LONGEST_BACKOFF_S, timing.BACKOFF_S * 2.0 ** (self.count - 1))
        self.last = problem


@dataclass(slots=True)
class McpServers:
    """Servers by configuration. Nothing is started before it is called; :meth:`close` stops all.

    Belongs to one event loop: the one in which it is called first. ``changed`` are called with the name of a server
    when there is a new snapshot of it, and take that from :meth:`snapshot`.
    """

    config: McpConfig
    setup: ServerSetup
    snapshots: SnapshotFolder = field(default_factory=lambda: SnapshotFolder(None))
    changed: list[Callable[[str], None]] = field(default_factory=list)
    may_start: bool = True
    """Whether this process may run servers at all; one that may not has their tools by snapshot."""
    _known: dict[str, ServerSnapshot] = field(default_factory=dict)
    _connections: dict[_Place, ServerConnection] = field(default_factory=dict)
    _failures: dict[_Place, _StartFailures] = field(default_factory=dict)
    _closing: "set[asyncio.Task[None]]" = field(default_factory=set)
    _sweeper: "asyncio.Task[None] | None" = None
    _is_closed: bool = False

    @property
    def enabled(self) -> dict[str, McpServerConfig]:
        return {name: server for name, server in sorted(self.config.servers.items()) if server.enabled}

    def snapshot(self, server_id: str) -> ServerSnapshot | None:
        """Return the latest snapshot of a server: its last answer to this process, else the one of the home."""
        if server_id not in self._known and server_id in self.config.servers:
            found = self.snapshots.read(server_id, config_digest(self.config.servers[server_id]))
            if found is not None:
                self._known[server_id] = found
        return self._known.get(server_id)

    def login_state(self, server_id: str) -> str:
        """Return whether there is a login at a server; empty for one that takes none."""
        config = self.config.servers[server_id]
        if not config.takes_login:
            return ""
        found = LoginFolder(self.setup.home).read(server_id, config.url)
        return "none" if found is None else found.state(self.setup.clock.now_us())

    def keep(self, snapshot: ServerSnapshot) -> None:
        """Take a new snapshot: write it where it differs, and tell who has tools of it."""
        before = self.snapshot(snapshot.server_id)
        self._known[snapshot.server_id] = snapshot
        if before is None or _offer(before) != _offer(snapshot):
            self.snapshots.write(snapshot)
            if before is not None:
                log.info("mcp_tools_changed", server=snapshot.server_id, tools=len(snapshot.tools))
            for tell in self.changed:
                tell(snapshot.server_id)

    @asynccontextmanager
    async def connected(self, server_id: str, project: Path) -> AsyncIterator[ServerConnection]:
        """Yield a server that is up, and count the caller among its users.
        Raises: ServerUnavailableError, it is off, cannot be started, or has failed a moment ago.
        """
        connection = await self._opened(server_id, project)
        try:
            yield connection
        finally:
            connection.users -= 1
            connection.idle_since_s = self.setup.clock.monotonic_s()
            if connection.is_over:
                self._forget(connection)

    async def close(self) -> None:
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        connections = list(self._connections.values())
        self._connections.clear()
        await asyncio.gather(*(each.close() for each in connections), *self._closing, return_exceptions=True)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that keep servers of this pool."""
        return tuple(each.pid for each in self._connections.values() if each.pid and not each.is_over)

    async def _opened(self, server_id: str, project: Path) -> ServerConnection:
        server = self.enabled.get(server_id)
        if server is None or self._is_closed or not self.may_start:
            state = "being stopped with this process" if self._is_closed else "not switched on in this process"
            raise ServerUnavailableError(f"the MCP server {server_id!r} is {state}")
        place = (server_id, project)
        connection = self._connections.get(place)
        if connection is not None and connection.is_over:
            self._forget(connection)
            connection = None
        if connection is None:
            failures = self._failures.get(place)
            left_s = 0.0 if failures is None else failures.until_s - self.setup.clock.monotonic_s()
            if failures is not None and left_s > 0:
                raise ServerUnavailableError(f"{failures.last}; it is tried again in {left_s:.0f} s")
            connection = ServerConnection(server_id, server, project, self.setup, self.keep)
            self._connections[place] = connection
            if self._sweeper is None or self._sweeper.done():
                self._sweeper = asyncio.create_task(self._stop_idle(), name="mcp idle servers")
        connection.users += 1
        try:
            await connection.open()
        except BaseException as error:
            connection.users -= 1
            # Another caller of the same start may have counted it.
            if isinstance(error, ServerUnavailableError) and self._connections.get(place) is connection:
                del self._connections[place]
                self._failures.setdefault(place, _StartFailures()).add(self.setup.clock.monotonic_s(), str(error))
                log.warning("mcp_server_failed", server=server_id, error=str(error)[:500])
            raise
        self._failures.pop(place, None)
        return connection

    def _forget(self, connection: ServerConnection) -> None:
        """Let go of a connection that is over; its owner closes what it has opened."""
        place = (connection.server_id, connection.project)
        if self._connections.get(place) is connection:
            del self._connections[place]
        task = asyncio.create_task(connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _stop_idle(self) -> None:
        """Stop servers that nobody uses; end when none is left."""
        while self._connections:
            await asyncio.sleep(min(self.config.idle_s / 4, 15.0))
            now_s = self.setup.clock.monotonic_s()
            for connection in list(self._connections.values()):
                is_idle = connection.users == 0 and now_s - connection.idle_since_s >= self.config.idle_s
                if is_idle or (connection.is_over and connection.users == 0):
                    log.info("mcp_server_stopped", server=connection.server_id, idle=is_idle)
                    self._forget(connection)


def _offer(snapshot: ServerSnapshot) -> tuple[object, ...]:
    """Return what makes a snapshot another one to those who have tools of it."""
    return snapshot.digest, snapshot.problem, snapshot.has_resources, snapshot.left_out
