"""A server's tools as tools of the registry: names, schemas, the target for permission, and the call itself.

A server's description of its tools is a hint. Undeclared, a tool writes and reaches out; only a server that the
configuration trusts can declare that a tool only reads, or does not reach out (PER-11, MCP-01.h). The scope of a grant
holds the digest of the definition: a tool that changes is asked about again.
"""

from collections.abc import Iterator
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any, Final

from soong.shared.core.errors import InvalidToolError
from soong.shared.core.jsontext import Json, JsonObject, dump, inert
from soong.shared.core.program_config import McpServerConfig
from soong.shared.core.value import Value
from soong.shared.permissions.rules import DESCRIPTION_KEY
from soong.shared.sandbox.hosts import host_of_url
from soong.shared.sandbox.redact import inert_text
from soong.shared.tools.definition import HandlerOutput, Permission, Target, ToolContext, ToolDefinition
from soong.shared.tools.foreign_schema import SchemaRefusedError, input_schema, output_schema
from soong.shared.tools.naming import check_name
from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.mcp.catalogue import ServerSnapshot, ServerTool, ToolExclusion, canonical_tool_name
from soong.shared.toolsets.mcp.pool import McpServers
from soong.shared.toolsets.mcp.results import call_server_tool

MAX_DESCRIPTION_CHARS: Final = 4_000
_HINTS: Final = (
    ("readOnlyHint", "read-only"),
    ("destructiveHint", "destructive"),
    ("idempotentHint", "idempotent"),
    ("openWorldHint", "open world"),
)
_HEADER: Final = "x-mcp-header"
"""Marks an argument that is sent as an HTTP header as well, so that a proxy can route by it."""
_ERRORS: Final = (ErrorType.SERVER_UNAVAILABLE, ErrorType.ELICITATION_DECLINED)


class ServerTools(Value):
    """The tools of one server: those that can be registered, and those that are left out."""

    definitions: tuple[ToolDefinition, ...]
    excluded: tuple[ToolExclusion, ...]


def tools_of(snapshot: ServerSnapshot, config: McpServerConfig, servers: McpServers, most: timedelta) -> ServerTools:
    """Return the tools that a snapshot and the configuration give; ``most`` is the longest time of any tool."""
    definitions: dict[str, ToolDefinition] = {}
    excluded = [ToolExclusion(each.tool, inert(each.reason)[:500]) for each in snapshot.left_out]
    for tool in snapshot.tools:
        reason = _switched_off(tool, config)
        if reason:
            excluded.append(ToolExclusion(tool.name, reason))
            continue
        try:
            definition = _definition(snapshot, tool, config, servers, most)
        except (InvalidToolError, SchemaRefusedError) as error:
            problem = error.problem if isinstance(error, InvalidToolError) else f"its input schema: {error}"
            excluded.append(ToolExclusion(tool.name, inert(problem)[:500]))
            continue
        if definition.name in definitions:
            native = definitions[definition.name].metadata["native_name"]
            excluded.append(ToolExclusion(tool.name, f"{native!r} has the name {definition.name!r} already"))
            continue
        definitions[definition.name] = definition
    return ServerTools(tuple(definitions[name] for name in sorted(definitions)), tuple(excluded))


def _switched_off(tool: ServerTool, config: McpServerConfig) -> str:
    if not any(fnmatchcase(tool.name, pattern) for pattern in config.tools):
        return "not among `tools` of its server"
    hidden = next((pattern for pattern in config.hidden_tools if fnmatchcase(tool.name, pattern)), None)
    return "" if hidden is None else f"hidden by {hidden!r} of `hidden_tools`"


def _definition(
    snapshot: ServerSnapshot, tool: ServerTool, config: McpServerConfig, servers: McpServers, most: timedelta
) -> ToolDefinition:
    """Return the registered form of one tool. Raises: InvalidToolError, SchemaRefusedError."""
    name = canonical_tool_name(snapshot.server_id, tool.name)
    check_name(name)
    if config.url:
        _check_headers(tool.native.get("inputSchema"))
    is_read_only = config.trusted and tool.hint("readOnlyHint") is True and tool.hint("destructiveHint") is not True
    is_closed = config.trusted and tool.hint("openWorldHint") is False
    definition = snapshot.definition_of(tool)
    whose = "trusted" if config.trusted else "not trusted"
    declared = f"(the server declares: {', '.join(_hints(tool)) or 'nothing'}; it is {whose})"
    words = _described(tool)
    preview = words.partition("\n")[0][:300] + f"\n{declared}"
    target = server_target(f"{name}@{definition}", config, preview)
    native_output = tool.native.get("outputSchema")

    async def handle(context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        return await call_server_tool(servers, snapshot.server_id, tool.name, definition, context, call_input)

    return ToolDefinition(
        name=name,
        description=words,
        input_schema=input_schema(tool.native.get("inputSchema")),
        handler=handle,
        permission=Permission.READONLY if is_read_only else Permission.WRITE,
        tags=server_tags(config),
        title=inert(str(tool.native.get("title") or ""))[:200],
        output_schema=output_schema(native_output) if isinstance(native_output, dict) else None,
        timeout=min(timedelta(seconds=config.timeout_s), most),
        open_world=False if is_closed else None,
        target=lambda _context, _input: target,
        errors=_ERRORS,
        metadata={**_metadata(snapshot, tool, definition), **({} if config.trusted else {DESCRIPTION_KEY: True})},
    )


def _check_headers(schema: Any) -> None:
    """Refuse a tool at a URL that would have its arguments sent as headers which are not headers.
    Raises: SchemaRefusedError, names the argument and the reason.
    """
    if _HEADER not in dump(schema):
        return  # the SDK costs a quarter of a second: only such a schema pays it
    from mcp.shared.inbound import find_invalid_x_mcp_header

    if reason := find_invalid_x_mcp_header(schema):
        raise SchemaRefusedError(reason)


def server_tags(config: McpServerConfig) -> frozenset[str]:
    """Return the tags of a server's tools; one at a URL is reached over the network."""
    return frozenset({"mcp", *(("network",) if config.url else ()), *config.tags})


def server_target(scope: str, config: McpServerConfig, preview: str) -> Target:
    """Return what a call of a server touches; a session grant is remembered by ``scope``, and rules may name it."""
    host = host_of_url(config.url) if config.url else ""
    return Target(kind="resource", scope=scope, shown=scope, host=host, preview=preview)


def _metadata(snapshot: ServerSnapshot, tool: ServerTool, definition: str) -> dict[str, Json]:
    return {
        "server": snapshot.server_id,
        "native_name": tool.name,
        "native_schema": tool.native.get("inputSchema"),
        "native_output_schema": tool.native.get("outputSchema"),
        "hints": list(_hints(tool)),
        "definition": definition,
        "reads_untrusted": True,
    }


def _hints(tool: ServerTool) -> Iterator[str]:
    for hint, words in _HINTS:
        value = tool.hint(hint)
        if value is not None:
            yield words if value else f"not {words}"


def _described(tool: ServerTool) -> str:
    text = inert_text(tool.description).strip() or inert_text(str(tool.native.get("title") or tool.name))
    return text if len(text) <= MAX_DESCRIPTION_CHARS else f"{text[:MAX_DESCRIPTION_CHARS]}…"
