"""Agents and front ends that are not ours: Claude Code as a child, acpx on ``soong acp``."""

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llmock.testing import LLMockServer

from tests.aimock.server import aimock, requests_of
from tests.extra import acp_modules, acp_node, aimock_program
from tests.system.cli_scene import CONSOLE_SCRIPT, CliHarness, scene, until
from tests.system.test_acp_child import answer
from tests.system.test_acp_front_end import PLANNER, writing
from tests.wires.wire import Wires

pytestmark = pytest.mark.timeout(600)
SECRET = "the content of a key"


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        one.home.mkdir()
        yield one


def said(prompt: str, turn: int, **response: Any) -> dict[str, Any]:
    return {"match": {"userMessage": prompt, "turnIndex": turn}, "response": response}


def call(name: str, **arguments: str) -> dict[str, Any]:
    return {"toolCalls": [{"name": name, "arguments": arguments}]}


def configure(cli: CliHarness, address: str, folder: Path) -> None:
    """Give the home the real Claude Code, which finds its model at this address."""
    claude = acp_modules() / "@agentclientprotocol/claude-agent-acp/dist/index.js"
    variables = {
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_API_KEY": "sk-mock",
        "CLAUDE_CONFIG_DIR": str(folder),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    lines = ["[tools]", "dangerous = true", "[acp.agents.claude-code]", f"command = {[acp_node(), str(claude)]!r}"]
    lines += ["[acp.agents.claude-code.variables]", *(f"{name} = {value!r}" for name, value in variables.items())]
    (cli.home / "config.toml").write_text("\n".join(lines))


@pytest.mark.spec("ACP-01.a", "ACP-01.b", "ACP-01.c")
def test_claude_code_asks_for_everything_in_one_inbox_whatever_its_own_settings_say(
    cli: CliHarness, tmp_path: Path
) -> None:
    files = {name: cli.folder / name for name in ("one.txt", "worker.txt", "ran", "secret.pem")}
    files["secret.pem"].write_text(SECRET)
    (cli.folder / ".claude").mkdir()
    rules = {"permissions": {"allow": ["Bash(*)", "Write", "Edit", "Read"], "defaultMode": "bypassPermissions"}}
    (cli.folder / ".claude" / "settings.json").write_text(json.dumps(rules))
    fixtures = [
        said("WRITE-ONE", 0, **call("Write", file_path=str(files["one.txt"]), content="one\n")),
        said("WRITE-ONE", 1, content="I wrote it."),
        said("RUN-TWO", 0, **call("Bash", command=f"touch {files['ran']}", description="touch")),
        said("RUN-TWO", 1, content="It was refused."),
        said("READ-THREE", 0, **call("Read", file_path=str(files["secret.pem"]))),
        said("READ-THREE", 1, content="It was refused."),
        {"match": {}, "response": {"content": "ok"}},
    ]
    write = {"calls": [{"call": "code.write_file", "with": {"path": str(files["worker.txt"]), "content": "worker"}}]}
    plan = "title: Claude and a worker\nsteps:\n"
    for name, prompt in (("one", "WRITE-ONE"), ("two", "RUN-TWO"), ("three", "READ-THREE")):
        plan += f"  - {{id: {name}, agent: 'acp:claude-code', instructions: {prompt}}}\n"
    plan += "  - {id: worker, allowed_tools: [code.write_file], script: builtin.calls, "
    plan += f"inputs: {json.dumps(write)}}}\n"
    with aimock(aimock_program(), tmp_path, fixtures) as address:
        configure(cli, address, tmp_path / "claude")
        up = cli.start("up")
        until((cli.home / "service.json").exists, "the service is up", cli.logs)
        cli.run("run", cli.plan(plan), "--approvals", "inbox", "--detach")
        asked: dict[str, str] = {}

        def have_ended() -> bool:
            for one in answer(cli, "two acp.claude-code.execute", "three acp.claude-code.read"):
                asked[f"{one.identity.step_key.partition('/')[2]} {one.tool}"] = f"{one.shown}\n{one.preview}"
            statuses = set(cli.step_statuses().values())
            return bool(statuses) and statuses <= {"completed", "failed"}

        until(have_ended, "all have ended", lambda: f"{cli.step_statuses()} {list(asked)}{cli.logs()}", limit_s=400)

        assert set(asked) >= {
            "one acp.claude-code.edit",
            "two acp.claude-code.execute",
            "three acp.claude-code.read",
            "worker code.write_file",
        }
        assert "one\n" in asked["one acp.claude-code.edit"]
        assert (files["one.txt"].read_text(), files["worker.txt"].read_text()) == ("one\n", "worker")
        assert not files["ran"].exists()
        assert SECRET not in json.dumps(requests_of(address))
        shown = {step["id"]: step for step in cli.json("tasks", "show", cli.task_id())["steps"]}
        assert (shown["one"]["status"], shown["one"]["output"]) == ("completed", "I wrote it.")
        up.terminate()
        up.communicate(timeout=60)


def node_environment(cli: CliHarness, home: Path) -> dict[str, str]:
    return {**cli.env, "PATH": f"{Path(acp_node()).parent}:{os.environ['PATH']}", "HOME": str(home)}


@pytest.mark.spec("ACP-02.a", "ACP-02.b")
@pytest.mark.parametrize(("flag", "is_written"), [("--approve-all", True), ("--deny-all", False)])
def test_acpx_shows_the_plan_and_its_answer_comes_back(
    cli: CliHarness, tmp_path: Path, flag: str, is_written: bool
) -> None:
    with LLMockServer() as server:
        wires = Wires(server)
        cli.environment |= wires.environment
        wires.will(*writing("note.txt"))
        program = acp_modules() / "acpx/dist/cli.js"
        ours = shlex.join([*CONSOLE_SCRIPT, "acp", "--model", PLANNER])
        command = [acp_node(), str(program), flag, "--format", "json", "--cwd", str(cli.folder), "--agent", ours]

        done = subprocess.run(
            [*command, "exec", "Write a note."],
            env=node_environment(cli, tmp_path),
            cwd=cli.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

        assert "note: Write it" in done.stdout, f"{done.stdout}\n{done.stderr}"
        assert "Allow for this session: code.write_file on" in done.stdout
        assert (cli.folder / "note.txt").exists() is is_written
