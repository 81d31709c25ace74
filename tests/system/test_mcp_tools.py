"""Tools of MCP servers in a service of real processes: shared by runs, asked about, killed in a call, and ended."""

import json
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from soong.shared.permissions.request import PermissionRequest
from tests.integration.mcp.scene import SERVER, stdio_config
from tests.system.cli_scene import CliHarness, interrupted, scene, until
from tests.system.test_acp_child import questions

RUNS = 200
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene(is_warm=True) as one:
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


def servers(cli: CliHarness) -> list[int]:
    """Return the living servers of a scene, which its folder as an argument tells from those of other tests."""
    wanted = [str(SERVER), "stdio", str(cli.folder)]
    return [one.pid for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[1:] == wanted]


@pytest.mark.spec("MCP-01.d", "MCP-01.f", "PER-13.g", "CARD-3.c")
def test_each_tool_asks_in_the_inbox_and_a_server_that_is_killed_is_started_again(cli: CliHarness) -> None:
    note = cli.folder / "note.txt"
    last = {"path": str(note), "text": "x"}
    calls = [("ask_in_rounds", {}), ("where", {}), ("die", {}), ("where", {}), ("write_note", last)]
    up = cli.up_warm()
    cli.run("run", cli.plan("title: One\nsteps:\n" + step("it", *calls)), "--approvals", "inbox", "--detach")
    asked: list[PermissionRequest] = []

    def has_ended() -> bool:
        for request in questions(cli):
            asked.append(request)
            answer = "deny" if request.tool == "mcp.t.write_note" else "allow"
            cli.run("approvals", answer, request.id, "--reason", "7")
        return cli.step_statuses().get("it") == "completed"

    until(has_ended, "the step has ended", lambda: f"{cli.step_statuses()} {cli.logs()}")
    (ended,) = cli.json("tasks", "show", cli.task_id())["steps"]
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
    assert servers(cli) == [after["value"]["pid"]]

    interrupted(up)

    cli.assert_nothing_left()
    assert servers(cli) == []
