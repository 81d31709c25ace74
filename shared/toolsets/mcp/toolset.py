"""MCP servers as a source of the registry (REG-07.b): their tools and resources by snapshot, and again at a change."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from soong.shared.core import timing
from soong.shared.core.config import Config
from soong.shared.core.errors import InvalidToolError
from soong.shared.core.foreign import words_of
from soong.shared.core.jsontext import Json, JsonObject, inert
from soong.shared.core.log import get_logger
from soong.shared.core.program_config import McpServerConfig
from soong.shared.core.timing import Clock, SystemClock
from soong.shared.core.value import Value
from soong.shared.sandbox.redact import inert_text
from soong.shared.tools.definition import HandlerOutput, Permission, Target, ToolContext, ToolDefinition, Traits
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.result import ArtifactRef, ErrorType, TextBlock, ToolResult
from soong.shared.tools.schema import arguments
from soong.shared.toolsets.mcp.catalogue import (
    LoginFolder,
    ServerSnapshot,
    SnapshotFolder,
    ToolExclusion,
    config_digest,
)
from soong.shared.toolsets.mcp.connection import ServerConnection, ServerSetup, ServerUnavailableError, listed_pages
from soong.shared.toolsets.mcp.definitions import ServerTools, server_tags, server_target, tools_of
from soong.shared.toolsets.mcp.intake import raw_result
from soong.shared.toolsets.mcp.pool import McpServers
from soong.shared.toolsets.mcp.results import ResultReader, with_server

if TYPE_CHECKING:
    from mcp.client import Client

    from soong.shared.toolsets.mcp.login_auth import LoginAuth


log = get_logger(__name__)

SOURCE: Final = "MCP resources"
MAX_LISTED: Final = 500
MAX_URI_CHARS: Final = 2_000
MAX_WORDS: Final = 500
_ERRORS: Final = (ErrorType.SERVER_UNAVAILABLE, ErrorType.ELICITATION_DECLINED)

_Handler = Callable[[ToolContext, JsonObject], Awaitable[HandlerOutput]]


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
    return f"MCP server {server_id}"


class McpTools(Value):
    """The tools of all servers that are switched on. An unusable entry is left out, with its reason in the log."""

    servers: McpServers
    max_timeout: timedelta

    def register(self, registry: ToolRegistry) -> None:
        """Register the tools, and keep the registry true when a server reports that they have changed (ETS-01.f). A
        run's tools are those of the registry when it begins; a change counts from the next run on.
        """
        servers = self.servers
        asked = [server for server in servers.enabled if _must_be_asked(servers, servers.snapshot(server))]
        if asked and servers.may_start:
            look(servers, asked)
        for server in servers.enabled:
            self._register(registry, server)
        self._register_resources(registry)
        registry.on_close(self.servers.close)
        self.servers.changed.append(lambda server: self._register_again(registry, server))

    def tools_of(self, server_id: str) -> ServerTools:
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


def _must_be_asked(servers: McpServers, known: ServerSnapshot | None) -> bool:
    """Say whether nobody has asked the server by now, or not since it failed some time ago."""
    age_us = 0 if known is None else servers.setup.clock.now_us() - known.seen_us
    return known is None or (bool(known.problem) and age_us > timing.LONGEST_BACKOFF_S * 1_000_000)


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
    """Ask servers what they offer; one that cannot be asked gets a snapshot with the reason."""
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
    """Say whether no other process has asked the server; the snapshot of one is kept."""
    written = servers.snapshots.read(server_id, config_digest(servers.config.servers[server_id]))
    if written is None or _must_be_asked(servers, written):
        return True
    servers.keep(written)
    return False


class ResourceTools(Value):
    """The two tools, over the servers that have resources and whose section does not switch them off."""

    servers: McpServers
    max_timeout: timedelta

    def tools(self) -> tuple[ToolDefinition, ...]:
        """Return the tools; none where no server has resources."""
        offering = self._offering()
        if not offering:
            return ()
        known = ", ".join(offering)
        return (
            self._tool(
                offering,
                "internal.list_mcp_resources",
                f"List what an MCP server offers to be read, by URI. Servers: {known}.",
                {},
                self._list,
            ),
            self._tool(
                offering,
                "internal.read_mcp_resource",
                f"Read a resource of an MCP server by its URI, as internal.list_mcp_resources tells it. "
                f"Servers: {known}.",
                {"uri": {"type": "string", "description": "URI of it.", "minLength": 1, "maxLength": MAX_URI_CHARS}},
                self._read,
            ),
        )

    def _offering(self) -> dict[str, McpServerConfig]:
        found = {}
        for server, config in self.servers.enabled.items():
            snapshot = self.servers.snapshot(server)
            if config.resources and snapshot is not None and snapshot.has_resources and not snapshot.problem:
                found[server] = config
        return found

    def _tool(
        self,
        offering: Mapping[str, McpServerConfig],
        name: str,
        description: str,
        more: dict[str, Json],
        handler: _Handler,
    ) -> ToolDefinition:
        is_trusted = all(config.trusted for config in offering.values())
        timeout = max(config.timeout_s for config in offering.values())
        named: Json = {"type": "string", "enum": list(offering), "description": "Name of the server."}
        return ToolDefinition(
            name=name,
            description=description,
            search_hint="mcp server resource document data uri",
            input_schema=arguments("server", *more, server=named, **more),
            handler=handler,
            permission=Permission.READONLY if is_trusted else Permission.WRITE,
            tags=_tags_of_all(offering),
            timeout=min(timedelta(seconds=timeout), self.max_timeout),
            call_tags=lambda call_input: _tags_of_call(offering, call_input),
            traits=lambda _: Traits(is_read_only=is_trusted, is_concurrency_safe=is_trusted, is_open_world=True),
            target=lambda _, call_input: _target(offering, call_input),
            errors=_ERRORS,
            metadata={"reads_untrusted": True},
        )

    async def _list(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        async def use(connection: ServerConnection) -> ToolResult:
            resources, notes = await _listed(connection.client)
            lines = [" ".join(filter(None, (each["uri"], each["name"], each["description"]))) for each in resources]
            lines += [f"[{note}]" for note in notes]
            data: Json = {"resources": [dict(each) for each in resources], "is_cut": bool(notes)}
            text = "\n".join(lines) or "the server lists no resources"
            return ToolResult("", (TextBlock(text),), f"{len(resources)} resources", data)

        return await with_server(self.servers, str(call_input["server"]), context, use)

    async def _read(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        server, uri = str(call_input["server"]), str(call_input["uri"])

        async def use(connection: ServerConnection) -> ToolResult:
            answer = await connection.client.read_resource(uri, cache_mode="bypass")
            reader = ResultReader(context, f"{server}-{context.tool_call_id}")
            listed = raw_result(answer).get("contents")
            parts = listed if isinstance(listed, list) else [listed]
            content = await reader.parts([{"type": "resource", "resource": each} for each in parts])
            kept = tuple(block for block in content if isinstance(block, ArtifactRef))
            shown = content or (TextBlock("the resource is empty"),)
            return ToolResult("", shown, f"read {inert_text(uri)[:200]}", None, kept)

        return await with_server(self.servers, server, context, use)


def _tags_of_all(offering: Mapping[str, McpServerConfig]) -> frozenset[str]:
    """Return what every call is tagged with. A dangerous server among them makes the tools dangerous."""
    of_each = [server_tags(config) for config in offering.values()]
    return frozenset.intersection(*of_each) | ({"dangerous"} & frozenset.union(*of_each))


def _tags_of_call(offering: Mapping[str, McpServerConfig], call_input: JsonObject) -> frozenset[str]:
    config = offering.get(str(call_input.get("server")))
    return frozenset() if config is None else server_tags(config)


def _target(offering: Mapping[str, McpServerConfig], call_input: JsonObject) -> Target:
    server = str(call_input["server"])
    config = offering[server]
    whose = "trusted" if config.trusted else "not trusted"
    uri = inert_text(str(call_input.get("uri", "")))
    preview = f"{uri or 'the list of its resources'}\n(a resource of an MCP server that is {whose})"
    return server_target(resources_scope(server, config), config, preview)


def resources_scope(server: str, config: McpServerConfig) -> str:
    """Return what a grant on the resources of a server covers: all of them, as its section is now."""
    return f"mcp.{server}:resources@{config_digest(config)}"


async def _listed(client: "Client") -> tuple[list[dict[str, str]], list[str]]:
    """Return the resources and the templates of a server, and what is left out of them."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import METHOD_NOT_FOUND

    listed, cut = await listed_pages(client.list_resources, "resources")
    try:
        templates, cut_templates = await listed_pages(client.list_resource_templates, "resourceTemplates")
    except MCPError as error:
        if error.error.code != METHOD_NOT_FOUND:  # a server need not have templates
            raise
        templates, cut_templates = [], ""
    entries = [entry for each in (*listed, *templates) if (entry := _entry(each)) is not None]
    notes = [f"more pages are left out: {why}" for why in (cut, cut_templates) if why]
    if (bad := len(listed) + len(templates) - len(entries)) > 0:
        notes.append(f"entries without a URI are left out: {bad}")
    if len(entries) > MAX_LISTED:
        notes.append(f"there are more than {MAX_LISTED}; the rest is left out")
    return entries[:MAX_LISTED], notes


def _entry(listed: Any) -> dict[str, str] | None:
    uri = (listed.get("uri") or listed.get("uriTemplate")) if isinstance(listed, Mapping) else None
    if not isinstance(uri, str):
        return None
    fields = {"name": "name", "description": "description", "mime_type": "mimeType"}
    shown = {name: inert_text(str(listed.get(key) or ""))[:MAX_WORDS] for name, key in fields.items()}
    return {"uri": inert_text(uri)[:MAX_URI_CHARS], **shown}
