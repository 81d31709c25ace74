"""``soong mcp serve``: the official client starts the real command, and a plan is submitted, asked about and read."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from soong.shared.sandbox.family import HAS_MARK
from tests.architecture.document_examples import agrees, perform, sittings
from tests.integration.http.mcp_clients import done, refused
from tests.spec_document import ROOT
from tests.system.cli_scene import CONSOLE_SCRIPT, CliHarness, scene

pytestmark = [pytest.mark.timeout(300), pytest.mark.spec("MCP-02")]

WRITE = """
title: A note
steps:
  - id: write
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: note.txt, content: hello}}]}
"""
RUN_OF_A_RUN = """
import os, sys
from soong.shared.sandbox.family import mark_family
mark_family()
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture(scope="module")
def service() -> Iterator[CliHarness]:
    """A service that stays, for the tests that need one."""
    with scene(is_warm=True) as cli:
        cli.up_warm()
        yield cli
        assert cli.run("down").returncode == 0
        cli.assert_nothing_left()


@asynccontextmanager
async def served(cli: CliHarness, *arguments: str, wire: str = "auto") -> AsyncIterator[Client]:
    """Start `soong mcp serve` as a client does, in the folder of the scene."""
    command = StdioServerParameters(
        command=CONSOLE_SCRIPT[0], args=["mcp", "serve", *arguments], env=cli.env, cwd=cli.folder
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


@pytest.mark.asyncio
@pytest.mark.spec("MCP-02.a", "MCP-02.b", "MCP-02.c", "MCP-02.e", "PER-13", "CARD-3")
async def test_a_client_with_nothing_running_gets_a_service_and_leaves_nothing() -> None:
    with scene(is_warm=True) as cli:
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


def test_wrong_options_are_said_and_the_end_of_input_ends_it(service: CliHarness) -> None:
    both = service.run("mcp", "serve", "--approve", "--read-only")
    folder = service.run("mcp", "serve", "--project", "nowhere")
    over = service.run("mcp", "serve")

    assert (both.returncode, "exclude each other" in both.stderr) == (2, True)
    assert (folder.returncode, "'nowhere' is not a folder" in folder.stderr) == (2, True)
    assert (over.returncode, over.stdout) == (0, "")


@pytest.mark.spec("MCP-02.a")
def test_the_first_minute_of_the_page_works(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "reference" / "mcp.md").read_text(encoding="utf-8")
    (sitting,) = (one for one in sittings(text) if one.title == "Soong as an MCP server")

    said = perform(sitting, tmp_path / "home")

    for command, lines in said:
        assert agrees(command.expected, lines), "\n".join([f"$ {command.line}", *lines])
    assert (tmp_path / "home" / "project" / "note.txt").read_text() == "hello"
