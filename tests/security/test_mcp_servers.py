"""Hostile MCP servers: what one sends costs its own calls, not the worker's loop or its memory (MCP-01.n)."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from soong.shared.tools.result import ErrorType, JsonBlock, ToolResult
from soong.shared.toolsets.mcp.intake import MAX_VALUES
from tests.integration.mcp.scene import McpScene, mcp_scene, stdio_config
from tests.security.hostile_mcp_server import DO, REQUESTS
from tests.waiting import until

PROGRAM = Path(__file__).with_name("hostile_mcp_server.py")
pytestmark = [pytest.mark.asyncio, pytest.mark.spec("MCP-01.n")]
LONGEST_S = 3.0
"""No message holds the loop so long, also on a machine with much else to do."""


@asynccontextmanager
async def without_pause() -> AsyncIterator[None]:
    """Fail if the loop stood still for long within this."""
    last, longest = time.monotonic(), 0.0

    async def tick() -> None:
        nonlocal last, longest
        while True:
            await asyncio.sleep(0.01)  # each round measures how late it comes
            longest, last = max(longest, time.monotonic() - last), time.monotonic()

    ticking = asyncio.create_task(tick())
    yield
    await asyncio.sleep(0.02)
    ticking.cancel()
    assert longest < LONGEST_S, longest


async def counts(scene: McpScene, mode: str) -> dict[str, Any]:
    """Have the server do something; return what it has counted before the call ended."""
    result = await scene.call("mcp.t.do", mode=mode)
    assert result.error is None, result.error
    (block,) = (one for one in result.content if isinstance(one, JsonBlock))
    assert isinstance(block.value, dict)
    return block.value


async def test_a_string_without_an_end_is_read_in_linear_time(tmp_path: Path) -> None:
    async with mcp_scene(tmp_path, stdio_config(program=PROGRAM)) as scene, without_pause():
        await counts(scene, "quotes")


async def test_the_number_of_values_in_an_answer_is_bounded_and_costs_no_more_than_twice_for_twice(
    tmp_path: Path,
) -> None:
    async with mcp_scene(tmp_path, stdio_config(program=PROGRAM)) as scene, without_pause():
        await counts(scene, "")
        cpu_s: list[float] = []
        for number in (45_000, 90_000, 150_000, 2_000_000):
            begun_s = time.process_time()
            result = await scene.call("mcp.t.do", mode=f"values {number}")
            cpu_s.append(time.process_time() - begun_s)
            if 2 * number < MAX_VALUES:
                assert result.error is None
            else:
                assert result.error is not None
                assert result.error.type is ErrorType.INVALID_OUTPUT
                assert f"more than {MAX_VALUES} values" in result.error.message

        assert cpu_s[1] < 4 * cpu_s[0]
        assert max(cpu_s[2:]) < cpu_s[1]


@pytest.mark.parametrize(("mode", "most"), [("ask", REQUESTS + 1), ("ask again", REQUESTS * 2 // 3)])
async def test_requests_of_a_server_that_reads_no_answers_are_bounded(tmp_path: Path, mode: str, most: int) -> None:
    async with mcp_scene(tmp_path, stdio_config(program=PROGRAM)) as scene, without_pause():
        await counts(scene, mode)
        after = await counts(scene, "")

        assert 0 < after["answers"] < most


@pytest.mark.spec("MCP-01.d")
async def test_a_server_whose_tools_change_at_each_look_is_looked_at_once_a_second(tmp_path: Path) -> None:
    async with mcp_scene(tmp_path, stdio_config(program=PROGRAM)) as scene:
        before, began_s = await counts(scene, "chase"), time.monotonic()
        pipeline = scene.pipeline()
        await until(lambda: time.monotonic() - began_s > 2.5)

        result = await scene.call_in(pipeline, "mcp.t.do", {"mode": ""})
        refused = result.error
        assert refused is not None
        assert "changed 'do' since this run began" in refused.message
        snapshot = scene.servers.snapshot("t")
        assert snapshot is not None
        seen = int(snapshot.tools[0].description.removeprefix("list "))
        assert 1 <= seen - before["lists"] <= 2 + (time.monotonic() - began_s)


EVENTS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nMcp-Session-Id: s\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class HostileSite:
    """A server over HTTP that ends each stream at once and asks for no pause, and answers a call with empty lines."""

    def __init__(self) -> None:
        self.streams = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
                body = await reader.readexactly(int(fields.get(b"content-length", 0)))
                for piece in self.answers(json.loads(body) if body else {}):
                    writer.write(piece)
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def answers(self, asked: dict[str, Any]) -> Iterator[bytes]:
        method = asked.get("method")
        if method is not None and "id" not in asked:
            yield b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
            return
        yield EVENTS
        if method == "initialize":
            about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            yield chunk(event({"id": asked["id"], "result": about}))
        elif method == "tools/list":
            yield chunk(event({"id": asked["id"], "result": {"tools": [DO]}}))
        elif method == "tools/call":
            for _ in range(400):
                yield chunk(b"data:\n" * 10_000)
        else:
            self.streams += 1
            yield chunk(b"retry: 0\nid: 1\ndata:\n\n")
        yield chunk(b"")


def event(message: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def test_a_server_over_http_chooses_neither_how_often_it_is_asked_nor_how_much_is_held(tmp_path: Path) -> None:
    site = HostileSite()
    async with await asyncio.start_server(site.serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        text = f'[mcp.servers.t]\nurl = "http://127.0.0.1:{port}/mcp"\nprotocol = "handshake"\n'
        began_s = time.monotonic()
        async with mcp_scene(tmp_path, text) as scene, without_pause():
            result: ToolResult = await scene.call("mcp.t.do", mode="")

            assert result.error is not None
            assert result.error.type is ErrorType.INVALID_OUTPUT, result.error
            assert "more than 16777216 bytes" in result.error.message
        assert site.streams <= 5 + 2 * (time.monotonic() - began_s)
