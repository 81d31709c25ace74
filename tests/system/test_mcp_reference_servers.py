"""The reference servers of the protocol, which others wrote, used by workers through consent, policy and events."""

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.extra import acp_node, mcp_servers
from tests.loopback import http_on_a_thread
from tests.system.cli_scene import CliHarness, interrupted, scene, until
from tests.system.test_acp_child import questions

pytestmark = pytest.mark.timeout(400)
NPM = ("everything", "filesystem", "memory", "sequential-thinking")
PYPI = ("fetch", "git", "time")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    """Serve a page, and yield its address."""
    (tmp_path / "page.html").write_text("<html><body><h1>A page</h1><p>Nine lives.</p></body></html>")
    with http_on_a_thread(partial(SimpleHTTPRequestHandler, directory=str(tmp_path))) as port:
        yield f"http://127.0.0.1:{port}/page.html"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CliHarness]:
    with scene() as one:
        one.environment["HOME"] = str(tmp_path)  # the fetch server starts npm, which makes its caches there
        one.home.mkdir()
        (one.home / "config.toml").write_text("\n".join(sections(one.folder)))
        (one.folder / "note.txt").write_text("nine lives")
        as_ada = ["git", "-c", "user.name=ada", "-c", "user.email=ada@example.org", "-C", str(one.folder)]
        subprocess.run([*as_ada, "init", "-q"], check=True)
        subprocess.run([*as_ada, "commit", "-q", "--allow-empty", "-m", "the first one"], check=True)
        up = one.up()
        yield one
        interrupted(up)
        one.assert_nothing_left()
        assert processes(one) == []


def sections(project: Path) -> Iterator[str]:
    """Yield the configuration of each server. All have an argument or a variable that names the scene."""
    modules, python = mcp_servers() / "node_modules", mcp_servers() / "python/bin"
    for name in NPM:
        program = str(modules / f"@modelcontextprotocol/server-{name}/dist/index.js")
        folder = [str(project)] if name == "filesystem" else []
        yield f'[mcp.servers.{name}]\ncommand = "{acp_node()}"\nargs = {[program, *folder]}'
        yield f'env = {{MEMORY_FILE_PATH = "{project}/memory.jsonl", SCENE = "{project}"}}'
    for name in PYPI:
        arguments = ["--ignore-robots-txt", "--allow-private-ips"] if name == "fetch" else []
        yield f'[mcp.servers.{name}]\ncommand = "{python}/mcp-server-{name}"\nargs = {arguments}'
        yield f'env = {{SCENE = "{project}"}}'


def processes(cli: CliHarness) -> list[int]:
    """Return the living servers of a scene."""
    found = []
    for one in psutil.process_iter(["environ", "cmdline"]):
        is_ours = (one.info["environ"] or {}).get("SCENE") == str(cli.folder)
        if is_ours and any(str(mcp_servers()) in word for word in one.info["cmdline"] or []):
            found.append(one.pid)
    return found


def calls_of(cli: CliHarness, page: str) -> dict[str, list[tuple[str, dict[str, Any], str]]]:
    """Return what each step calls of its server, and words of the result."""
    here = str(cli.folder)
    thought = {"thought": "hm", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
    entity = {"name": "Tom", "entityType": "cat", "observations": ["has nine lives"]}
    return {
        "filesystem": [
            ("read_text_file", {"path": f"{here}/note.txt"}, "nine lives"),
            ("write_file", {"path": f"{here}/out.txt", "content": "ten"}, "Successfully wrote"),
            ("read_text_file", {"path": "/etc/passwd"}, "Access denied"),
        ],
        "memory": [("create_entities", {"entities": [entity]}, "nine lives"), ("read_graph", {}, "Tom")],
        "everything": [
            ("echo", {"message": "meow"}, "Echo: meow"),
            ("get-sum", {"a": 4, "b": 5}, "9"),
            ("get-roots-list", {}, cli.folder.as_uri()),
            ("trigger-long-running-operation", {"duration": 0.2, "steps": 2}, "completed"),
            ("get-structured-content", {"location": "Chicago"}, "temperature"),
        ],
        "sequential-thinking": [("sequentialthinking", thought, "thoughtNumber")],
        "git": [
            ("git_status", {"repo_path": here}, "note.txt"),
            ("git_log", {"repo_path": here, "max_count": 1}, "the first one"),
        ],
        "time": [
            ("convert_time", {"source_timezone": "UTC", "time": "09:00", "target_timezone": "Asia/Tokyo"}, "18:00")
        ],
        "fetch": [("fetch", {"url": page}, "Nine lives")],
    }


@pytest.mark.spec("MCP-01.a", "MCP-01.b", "MCP-01.c", "PER-13.g")
def test_workers_use_the_seven_servers_and_each_call_is_asked_about_and_recorded(cli: CliHarness, page: str) -> None:
    wanted = calls_of(cli, page)
    listed = {one["name"]: one for one in cli.json("mcp", "list")}
    steps = "title: Seven\nsteps:\n"
    for server, calls in wanted.items():
        made = [{"call": f"mcp.{server}.{tool}", "with": given} for tool, given, _ in calls]
        steps += f"  - {{id: {server}, allowed_tools: ['mcp.{server}.*'], script: builtin.calls, "
        steps += f"inputs: {json.dumps({'calls': made})}}}\n"
    cli.run("run", cli.plan(steps), "--approvals", "inbox", "--detach")
    asked: set[str] = set()

    def has_ended() -> bool:
        for request in questions(cli):
            asked.add(request.tool)
            cli.run("approvals", "allow", request.id)
        return set(cli.step_statuses().values()) == {"completed"}

    until(has_ended, "all have ended", lambda: f"{cli.step_statuses()} {cli.logs()}", limit_s=240)

    assert {name: (one["state"], one["left_out"]) for name, one in listed.items()} == {
        name: ("ok", []) for name in (*NPM, *PYPI)
    }
    assert asked == {f"mcp.{server}.{tool}" for server, calls in wanted.items() for tool, _, _ in calls}
    for step in cli.json("tasks", "show", cli.task_id())["steps"]:
        results = step["output"]["results"]
        for (tool, _, words), result in zip(wanted[step["id"]], results, strict=True):
            assert words in str(result), (tool, result)
        events = [one["type"] for one in cli.json("runs", "tail", f"{cli.task_id()}/{step['id']}")]
        assert events.count("soong.permission_decided") >= len(results)
        assert events.count("soong.tool_started") == len(results)
    assert (cli.folder / "out.txt").read_text() == "ten"
    assert len(processes(cli)) == 2 * len(wanted)  # each with its keeper
