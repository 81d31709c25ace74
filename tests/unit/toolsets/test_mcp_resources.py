"""What reading resources of servers counts as: never less than calling a tool of the least trusted one."""

import pytest

from soong.shared.core.config import parse_config
from soong.shared.tools.definition import Permission
from soong.shared.tools.registry import MAX_TIMEOUT
from soong.shared.toolsets.mcp.catalogue import ServerSnapshot, config_digest
from soong.shared.toolsets.mcp.resources import ResourceTools
from soong.shared.toolsets.mcp.toolset import servers_of


@pytest.mark.spec("MCP-01.h", "MCP-01.i")
@pytest.mark.parametrize(
    ("more", "permission"),
    [("", Permission.WRITE), ("trusted = true", Permission.READONLY), ("resources = false", None)],
    ids=["not-trusted", "trusted", "off"],
)
def test_reading_a_resource_only_reads_where_each_server_is_trusted(more: str, permission: Permission | None) -> None:
    config = parse_config(f'[mcp.servers.a]\ncommand = "x"\ntrusted = true\n[mcp.servers.b]\ncommand = "y"\n{more}')
    servers = servers_of(None, config)
    for name in ("a", "b") if more != "resources = false" else ("b",):
        servers.keep(ServerSnapshot(name, config_digest(config.mcp.servers[name]), has_resources=True))

    tools = ResourceTools(servers, MAX_TIMEOUT).tools()

    assert {tool.permission for tool in tools} == ({permission} if permission else set())
