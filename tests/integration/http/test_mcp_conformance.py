"""The official conformance suite of MCP against our server, behind our HTTP edge, in both revisions of the protocol."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pytest
import uvicorn

from soong.orchestrator.embedded.listening import address_of, listen
from soong.orchestrator.http.app import make_app, make_routes
from soong.orchestrator.http.edge import App, RequestPolicy
from soong.orchestrator.http.mcp_endpoint import McpEndpoint
from soong.orchestrator.http.server import BoundedConnection
from soong.shared.permissions.access.token import Right
from tests.extra import acp_node, mcp_modules
from tests.integration.http.conftest import OpenScene
from tests.integration.http.scene import ADA, HttpHarness
from tests.mcp.suite_server import suite_server

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.timeout(540),
    pytest.mark.spec("MCP-02", "MCP-02.e"),
    # The suite also covers what the newest revision deprecates.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

KNOWN: Final = Path(__file__).parents[2] / "mcp"


@dataclass(frozen=True, slots=True)
class _WithToken:
    """The suite sends no token: each of its requests gets one here, and passes every other check as it is."""

    inner: App
    token: str

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sent = (b"authorization", f"Bearer {self.token}".encode())
        await self.inner({**scope, "headers": [*scope["headers"], sent]}, receive, send)


@asynccontextmanager
async def serving(scene: HttpHarness) -> AsyncIterator[str]:
    """Serve the suite's tools as Soong serves its own; yield the address."""
    mcp = McpEndpoint(scene.api, make_routes(scene.api), suite_server)
    app = make_app(scene.api, RequestPolicy(), mcp)
    listener = listen("127.0.0.1", 0, ())
    with_token = _WithToken(app, await scene.token(ADA, (Right.READ,)))
    server = uvicorn.Server(
        uvicorn.Config(cast(Any, with_token), http=BoundedConnection, ws="none", lifespan="off", log_config=None)
    )
    async with mcp.running():
        running = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
        try:
            yield f"{address_of(listener)}/mcp"
        finally:
            server.should_exit = True
            await running


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_every_scenario_passes_but_the_known_ones(open_http: OpenScene, tmp_path: Path, revision: str) -> None:
    suite = mcp_modules() / "@modelcontextprotocol/conformance/dist/index.js"
    known = KNOWN / f"not_passed_{revision}.yaml"
    async with open_http() as scene, serving(scene) as url:
        options = ["--suite", "all", "--spec-version", revision, "--expected-failures", str(known)]
        process = await asyncio.create_subprocess_exec(
            *[acp_node(), str(suite), "server", "--url", url, *options],
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()

    assert process.returncode == 0, said.decode()[-8000:]
