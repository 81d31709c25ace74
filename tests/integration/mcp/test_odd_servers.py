"""Servers that answer as careless programs do: one bad tool, block, reply or code costs itself and nothing else."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from soong.shared.core.jsontext import Json, dump
from soong.shared.tools.registry import MAX_TIMEOUT
from soong.shared.tools.result import ErrorType, JsonBlock, ToolResult
from soong.shared.toolsets.mcp.toolset import McpTools
from tests.integration.mcp.scene import McpScene, mcp_scene, stdio_config
from tests.unit.tools.parts import error_of, text_of
from tests.waiting import until

SERVER = Path(__file__).with_name("odd_server.py")
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("MCP-01.n")]
PROMPT_S = 20.0
"""A call that fails at once ends long before its time limit of 100 s."""


def config(pages: Path | None = None) -> str:
    first = f'"{pages}"' if pages else ""
    return stdio_config(program=SERVER).replace(', "stdio"', f", {first}" if first else "")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpScene]:
    async with mcp_scene(tmp_path_factory.mktemp("odd"), config()) as made:
        yield made


async def said(scene: McpScene, *texts: str) -> ToolResult:
    async with asyncio.timeout(PROMPT_S):
        return await scene.call("mcp.t.say", texts=list(texts))


def reply(**members: Json) -> str:
    return dump({"jsonrpc": "2.0", "id": "#", **members}).replace('"#"', "ID")


def result_of(*blocks: Json, **more: Json) -> str:
    return reply(result={"content": list(blocks), **more})


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (['{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"half \\ud83d."}]}}'], "half \ufffd."),
        (['{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"\\ud83d\\ude00"}]}}'], "\U0001f600"),
        (['{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"caf\xe9"}]}}'], "caf\ufffd"),
        (['[{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"batch"}]}}, 7]'], "batch"),
        (['{"id":ID,"result":{"content":[{"type":"text","text":"unmarked"}]}}'], "unmarked"),
        (
            ["{", '"jsonrpc":"2.0",', '"id":ID,', '"result":{"content":', "[", '{"type":"text","text":"lines"}', "]}}"],
            "lines",
        ),
        (["{", "[Server] ready {", '{"jsonrpc":"2.0","id":ID,"result":{"content":"words alone"}}'], "words alone"),
        (["\xef\xbb\xbf" + '{"jsonrpc":"2.0","id":ID,"result":{"content":{"type":"text","text":"one"}}}'], "one"),
        (
            ['{"level":"info","id":ID}', "{'jsonrpc': 1}", "plain", '{"id":ID,"result":{"content":["after logs"]}}'],
            "after logs",
        ),
    ],
    ids=["half", "pair", "bytes", "batch", "unmarked", "lines", "greeting", "mark", "logs"],
)
async def test_a_reply_whose_meaning_is_certain_is_taken(scene: McpScene, texts: list[str], shown: str) -> None:
    result = await said(scene, *texts)

    assert result.error is None, result.error
    assert text_of(result) == shown


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"te', 'cannot be read: {"jsonrpc":"2.0","id":'),
        ('{"jsonrpc":"2.0","result":{"content":[{"type":"te', "cannot be read"),
        ('{"jsonrpc":"2.0","id":ID,"result":"done"}', 'not MCP: {"jsonrpc":"2.0","id":'),
        ('{"jsonrpc":"2.0","id":ID}', "not MCP"),
        ('{"jsonrpc":"2.0","id":null,"result":[]}', "not MCP"),
        ('{"jsonrpc":"2.0","id":ID,"result":' + "[" * 900 + "]" * 900 + "}", "cannot be read"),
        ('{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"BIG"}]}}', "more than 16777216 bytes"),
        ('{"result":{"content":[{"type":"text","text":"BIG"}]},"jsonrpc":"2.0","id":ID}', "more than 16777216 bytes"),
    ],
    ids=["cut", "cut without id", "no object", "nothing", "no id", "deep", "large", "large, id last"],
)
async def test_a_reply_that_cannot_be_read_fails_its_call_at_once_with_its_beginning(
    scene: McpScene, text: str, problem: str
) -> None:
    result, after = await said(scene, text), await said(scene, result_of({"type": "text", "text": "alive"}))

    assert (error_of(result).type, error_of(result).retryable) == (ErrorType.INVALID_OUTPUT, False)
    assert problem in error_of(result).message
    assert "call again" not in f"{error_of(result).hint}"
    assert text_of(after) == "alive"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"code": -32000, "message": "quota used up"}, "quota used up"),
        ({"code": -32001, "message": "no such document"}, "no such document"),
        ({"code": -32000, "message": "Connection closed"}, "Connection closed"),
        ({"code": "E1", "message": "odd code"}, "E1: odd code"),
        ({"code": "-32050", "message": "a number as text"}, "a number as text"),
        ({"code": 3, "message": None}, "the server reports an error without words"),
        ({"code": 3, "message": None, "data": {"why": "because"}}, '{"why":"because"}'),
        ("only words", "only words"),
    ],
)
async def test_an_error_of_the_server_is_its_words_and_other_calls_go_on(
    scene: McpScene, error: Json, message: str
) -> None:
    await said(scene, result_of({"type": "text", "text": "it has been started"}))
    before = scene.servers.pids
    waiting = asyncio.create_task(scene.call("mcp.t.slow"))
    await until(lambda: len(scene.gate.asked) > 0 and scene.gate.asked[-1].definition.name == "mcp.t.slow")
    failed = await said(scene, reply(error=error))
    await scene.call("mcp.t.release")
    slow = await waiting

    assert (error_of(failed).type, error_of(failed).message) == (ErrorType.EXECUTION_FAILED, message)
    assert text_of(slow) == "slow and sure"
    assert scene.servers.pids == before


FOUND = {"accounts": [{"id": 1}, {"id": 2}]}


@pytest.mark.spec("MCP-01.c")
@pytest.mark.parametrize(
    ("answer", "shown", "structured"),
    [
        ({"content": [{"type": "text", "text": "Found 2."}], "structuredContent": FOUND}, "Found 2.", [FOUND]),
        ({"content": [{"type": "text", "text": " "}], "structuredContent": FOUND}, "", [FOUND]),
        ({"structuredContent": FOUND}, "", [FOUND]),
        ({"content": [{"type": "text", "text": json.dumps(FOUND, indent=1)}], "structuredContent": FOUND}, None, []),
        ({"content": [{"type": "text", "text": "7"}], "structuredContent": {"result": 7}}, "7", []),
        ({"content": ["a", "b"], "structuredContent": {"result": ["a", "b"]}}, "a\nb", []),
        ({"structuredContent": FOUND, "isError": True}, "", [FOUND]),
    ],
    ids=["sentence", "blank", "alone", "same", "wrapped", "wrapped list", "error"],
)
async def test_structured_content_reaches_the_model_once(
    scene: McpScene, answer: Json, shown: str | None, structured: list[Json]
) -> None:
    result = await said(scene, reply(result=answer))

    assert [block.value for block in result.content if isinstance(block, JsonBlock)] == structured
    assert shown is None or text_of(result).strip() == shown
    if result.error is not None:
        assert '"accounts"' in result.error.message


@pytest.mark.spec("MCP-01.c")
async def test_a_part_that_cannot_be_read_costs_that_part_alone(scene: McpScene) -> None:
    bad: list[Json] = [{"type": "hologram"}, {"type": "text"}, {"type": "image", "data": 7}, {"text": "x"}, None, []]
    result = await said(scene, result_of({"type": "text", "text": "good"}, *bad))

    assert result.error is None
    assert text_of(result).splitlines() == [
        "good",
        "[content of the unknown type 'hologram' is left out]",
        "[a part of the type 'text' without content is left out]",
        "[a part of the type 'image' without content is left out]",
        *["[a part without a type is left out]"] * 3,
    ]


@pytest.mark.spec("MCP-01.i")
async def test_resources_that_cannot_be_read_are_left_out_and_said(scene: McpScene) -> None:
    listed = await scene.call("internal.list_mcp_resources", server="t")
    read = await scene.call("internal.read_mcp_resource", server="t", uri="a://1")

    assert text_of(listed).splitlines() == [
        "a://1 one",
        "[more pages are left out: the server lists the same entries again]",
        "[entries without a URI are left out: 2]",
    ]
    assert text_of(read).splitlines() == ["good", *["[a resource without text and without bytes is left out]"] * 2]


def tool(name: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


LARGE = 2**63 - 1
NODE = {
    "type": "object",
    "properties": {"next": {"$ref": "#/$defs/node"}, "size": {"type": "integer", "maximum": LARGE}},
}
BAD_PAGE: dict[str, Any] = {
    "tools": [
        {"name": "no_schema"},
        tool("null_schema", inputSchema=None),
        tool("text_schema", inputSchema={"type": "string"}),
        tool("odd_field", inputSchema={"type": "object", "properties": {"coin": {}, "required": ["coin"]}}),
        tool("huge", description="x" * 300_000),
        None,
        tool(None),
        tool("any", inputSchema={}),
        tool("untyped", inputSchema={"properties": {"a": {"type": "string"}}}),
        tool("php", inputSchema={"type": "object", "properties": [], "required": None}, title=7, annotations=[]),
        tool(
            "node",
            inputSchema={"type": "object", "properties": {"node": {"$ref": "#/$defs/node"}}, "$defs": {"node": NODE}},
        ),
        tool("查询天气"),
        tool("查询时间"),
        tool("Größe"),
    ],
    "nextCursor": 2,
}


@pytest.mark.spec("MCP-01.b", "MCP-01.j")
async def test_one_bad_tool_is_left_out_by_its_name_and_the_others_stay(tmp_path: Path) -> None:
    pages = {"": BAD_PAGE, "2": {"tools": [tool("second_page")], "nextCursor": None}}
    (tmp_path / "pages.json").write_text(json.dumps(pages))
    async with mcp_scene(tmp_path, config(tmp_path / "pages.json")) as scene:
        found = McpTools(scene.servers, MAX_TIMEOUT).tools_of("t")
        called = await scene.call("mcp.t.say", texts=[result_of({"type": "text", "text": "works"})])

    natives = {str(each.metadata["native_name"]): each.name for each in found.definitions}
    reasons = {each.tool: each.reason for each in found.excluded}
    taken = {"any", "untyped", "php", "node", "second_page", "查询天气", "查询时间", "Größe"}
    assert set(natives) == {"say", "slow", "release", *taken}
    assert len(set(natives.values())) == len(natives)
    assert natives["查询天气"].startswith("mcp.t.xn--")
    assert set(reasons) == {"no_schema", "null_schema", "text_schema", "odd_field", "huge", "entry 9", "entry 10"}
    assert "is missing" in reasons["no_schema"]
    assert "bytes" in reasons["huge"]
    assert text_of(called) == "works"


@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        (
            {"": {"tools": [tool("a")], "nextCursor": "x"}, "x": {"tools": [tool("a")], "nextCursor": "y"}},
            "same entries again",
        ),
        (
            {"": {"tools": [tool("a")], "nextCursor": "x"}, "x": {"tools": [], "nextCursor": "x"}},
            "same page as the next one",
        ),
        ({"": {"tools": [tool("a")], "nextCursor": "x"}, "x": {"tools": "none"}}, "no list of tools"),
    ],
    ids=["entries", "cursor", "no list"],
)
async def test_pages_without_an_end_are_bounded_and_said(tmp_path: Path, pages: Any, reason: str) -> None:
    (tmp_path / "pages.json").write_text(json.dumps(pages))
    async with mcp_scene(tmp_path, config(tmp_path / "pages.json")) as scene:
        found = McpTools(scene.servers, MAX_TIMEOUT).tools_of("t")

    assert "mcp.t.a" in {each.name for each in found.definitions}
    (left,) = found.excluded
    assert left.tool == "more pages"
    assert reason in left.reason
