"""Calls of a real server's tools, by standard input and output and by HTTP, on both wires, through the pipeline."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from soong.shared.core.jsontext import dump
from soong.shared.permissions.rules import reads_untrusted
from soong.shared.tools.definition import Permission
from soong.shared.tools.result import ErrorType, ToolResult
from tests.integration.mcp.scene import SERVER, McpScene, answering, asking_tool, family, mcp_scene, stdio_config
from tests.servers import free_port
from tests.unit.tools.parts import error_of, make_identity, text_of
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "s3cret-value-1"


def data_of(result: ToolResult) -> dict[str, Any]:
    assert isinstance(result.data, dict)
    return result.data


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["handshake", "stateless"])
async def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpScene]:
    """One server for each wire, for all tests that leave it as it is, or end it."""
    folder = tmp_path_factory.mktemp("mcp")
    env = f'{{SERVER_SECRET = "env:MY_TOKEN", WAIT_MARKER = "{folder}/cancelled"}}'
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MY_TOKEN", SECRET)
        patch.setenv("UNRELATED", "not-for-servers")
        text = stdio_config(more=f'protocol = "{request.param}"\nenv = {env}')
        async with mcp_scene(folder, text, is_known=True) as made:
            yield made


@pytest.mark.spec("MCP-01.a", "MCP-01.b", "MCP-01.c", "MCP-01.j", "REG-07.b")
async def test_a_tool_is_called_on_both_wires_and_its_result_has_data_text_and_artifacts(scene: McpScene) -> None:
    added = await scene.call("mcp.t.add", a=2, b=3)
    shown = await scene.call("mcp.t.picture")
    failed = await scene.call("mcp.t.fail", words="not today")
    bad = await scene.call("mcp.t.add", a="two", b=3)

    assert added.ok
    assert added.data == {"total": 5, "of": [2, 3], "note": None}
    assert scene.artifacts.stored == [b"\x89PNG not a real one"]
    assert [ref.media_type for ref in shown.artifacts] == ["image/png"]
    assert "a picture" in text_of(shown)
    assert "resource: note://1, notes, the first note" in text_of(shown)
    assert error_of(failed).type is ErrorType.EXECUTION_FAILED
    assert "not today" in error_of(failed).message
    assert error_of(bad).type is ErrorType.INVALID_INPUT
    definition = scene.registry.get("mcp.t.add")
    assert definition is not None
    assert definition.metadata["native_name"] == "add"
    assert "anyOf" in dump(definition.metadata["native_schema"])
    assert "anyOf" not in dump(definition.input_schema)


@pytest.mark.spec("MCP-01.f")
async def test_a_call_out_of_time_ends_and_the_server_goes_on(scene: McpScene) -> None:
    marker = scene.folder / "cancelled"
    before = await scene.call("mcp.t.where")
    marker.unlink(missing_ok=True)
    late = await scene.call_in(scene.pipeline(max_timeout=timedelta(seconds=0.3)), "mcp.t.wait", {"seconds": 60})
    await until(marker.exists)
    after = await scene.call("mcp.t.where")

    assert error_of(late).type is ErrorType.TIMEOUT
    assert data_of(after)["pid"] == data_of(before)["pid"]


@pytest.mark.spec("MCP-01.f")
async def test_a_server_that_is_killed_in_a_call_is_unavailable_and_the_next_call_starts_another(
    scene: McpScene,
) -> None:
    before = await scene.call("mcp.t.where")
    scene.log.notes.clear()
    call = asyncio.create_task(scene.call("mcp.t.wait", seconds=60))
    await until(lambda: bool(scene.progress))
    os.kill(int(data_of(before)["pid"]), signal.SIGKILL)
    killed = await call
    after = await scene.call("mcp.t.where")

    assert error_of(killed).type is ErrorType.SERVER_UNAVAILABLE
    assert error_of(killed).retryable
    assert data_of(after)["pid"] != data_of(before)["pid"]


@pytest.mark.spec("MCP-01.g")
async def test_two_hundred_calls_share_one_process_which_is_stopped_when_nobody_uses_it(tmp_path: Path) -> None:
    async with mcp_scene(tmp_path, stdio_config(top="idle_s = 1.0"), is_known=True) as scene:
        results = await asyncio.gather(*(scene.call("mcp.t.where") for _ in range(200)))
        seen = {data_of(result)["pid"] for result in results}
        (keeper,) = scene.servers.pids
        members = family(keeper)
        await until(lambda: not any(map(psutil.pid_exists, members)))
        again = await scene.call("mcp.t.where")

        assert len(seen) == 1
        assert seen < set(members)
        assert data_of(again)["pid"] not in seen


@pytest.mark.spec("MCP-01.a")
async def test_a_server_gets_the_project_as_its_root_and_folder_and_no_other_project_shares_it(
    scene: McpScene, tmp_path: Path
) -> None:
    here, there = await scene.call("mcp.t.where"), await scene.call("mcp.t.where", tmp_path)
    roots = await scene.call("mcp.t.roots")

    assert data_of(here)["cwd"] == str(scene.project)
    assert data_of(there)["cwd"] == str(tmp_path)
    assert data_of(here)["pid"] != data_of(there)["pid"]
    if scene.is_handshake:  # on the stateless wire this server has no way to ask
        assert roots.data == {"result": [scene.project.as_uri()]}


@pytest.mark.spec("MCP-01.d")
async def test_no_rule_answers_what_a_server_asks_a_person(scene: McpScene) -> None:
    scene.log.notes.clear()

    asked = await scene.call(asking_tool(scene))

    assert text_of(asked) == "decline None"
    assert scene.gate.asked[-1].hook_result == "ask"
    assert any("no person has answered it" in said for said in scene.progress)


@pytest.mark.spec("MCP-01.d", "PER-03")
async def test_what_a_server_asks_a_person_is_a_question_of_the_run_whose_call_it_is(scene: McpScene) -> None:
    scene.log.notes.clear()
    with answering(scene, "7"):
        answered = await scene.call(asking_tool(scene))
    question = scene.gate.asked[-1]
    with answering(scene, None):
        declined = await scene.call(asking_tool(scene))

    assert text_of(answered) == ("accept colour='7'" if scene.is_handshake else "accept size=7")
    assert text_of(declined) == "decline None"
    assert question.definition.name == "mcp.t.elicitation/create"
    assert question.identity == make_identity()
    assert question.tool_call_id.startswith(f"call_{scene.calls - 1}.ask-")
    assert question.target.scope == ""
    assert "The MCP server t (not trusted) asks during this call" in question.target.preview
    assert "| Which " in question.target.preview
    assert any("accept: a person accepted" in said for said in scene.progress)


@pytest.mark.spec("MCP-01.d")
async def test_a_question_is_declined_where_it_cannot_be_known_which_of_several_calls_it_is_of(scene: McpScene) -> None:
    scene.log.notes.clear()
    before = len(scene.gate.asked)
    other = asyncio.create_task(scene.call("mcp.t.wait", seconds=60))
    await until(lambda: bool(scene.progress))
    with answering(scene, "7"):
        asked = await scene.call(asking_tool(scene))
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other

    questions = [one for one in scene.gate.asked[before:] if one.is_under_way]
    if scene.is_handshake:
        assert text_of(asked) == "decline None"
        assert questions == []
        assert any("2 calls are under way at the server" in said for said in scene.progress)
    else:  # on the stateless wire a question is a part of the result of one call
        assert text_of(asked) == "accept size=7"
        assert len(questions) == 1


@pytest.mark.spec("MCP-01.d", "PER-15")
async def test_a_call_that_is_cancelled_takes_its_question_back(scene: McpScene) -> None:
    asked, withdrawn = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        if scene.gate.asked[-1].is_under_way:
            asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                withdrawn.set()
                raise

    scene.gate.before = wait
    try:
        call = asyncio.create_task(scene.call(asking_tool(scene)))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    finally:
        scene.gate.before = None

    assert withdrawn.is_set()
    assert (await scene.call("mcp.t.add", a=1, b=1)).ok


@pytest.mark.spec("MCP-01.i", "MCP-01.c", "PER-21.a")
async def test_resources_are_listed_and_read_as_what_strangers_wrote(scene: McpScene) -> None:
    listed = await scene.call("internal.list_mcp_resources", server="t")
    note = await scene.call("internal.read_mcp_resource", server="t", uri="note://7")
    picture = await scene.call("internal.read_mcp_resource", server="t", uri="picture://one")
    missing = await scene.call("internal.read_mcp_resource", server="t", uri="nothing://here")
    unknown = await scene.call("internal.read_mcp_resource", server="other", uri="note://7")

    assert [each["uri"] for each in data_of(listed)["resources"]] == ["picture://one", "note://{number}"]
    assert text_of(note) == "note 7"
    assert [ref.media_type for ref in picture.artifacts] == ["image/png"]
    assert "nothing://here" in error_of(missing).message
    assert error_of(unknown).type is ErrorType.INVALID_INPUT
    asked = scene.gate.asked[-2]
    assert asked.target.scope.startswith("mcp.t:resources@")
    assert (asked.definition.permission, asked.traits.is_read_only) == (Permission.WRITE, False)
    assert asked.traits.is_open_world
    assert reads_untrusted(asked.definition)


@pytest.mark.spec("ETS-01.f")
async def test_a_changed_tool_is_refused_in_a_run_that_began_before_and_new_to_the_next(scene: McpScene) -> None:
    try:
        await _check_change(scene)
    finally:
        await scene.call("mcp.t.die")  # the next is as it was


async def _check_change(scene: McpScene) -> None:
    await scene.call("mcp.t.add", a=1, b=1)
    run = scene.pipeline()
    old = scene.registry.get("mcp.t.fail")
    await scene.call_in(run, "mcp.t.grow", {})
    await until(lambda: scene.registry.get("mcp.t.more") is not None)
    refused = await scene.call_in(run, "mcp.t.fail", {"words": "x"})
    unknown = await scene.call_in(run, "mcp.t.more", {"x": 1})
    fresh = await scene.call("mcp.t.more", x=1)
    new = scene.registry.get("mcp.t.fail")

    assert "has changed 'fail' since this run began" in error_of(refused).message
    assert error_of(unknown).type is ErrorType.TOOL_NOT_AVAILABLE
    assert fresh.ok
    assert old is not None
    assert new is not None
    assert old.metadata["definition"] != new.metadata["definition"]


@pytest.mark.spec("PER-11.d", "MCP-01.h")
async def test_the_scope_of_a_grant_is_the_tool_as_it_is_defined_now(scene: McpScene) -> None:
    await scene.call("mcp.t.add", a=1, b=1)
    definition = scene.registry.get("mcp.t.add")

    assert definition is not None
    assert scene.gate.asked[-1].target.scope == f"mcp.t.add@{definition.metadata['definition']}"
    assert not scene.gate.asked[-1].traits.is_read_only
    assert scene.gate.asked[-1].traits.is_open_world


@pytest.mark.spec("EVT-05")
async def test_a_secret_by_reference_reaches_the_server_and_nothing_else(scene: McpScene) -> None:
    result = await scene.call("mcp.t.where")

    assert data_of(result)["secret"] == SECRET
    assert "UNRELATED" not in data_of(result)["env"]
    assert "MY_TOKEN" not in data_of(result)["env"]
    assert "MY_TOKEN" in scene.config.secret_env
    snapshots = list((scene.home / "mcp").glob("*.json"))
    assert snapshots
    for path in snapshots:
        assert "s3cret" not in path.read_text(encoding="utf-8")
    commands = [psutil.Process(pid).cmdline() for keeper in scene.servers.pids for pid in family(keeper)]
    assert str(SERVER) in commands[-1]
    assert "s3cret" not in " ".join(word for command in commands for word in command)


@pytest.mark.spec("PER-13.i")
async def test_a_server_that_says_it_is_soong_gives_no_tools_under_any_name(tmp_path: Path) -> None:
    async with mcp_scene(tmp_path, stdio_config(more='env = {SERVER_NAME = "soong"}')) as scene:
        snapshot = scene.servers.snapshot("t")

        assert snapshot is not None
        assert snapshot.problem == "it is Soong's own server, whose tools no agent has"
        assert scene.registry.definitions() == ()


def start(port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(SERVER), "http", str(port)], stderr=subprocess.DEVNULL)


async def answers(port: int) -> None:
    def is_open() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    await until(is_open, 60)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["handshake", "stateless"])
async def http_scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[McpScene]:
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
async def test_a_server_at_a_url_is_called_and_named_by_its_host(http_scene: McpScene) -> None:
    added = await http_scene.call("mcp.t.add", a=20, b=3)

    assert added.data == {"total": 23, "of": [20, 3], "note": None}
    assert http_scene.gate.asked[-1].target.host == "127.0.0.1"
    assert "network" in http_scene.gate.asked[-1].definition.tags


@pytest.mark.spec("MCP-01.i", "PER-09.f")
async def test_reading_a_resource_of_a_server_at_a_url_reaches_the_network(http_scene: McpScene) -> None:
    note = await http_scene.call("internal.read_mcp_resource", server="t", uri="note://7")

    assert note.error is None, note.error
    assert "network" in http_scene.gate.asked[-1].definition.tags


@pytest.mark.spec("MCP-01.f", "RES-03")
async def test_an_answer_has_at_most_16_mib_and_a_larger_one_fails_alone(http_scene: McpScene) -> None:
    small = await http_scene.call("mcp.t.shout", size=4 << 20)
    large = await http_scene.call("mcp.t.shout", size=20 << 20)
    after = await http_scene.call("mcp.t.add", a=1, b=2)

    assert small.error is None, small.error
    assert "16777216 byte" in error_of(large).message
    assert after.error is None


@pytest.mark.spec("MCP-01.d")
async def test_a_question_in_the_answer_of_a_call_is_of_that_call_whatever_else_is_under_way(
    http_scene: McpScene,
) -> None:
    http_scene.log.notes.clear()
    slow = asyncio.create_task(http_scene.call("mcp.t.wait", seconds=60))
    await until(lambda: bool(http_scene.progress))
    with answering(http_scene, "7"):
        asked = await http_scene.call(asking_tool(http_scene))
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow

    (question,) = [one for one in http_scene.gate.asked if one.is_under_way]
    assert question.tool_call_id.startswith(f"call_{http_scene.calls}.ask-")
    assert asked.data == {"result": "accept colour='7'" if http_scene.is_handshake else "accept size=7"}


@pytest.mark.spec("MCP-01.f")
async def test_a_server_that_went_away_is_unavailable_until_it_is_back(tmp_path: Path) -> None:
    port = free_port()
    process = start(port)
    try:
        await answers(port)
        async with mcp_scene(tmp_path, f'[mcp.servers.t]\nurl = "http://127.0.0.1:{port}/mcp"') as http_scene:
            first = await http_scene.call("mcp.t.add", a=1, b=1)
            process.kill()
            process.wait()
            gone = await http_scene.call("mcp.t.add", a=1, b=1)
            process = start(port)
            await answers(port)
            async with asyncio.timeout(60):
                while not (back := await http_scene.call("mcp.t.add", a=1, b=1)).ok:
                    assert error_of(back).type is ErrorType.SERVER_UNAVAILABLE  # it is tried again after a wait
    finally:
        process.kill()
        process.wait()

    assert first.ok
    assert error_of(gone).type is ErrorType.SERVER_UNAVAILABLE
    assert back.ok
