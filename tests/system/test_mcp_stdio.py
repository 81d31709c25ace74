"""MCP as users have it: Soong as a server, servers that are added, and their tools in a service of real processes."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from soong.shared.permissions.request import PermissionRequest
from soong.shared.sandbox.family import HAS_MARK
from tests.integration.http.mcp_clients import done, refused
from tests.integration.mcp.scene import SERVER, stdio_config
from tests.system.cli_scene import CONSOLE_SCRIPT, CliHarness, interrupted, scene, until, writes
from tests.system.test_acp_child import questions
from tests.warm import warm_program

pytestmark = pytest.mark.timeout(300)

WRITE = writes("note.txt")
RUN_OF_A_RUN = """
import os, sys
from soong.shared.sandbox.family import mark_family
mark_family()
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture(scope="module")
def service() -> Iterator[CliHarness]:
    """A service that stays, for the tests that need one."""
    with scene() as cli:
        cli.up()
        yield cli
        assert cli.run("down").returncode == 0
        cli.assert_nothing_left()


@asynccontextmanager
async def served(cli: CliHarness, *arguments: str, wire: str = "auto") -> AsyncIterator[Client]:
    """Start `soong mcp serve` as a client does, in the folder of the scene."""
    program = warm_program(cli.home / "warm")
    command = StdioServerParameters(
        command=str(program), args=["mcp", "serve", *arguments], env=cli.env, cwd=cli.folder
    )
    async with Client(command, mode=wire, read_timeout_seconds=120) as client:
        yield client


async def until_over(client: Client, task: str) -> dict[str, Any]:
    """Wait as a model does, and give every question the answer of its user."""
    state = ""
    for _ in range(10):
        waited = await done(client, "wait_for_task", task=task, seconds=45, after=state)
        if waited["is_over"]:
            return waited
        state = waited["state"]
        if waited["approvals"]:
            (question,) = (await done(client, "list_approvals"))["items"]
            answer = {"choice": "allow_once", "input_digest": question["input_digest"], "reason": "go on"}
            await done(client, "answer_approval", approval=question["id"], **answer)
    raise AssertionError("it is not over after ten waits")


@pytest.mark.spec("MCP-02")
@pytest.mark.asyncio
@pytest.mark.spec("MCP-02.a", "MCP-02.b", "MCP-02.c", "MCP-02.e", "PER-13", "CARD-3")
async def test_a_client_with_nothing_running_gets_a_service_and_leaves_nothing() -> None:
    with scene() as cli:
        async with served(cli, "--approve", wire="legacy") as client:
            task = (await done(client, "submit_plan", plan=WRITE))["task"]["id"]
            ended = await until_over(client, task)
            result = await done(client, "task_result", task=task)
            step = await done(client, "read_step", task=task, step="write")
            (run,) = (await done(client, "list_runs", task=task, limit=1))["items"]
            events = await done(client, "read_run", run=run["id"], view="events", limit=50)

        assert (ended["status"], result["exit_code"], result["denials"]) == ("completed", 0, [])
        assert [one["path"] for one in result["deliverables"]] == [str(cli.folder / "note.txt")]
        assert (cli.folder / "note.txt").read_text() == "hello"
        assert '"created": true' in step["text"]
        assert "soong.permission_decided" in [one["type"] for one in events["items"]]
        cli.assert_nothing_left()


@pytest.mark.spec("MCP-02")
@pytest.mark.asyncio
@pytest.mark.spec("MCP-02.c", "PER-13.g")
async def test_without_approve_a_client_answers_nothing_and_a_terminal_does(service: CliHarness) -> None:
    async with served(service, wire="2026-07-28") as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        task = (await done(client, "submit_plan", plan=WRITE.replace("note.txt", "other.txt")))["task"]["id"]
        waited = await done(client, "wait_for_task", task=task, seconds=45)
        (question,) = (await done(client, "list_approvals"))["items"]
        answer = {"choice": "allow_once", "input_digest": question["input_digest"]}
        said = await refused(client, "answer_approval", approval=question["id"], **answer)
        rule = await refused(client, "submit_plan", plan=WRITE, allow=[f"code.write_file:{service.folder}"])
        terminal = await asyncio.to_thread(service.run, "approvals", "allow", question["id"])
        ended = await until_over(client, task)

    assert "answer_approval" not in tools
    assert "soong approvals watch" in waited["hint"]
    assert "soong mcp serve --approve" in said
    assert "needs the right 'approve'" in rule or "the right 'approve'" in rule
    assert terminal.returncode == 0, terminal.stderr
    assert ended["status"] == "completed"


