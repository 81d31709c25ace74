"""An MCP server that needs a person, written with the official SDK: ``python asking_server.py``."""

from collections import Counter
from typing import Annotated, Any

from mcp.server.mcpserver import Elicit, ElicitationResult, MCPServer, Resolve
from mcp.shared.exceptions import MCPError, UrlElicitationRequiredError
from mcp_types import URL_ELICITATION_REQUIRED, ElicitRequestURLParams
from pydantic import BaseModel

server = MCPServer("asking", version="1")
calls: Counter[str] = Counter()


@server.tool()
def share(key: str, pages: list[str], refusals: int = 1) -> str:
    """Share a file, once a person has been at these pages."""
    calls[key] += 1
    if calls[key] <= refusals:
        raise UrlElicitationRequiredError(
            [
                ElicitRequestURLParams(message=f"Sign in, {number}", url=page, elicitation_id=f"{key}-{number}")
                for number, page in enumerate(pages, 1)
            ],
            "sign in first",
        )
    return f"shared at call {calls[key]}"


@server.tool()
def garble(key: str, data: dict[str, Any]) -> str:
    """Refuse with that error and whatever data."""
    calls[key] += 1
    raise MCPError(URL_ELICITATION_REQUIRED, "no sense", data)


@server.tool()
def count(key: str) -> int:
    """Say how often a tool was called with this key."""
    return calls[key]


class Order(BaseModel):
    colour: str
    size: int


async def _order() -> Elicit[Order]:
    return Elicit("Which colour and size?", Order)


@server.tool()
async def order(wanted: Annotated[ElicitationResult[Order], Resolve(_order)]) -> str:
    """Ask a person for a colour and a size, and say what came."""
    return f"{wanted.action} {getattr(wanted, 'data', None)}"


if __name__ == "__main__":
    server.run("stdio")
