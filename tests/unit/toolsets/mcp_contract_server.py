"""The tools of the source contract as an MCP server: a program of the official SDK, with nothing of ours."""

import asyncio

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

HOSTILE = "\x1b[2J\u202e AKIAABCDEFGHIJKLMNOP " + "x" * 40_000
server = MCPServer("contract")


@server.tool()
def echo(text: str, count: int = 1) -> str:
    """Say a text again."""
    return text * count


@server.tool()
async def slow() -> str:
    """Take a minute."""
    await asyncio.Event().wait()
    return "late"


@server.tool(name="break")
def fail() -> str:
    """Fail."""
    raise ToolError("it broke")


@server.tool(structured_output=False)
def hostile() -> str:
    """Give too much, with a secret and with marks that turn a terminal."""
    return HOSTILE


if __name__ == "__main__":
    server.run("stdio")