@pytest.mark.spec("MCP-02")
@pytest.mark.asyncio
async def test_a_reader_only_reads_and_a_plan_file_lies_in_the_project(service: CliHarness, tmp_path: Path) -> None:
    service.plan(WRITE, "note.yaml")
    (service.folder / "secret.txt").write_text("key: value")
    (tmp_path / "outside.yaml").write_text(WRITE)
    (service.folder / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    async with served(service, "--read-only") as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        checked = await done(client, "validate_plan", plan_path="note.yaml")
        said = [
            await refused(client, "validate_plan", plan_path=path)
            for path in ("secret.txt", "link.yaml", str(tmp_path / "outside.yaml"), "/etc/passwd", "none.yaml", "a\0b")
        ]
        forbidden = await refused(client, "submit_plan", plan=WRITE)

    assert not {"submit_plan", "cancel_task", "answer_approval"} & tools
    assert checked["title"] == "A note"
    assert all("expected a file in" in text and "value" not in text for text in said), said
    assert "--read-only" in forbidden


@pytest.mark.spec("MCP-02")
@pytest.mark.skipif(not HAS_MARK, reason="this system has no mark for programs of runs")
@pytest.mark.spec("MCP-02.d", "PER-13.h")
def test_a_program_of_a_run_serves_nothing(service: CliHarness) -> None:
    argv = [sys.executable, "-c", RUN_OF_A_RUN, *CONSOLE_SCRIPT, "mcp", "serve"]
    ended = subprocess.run(
        argv, env=service.env, cwd=service.folder, input="", capture_output=True, text=True, timeout=60, check=False
    )

    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "a run started this command" in ended.stderr


@pytest.mark.spec("MCP-02")
def test_wrong_options_are_said_and_the_end_of_input_ends_it(service: CliHarness) -> None:
    both = service.run("mcp", "serve", "--approve", "--read-only")
    folder = service.run("mcp", "serve", "--project", "nowhere")
    over = service.run("mcp", "serve")

    assert (both.returncode, "exclude each other" in both.stderr) == (2, True)
    assert (folder.returncode, "'nowhere' is not a folder" in folder.stderr) == (2, True)
    assert (over.returncode, over.stdout) == (0, "")


ODD = SERVER.with_name("odd_server.py")


@pytest.mark.spec("MCP-01.a", "MCP-01.n")
def test_a_failed_add_leaves_nothing_and_the_corrected_command_is_taken(cli: CliHarness, tmp_path: Path) -> None:
    pages = {"": {"tools": [{"name": "no_schema"}, {"name": "good", "inputSchema": {}}]}}
    (tmp_path / "pages.json").write_text(json.dumps(pages))
    broken = cli.run("mcp", "add", "x", "--", sys.executable, str(tmp_path / "missing.py"))
    listed = cli.run("mcp", "list")
    added = cli.run("mcp", "add", "x", "--", sys.executable, str(ODD), str(tmp_path / "pages.json"))
    again = cli.run("mcp", "add", "x", "--", sys.executable, str(ODD))

    assert broken.returncode == 1
    assert "x is not added" in broken.stderr
    assert "no MCP server is configured" in listed.stderr
    assert (added.returncode, added.stdout.splitlines()[0]) == (0, "x: 4 tools, protocol 2025-06-18")
    assert "left out no_schema: its input schema: is missing" in added.stdout
    assert again.returncode == 2
    assert "there is an MCP server 'x' already" in again.stderr


@pytest.mark.spec("PER-10", "REG-08.a", "MCP-01.h")
def test_a_rule_for_tools_of_a_server_holds_as_long_as_they_stay_as_they_are(cli: CliHarness, tmp_path: Path) -> None:
    pages = tmp_path / "pages.json"
    pages.write_text(json.dumps({"": {"tools": [{"name": "good", "inputSchema": {}}]}}))
    cli.run("mcp", "add", "x", "--", sys.executable, str(ODD), str(pages))
    call = ("tools", "call", "mcp.x.say", 'texts=["{\\"id\\":ID,\\"result\\":{\\"content\\":\\"yes\\"}}"]')
    refused = cli.run(*call, "--allow", "mcp.x.say:*")
    one, all_of_it = (cli.run(*call, "--allow", rule) for rule in ("mcp.x.say:now", "mcp.x.*:now"))

    assert refused.returncode == 2
    assert "write mcp.x.say:now, or exact: and a scope that `soong mcp show NAME` prints" in refused.stderr
    assert "yes" in one.stdout, one.stderr
    assert "yes" in all_of_it.stdout, all_of_it.stderr


RUNS = 200


@pytest.fixture
def tool_cli() -> Iterator[CliHarness]:
    with scene() as one:
        one.home.mkdir()
        (one.home / "config.toml").write_text(stdio_config(args=str(one.folder), more="trusted = true"))
        one.environment |= {"SOONG_SLOTS": str(RUNS), "SOONG_MAX_CONCURRENT_CHILDREN_PER_SESSION": str(RUNS)}
        yield one


def step(id: str, *calls: tuple[str, dict[str, Any]]) -> str:
    """Return a step whose scripted agent makes these calls of the server's tools."""
    made = [{"call": f"mcp.t.{name}", "with": given} for name, given in calls]
    return (
        f"  - {{id: {id}, allowed_tools: ['mcp.t.*'], script: builtin.calls, inputs: {json.dumps({'calls': made})}}}\n"
    )


def servers(tool_cli: CliHarness) -> list[int]:
    """Return the living servers of a scene, which its folder as an argument tells from those of other tests."""
    wanted = [str(SERVER), "stdio", str(tool_cli.folder)]
    return [one.pid for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[1:] == wanted]


@pytest.mark.spec("MCP-01.d", "MCP-01.f", "PER-13.g", "CARD-3.c")
def test_each_tool_asks_in_the_inbox_and_a_server_that_is_killed_is_started_again(tool_cli: CliHarness) -> None:
    note = tool_cli.folder / "note.txt"
    last = {"path": str(note), "text": "x"}
    calls = [("ask_in_rounds", {}), ("where", {}), ("die", {}), ("where", {}), ("write_note", last)]
    up = tool_cli.up()
    tool_cli.run("run", tool_cli.plan("title: One\nsteps:\n" + step("it", *calls)), "--approvals", "inbox", "--detach")
    asked: list[PermissionRequest] = []

    def has_ended() -> bool:
        for request in questions(tool_cli):
            asked.append(request)
            answer = "deny" if request.tool == "mcp.t.write_note" else "allow"
            tool_cli.run("approvals", answer, request.id, "--reason", "7")
        return tool_cli.step_statuses().get("it") == "completed"

    until(has_ended, "the step has ended", lambda: f"{tool_cli.step_statuses()} {tool_cli.logs()}")
    (ended,) = tool_cli.json("tasks", "show", tool_cli.task_id())["steps"]
    told, before, killed, after, denied = ended["output"]["results"]
    first, question, *others = asked
    assert [request.tool for request in (first, *others)] == [f"mcp.t.{name}" for name, _ in calls]
    assert all("@" in request.scope for request in (first, *others))
    # The server's own question: of the same run, with the answer's reason as its words, and no grant for the session.
    assert (question.tool, question.scope, question.identity) == ("mcp.t.elicitation/create", "", first.identity)
    assert "| Which size?" in question.preview
    assert told["value"] == {"result": "accept size=7"}
    assert killed["error"]["type"] == "server_unavailable"
    assert after["value"]["pid"] not in (0, before["value"]["pid"])
    assert (denied["error"]["type"], note.exists()) == ("permission_denied", False)
    assert servers(tool_cli) == [after["value"]["pid"]]

    interrupted(up)

    tool_cli.assert_nothing_left()
    assert servers(tool_cli) == []
