"""MCP servers as a source of the registry (REG-07.b): their tools by snapshot, and again when a server changes."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from soong.shared.core import timing
from soong.shared.core.clock import Clock, SystemClock
from soong.shared.core.config import Config
from soong.shared.core.errors import InvalidToolError
from soong.shared.core.foreign import words_of
from soong.shared.core.inert import inert
from soong.shared.core.log import get_logger
from soong.shared.core.mcp_config import McpServerConfig
from soong.shared.core.value import Value
from soong.shared.tools.registry import ToolRegistry
from soong.shared.toolsets.mcp.catalogue import ServerSnapshot, SnapshotFolder, ToolExclusion, config_digest
from soong.shared.toolsets.mcp.connection import ServerSetup, ServerUnavailableError
from soong.shared.toolsets.mcp.definitions import ServerTools, tools_of
from soong.shared.toolsets.mcp.logins import LoginFolder
from soong.shared.toolsets.mcp.pool import McpServers
from soong.shared.toolsets.mcp.resources import SOURCE, ResourceTools

if TYPE_CHECKING:
    from soong.shared.toolsets.mcp.login_auth import LoginAuth

log = get_logger(__name__)


def servers_of(home: Path | None, config: Config, *, may_start: bool = True) -> McpServers:
    """Return the servers of a configuration, none of them started."""
    commands = config.commands
    clock = SystemClock()
    setup = ServerSetup(clock, commands.env, config.secret_env, home, _authorized(LoginFolder(home), clock))
    return McpServers(config.mcp, setup, SnapshotFolder(home), may_start=may_start)


def _authorized(folder: LoginFolder, clock: Clock) -> "Callable[[str, McpServerConfig], LoginAuth | None]":
    def authorized(server_id: str, config: McpServerConfig) -> "LoginAuth | None":
        from soong.shared.toolsets.mcp.login_auth import LoginAuth  # with the SDK: only a connection pays for it

        return LoginAuth(server_id, config, folder, clock) if config.takes_login else None

    return authorized


def source_of(server_id: str) -> str:
    """Return what `soong tools` says of where a tool comes from."""
    return f"MCP server {server_id}"


class McpTools(Value):
    """The tools of all servers that are switched on. What cannot be a tool is left out, with its reason in the log."""

    servers: McpServers
    max_timeout: timedelta

    def register(self, registry: ToolRegistry) -> None:
        """Register the tools, and keep the registry true when a server says that they have changed (ETS-01.f).

        A run's tools are those of the registry when it begins; a change counts from the next run on.
        """
        asked = [server for server in self.servers.enabled if self._must_be_asked(server)]
        if asked and self.servers.may_start:
            look(self.servers, asked)
        for server in self.servers.enabled:
            self._register(registry, server)
        self._register_resources(registry)
        registry.on_close(self.servers.close)
        self.servers.changed.append(lambda server: self._register_again(registry, server))

    def tools_of(self, server_id: str) -> ServerTools:
        """Return the tools of a server, and those that are left out."""
        snapshot = self.servers.snapshot(server_id)
        if snapshot is None:
            return ServerTools((), ())
        return tools_of(snapshot, self.servers.config.servers[server_id], self.servers, self.max_timeout)

    def _register(self, registry: ToolRegistry, server_id: str) -> None:
        source, found = source_of(server_id), self.tools_of(server_id)
        registry.remove(source)
        excluded = list(found.excluded)
        for definition in found.definitions:
            try:
                registry.register(definition, source=source)
            except InvalidToolError as error:
                native = str(definition.metadata["native_name"])
                excluded.append(ToolExclusion(native, inert(error.problem)[:500]))
        for each in excluded:
            log.info("mcp_tool_left_out", server=server_id, tool=inert(each.tool)[:100], reason=each.reason)

    def _register_again(self, registry: ToolRegistry, server_id: str) -> None:
        self._register(registry, server_id)
        self._register_resources(registry)

    def _register_resources(self, registry: ToolRegistry) -> None:
        registry.remove(SOURCE)
        for definition in ResourceTools(self.servers, self.max_timeout).tools():
            registry.register(definition, is_builtin=True, source=SOURCE)

    def _must_be_asked(self, server_id: str) -> bool:
        snapshot = self.servers.snapshot(server_id)
        if snapshot is None:
            return True
        return (
            bool(snapshot.problem)
            and self.servers.setup.clock.now_us() - snapshot.seen_us > timing.LONGEST_BACKOFF_S * 1_000_000
        )


def look(servers: McpServers, ids: Iterable[str]) -> None:
    """Ask servers what they offer, all at once, and keep their snapshots; from any thread, whatever loop runs on it.

    One process of a home does it at a time: the others find the snapshots that it has written.
    """

    def ask() -> None:
        with servers.snapshots.locked():
            missing = [server for server in ids if _is_missing(servers, server)]
            asyncio.run(look_now(servers, missing))

    thread = threading.Thread(target=ask, name="mcp discovery")
    thread.start()
    thread.join()


async def look_now(servers: McpServers, ids: Iterable[str]) -> None:
    """Ask servers what they offer; one that cannot be asked gets a snapshot that says why."""
    asking = McpServers(servers.config, servers.setup, servers.snapshots, changed=[])
    try:
        found = await asyncio.gather(*(_asked(asking, server) for server in ids))
    finally:
        await asking.close()
    for snapshot in found:
        servers.keep(snapshot)


async def _asked(servers: McpServers, server_id: str) -> ServerSnapshot:
    # A server that wants a root gets one in which there is nothing to be found.
    empty = servers.setup.scratch
    try:
        async with servers.connected(server_id, empty) as connection:
            assert connection.snapshot is not None
            return connection.snapshot
    except ServerUnavailableError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001  # the edge to foreign programs: one of them must not hide the others
        problem = words_of(error)
    config = config_digest(servers.config.servers[server_id])
    return ServerSnapshot(server_id, config, servers.setup.clock.now_us(), problem=inert(problem)[:1_000])


def _is_missing(servers: McpServers, server_id: str) -> bool:
    """Say whether nobody has asked the server by now."""
    written = servers.snapshots.read(server_id, config_digest(servers.config.servers[server_id]))
    if written is None:
        return True
    if written.problem and servers.setup.clock.now_us() - written.seen_us > timing.LONGEST_BACKOFF_S * 1_000_000:
        return True
    servers.keep(written)
    return False
