"""A real server over streamable HTTP, on both wires."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from soong.shared.tools.result import ErrorType
from tests.integration.mcp.scene import SERVER, McpScene, answering, asking_tool, mcp_scene
from tests.servers import free_port
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


def start(port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(SERVER), "http", str(port)], stderr=subprocess.DEVNULL)


async def answers(port: int) -> None:
    def is_open() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    await until(is_open, 60)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["handshake", "stateless"])
async def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpScene]:
    port = free_port()
    process = start(port)
    try:
        await answers(port)
        text = f'[mcp.servers.t]\nurl = "http://127.0.0.1:{port}/mcp"\nprotocol = "{request.param}"'
        async with mcp_scene(tmp_path_factory.mktemp("mcp"), text) as made:
            yield made
    finally:
        process.kill()
        process.wait()


@pytest.mark.spec("MCP-01.a", "MCP-01.c", "PER-09.e")
async def test_a_server_at_a_url_is_called_and_named_by_its_host(scene: McpScene) -> None:
    added = await scene.call("mcp.t.add", a=20, b=3)

    assert added.data == {"total": 23, "of": [20, 3], "note": None}
    assert scene.gate.asked[-1].target.host == "127.0.0.1"
    assert "network" in scene.gate.asked[-1].definition.tags


@pytest.mark.spec("MCP-01.i", "PER-09.f")
async def test_reading_a_resource_of_a_server_at_a_url_reaches_the_network(scene: McpScene) -> None:
    note = await scene.call("internal.read_mcp_resource", server="t", uri="note://7")

    assert note.error is None, note.error
    assert "network" in scene.gate.asked[-1].definition.tags


@pytest.mark.spec("MCP-01.f", "RES-03")
async def test_an_answer_has_at_most_16_mib_and_a_larger_one_fails_alone(scene: McpScene) -> None:
    small = await scene.call("mcp.t.shout", size=4 << 20)
    large = await scene.call("mcp.t.shout", size=20 << 20)
    after = await scene.call("mcp.t.add", a=1, b=2)

    assert small.error is None, small.error
    assert large.error is not None
    assert "16777216 byte" in large.error.message
    assert after.error is None


@pytest.mark.spec("MCP-01.d")
async def test_a_question_in_the_answer_of_a_call_is_of_that_call_whatever_else_is_under_way(scene: McpScene) -> None:
    scene.log.notes.clear()
    slow = asyncio.create_task(scene.call("mcp.t.wait", seconds=60))
    await until(lambda: bool(scene.progress))
    with answering(scene, "7"):
        asked = await scene.call(asking_tool(scene))
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow

    (question,) = [one for one in scene.gate.asked if one.is_under_way]
    assert question.tool_call_id.startswith(f"call_{scene.calls}.ask-")
    assert asked.data == {"result": "accept colour='7'" if scene.is_handshake else "accept size=7"}


@pytest.mark.spec("MCP-01.f")
async def test_a_server_that_went_away_is_unavailable_until_it_is_back(tmp_path: Path) -> None:
    port = free_port()
    process = start(port)
    try:
        await answers(port)
        async with mcp_scene(tmp_path, f'[mcp.servers.t]\nurl = "http://127.0.0.1:{port}/mcp"') as scene:
            first = await scene.call("mcp.t.add", a=1, b=1)
            process.kill()
            process.wait()
            gone = await scene.call("mcp.t.add", a=1, b=1)
            process = start(port)
            await answers(port)
            async with asyncio.timeout(60):
                while not (back := await scene.call("mcp.t.add", a=1, b=1)).ok:
                    assert back.error is not None
                    assert back.error.type is ErrorType.SERVER_UNAVAILABLE  # it is tried again after a wait
    finally:
        process.kill()
        process.wait()

    assert first.ok
    assert gone.error is not None
    assert gone.error.type is ErrorType.SERVER_UNAVAILABLE
    assert back.ok
