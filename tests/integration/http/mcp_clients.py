"""The official SDK's client, against the server of a scene, on either wire."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

WIRES = ("legacy", "2026-07-28")
"""The handshake of revisions up to 2025-11-25, and the stateless requests of 2026-07-28."""


class Served(Protocol):
    """A server of the HTTP API."""

    @property
    def address(self) -> str: ...


@asynccontextmanager
async def mcp_client(scene: Served, token: str, wire: str = "auto", **given: Any) -> AsyncIterator[Client]:
    """Connect with a token until the context ends."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False, verify=False) as http:
        transport = streamable_http_client(f"{scene.address}/mcp", http_client=http)
        async with Client(transport, mode=wire, **given) as client:
            yield client


def text_of(result: object) -> str:
    """Return what a model reads of a result."""
    assert isinstance(result, CallToolResult), result
    return "\n".join(one.text for one in result.content if isinstance(one, TextContent))


async def done(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return the structured result of a call that succeeds."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """Return the words of a call that fails."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, text_of(result)
    return text_of(result)
