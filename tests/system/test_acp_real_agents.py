"""Codex, Gemini CLI and Claude Code as children, from npm, offline: what they do is asked, shown and ended (ACP-01)."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.aimock.server import aimock, requests_of
from tests.extra import acp_modules, acp_node, aimock_program
from tests.system.cli_scene import CliHarness, interrupted, scene, until
from tests.system.test_acp_child import answer
from tests.system.test_acp_front_end import configure as claude_code

pytestmark = pytest.mark.timeout(600)
SECRET = "the content of a key"


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        one.home.mkdir()
        yield one


def codex(cli: CliHarness, address: str, home: Path) -> None:
    """Give the home the real Codex, whose user has allowed ``touch`` once and for all."""
    provider = {"name": "mock", "base_url": f"{address}/v1", "wire_api": "responses"}
    lines = ['model = "gpt-5"', 'model_provider = "mock"', 'approval_policy = "never"', "[model_providers.mock]"]
    lines += [*(f"{name} = {json.dumps(value)}" for name, value in provider.items()), "requires_openai_auth = false"]
    rules = home / ".codex" / "rules"
    rules.mkdir(parents=True)
    (rules / "default.rules").write_text('prefix_rule(pattern=["touch"], decision="allow")\n')
    (rules.parent / "config.toml").write_text("\n".join(lines))
    (program,) = (acp_modules() / "@zed-industries").glob("codex-acp-*/bin/codex-acp")
    configure(cli, "codex", [str(program)], {"HOME": str(home)})


def gemini(cli: CliHarness, address: str, home: Path) -> None:
    """Give the home the real Gemini CLI, whose user has allowed all."""
    (home / ".gemini").mkdir(parents=True)
    allowed = {"tools": {"allowed": ["write_file", "read_file", "run_shell_command"]}}
    (home / ".gemini" / "settings.json").write_text(json.dumps(allowed))
    program = acp_modules() / "@google/gemini-cli/bundle/gemini.js"
    variables = {"HOME": str(home), "GOOGLE_GEMINI_BASE_URL": address, "GEMINI_API_KEY": "none"}
    variables["GEMINI_MODEL"] = "gemini-2.5-pro"  # by itself it asks another model which one fits
    configure(cli, "gemini", [acp_node(), str(program), "--acp"], variables)


def configure(cli: CliHarness, name: str, command: list[str], variables: dict[str, str]) -> None:
    """Write the configuration of the home. The agent runs in a sandbox in which it sees its own state."""
    state = f"{variables['HOME']}/.{name}"
    shown = [str(acp_modules()), str(Path(acp_node()).parents[1])]
    lines = ["[commands]", "sandbox = 'required'", f"sandbox_read = {shown!r}", "[tools]", "dangerous = true"]
    lines += [f"[acp.agents.{name}]", f"command = {command!r}", f"state = {[state]!r}"]
    lines += [f"[acp.agents.{name}.variables]", *(f"{key} = {value!r}" for key, value in variables.items())]
    (cli.home / "config.toml").write_text("\n".join(lines))


def patch(path: Path, text: str) -> dict[str, Any]:
    added = "".join(f"+{line}\n" for line in text.splitlines())
    words = f"apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: {path}\n{added}*** End Patch\nEOF"
    return {"name": "exec_command", "arguments": {"cmd": words}}


def write_file(path: Path, text: str) -> dict[str, Any]:
    return {"name": "write_file", "arguments": {"file_path": str(path), "content": text}}


def command(words: str) -> dict[str, Any]:
    more = {"sandbox_permissions": "require_escalated", "justification": "it is needed"}
    return {"name": "exec_command", "arguments": {"cmd": words, **more}}


def fixtures(calls: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the model says: to each prompt a call, then that it is done."""
    found: list[dict[str, Any]] = []
    for prompt, call in calls.items():
        match = {"userMessage": prompt}
        found.append({"match": {**match, "hasToolResult": False}, "response": {"toolCalls": [call]}})
        found.append({"match": {**match, "hasToolResult": True}, "response": {"content": "That is done."}})
    return [*found, {"match": {}, "response": {"content": "It was refused."}}]


def run(cli: CliHarness, agent: str, prompts: list[str], *denied: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Run a step for each prompt, named for it; return what was asked by step and tool, and the steps at their end."""
    plan = "title: t\nsteps:\n"
    plan += "".join(f"  - {{id: {one.lower()}, agent: 'acp:{agent}', instructions: {one}-NOW}}\n" for one in prompts)
    up = cli.up()
    cli.run("run", cli.plan(plan), "--approvals", "inbox", "--detach")
    asked: dict[str, str] = {}

    def have_ended() -> bool:
        for one in answer(cli, *denied):
            asked[f"{one.identity.step_key.partition('/')[2]} {one.tool}"] = f"{one.shown}\n{one.preview}"
        statuses = set(cli.step_statuses().values())
        return bool(statuses) and statuses <= {"completed", "failed"}

    until(have_ended, "all have ended", lambda: f"{cli.step_statuses()} {list(asked)}{cli.logs()}", limit_s=400)
    steps = {step["id"]: step for step in cli.json("tasks", "show", cli.task_id())["steps"]}
    for step in steps.values():
        step["events"] = cli.json("runs", "tail", step["run"])
    interrupted(up)
    return asked, steps


@pytest.mark.spec("ACP-01.a", "ACP-01.b", "ACP-01.c")
@pytest.mark.parametrize(("agent", "prepare", "write"), [("codex", codex, patch), ("gemini", gemini, write_file)])
def test_a_write_of_an_agent_from_npm_is_asked_and_is_what_was_shown(
    cli: CliHarness,
    tmp_path: Path,
    agent: str,
    prepare: Callable[[CliHarness, str, Path], None],
    write: Callable[[Path, str], dict[str, Any]],
) -> None:
    yes, no, secret, ran = (cli.folder / name for name in ("yes.txt", "no.txt", "secret.pem", "ran"))
    secret.write_text(SECRET)
    calls = {"ALLOWED-NOW": write(yes, "shown\n"), "DENIED-NOW": write(no, "never\n")}
    if agent == "gemini":
        calls["READ-NOW"] = {"name": "read_file", "arguments": {"file_path": str(secret)}}
    else:
        calls["READ-NOW"] = command(f"cp {secret} {ran}")
    refused = ["denied acp.gemini.edit", "denied acp.codex.edit", "read acp.gemini.read", "read acp.codex.execute"]
    with aimock(aimock_program(), tmp_path, fixtures(calls)) as address:
        prepare(cli, address, tmp_path / "home")

        asked, steps = run(cli, agent, ["ALLOWED", "DENIED", "READ"], *refused)

        assert f"allowed acp.{agent}.edit" in asked
        assert "shown\n" in asked[f"allowed acp.{agent}.edit"]
        assert set(asked) & set(refused) == {one for one in refused if f".{agent}." in one}
        assert SECRET not in json.dumps(requests_of(address))
    assert (yes.read_text(), no.exists(), ran.exists()) == ("shown\n", False, False)
    ends = {name: (step["status"], step["outcome"]) for name, step in steps.items()}
    assert ends == {"allowed": ("completed", "clean"), **dict.fromkeys(("denied", "read"), ("completed", "partial"))}
    assert steps["allowed"]["output"].endswith("That is done.")


@pytest.mark.spec("ACP-01.c")
def test_what_a_rule_of_its_own_lets_codex_do_unasked_is_recorded_as_that(cli: CliHarness, tmp_path: Path) -> None:
    ran = cli.folder / "ran"
    with aimock(aimock_program(), tmp_path, fixtures({"TOUCH-NOW": command(f"touch {ran}")})) as address:
        codex(cli, address, tmp_path / "home")

        asked, steps = run(cli, "codex", ["TOUCH"])

    assert set(asked) == {"touch acp.codex.run"}, "its own rule has allowed it"
    assert ran.exists()
    assert steps["touch"]["output"].endswith("That is done.")
    assert '"asked": false' in json.dumps(steps["touch"]["events"])


def waiting(file: Path) -> list[psutil.Process]:
    """Return the processes that follow a file."""
    return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["tail", "-f", str(file)]]


@pytest.mark.spec("ACP-01.d")
@pytest.mark.parametrize(("agent", "prepare"), [("codex", codex), ("claude-code", claude_code)])
def test_an_agent_that_is_cancelled_in_its_command_ends_within_a_second_with_all_that_it_started(
    cli: CliHarness, tmp_path: Path, agent: str, prepare: Callable[[CliHarness, str, Path], None]
) -> None:
    file = cli.folder / "followed"
    file.write_text("")
    call: dict[str, Any] = {"name": "Bash", "arguments": {"command": f"tail -f {file}", "description": "follow"}}
    if agent == "codex":
        call = command(f"tail -f {file}")
        call["arguments"]["yield_time_ms"] = 200_000
    plan = f"title: t\nsteps:\n  - {{id: it, agent: 'acp:{agent}', instructions: WAIT-NOW}}\n"
    with aimock(aimock_program(), tmp_path, fixtures({"WAIT-NOW": call})) as address:
        prepare(cli, address, tmp_path / "home")
        up = cli.up()
        cli.run("run", cli.plan(plan), "--approvals", "inbox", "--detach")
        until(lambda: not answer(cli) and waiting(file), "its command runs", cli.logs, limit_s=100)

        cli.run("tasks", "cancel", cli.task_id())

        until(lambda: not waiting(file), "its command has ended", cli.logs)
        (step,) = cli.json("tasks", "show", cli.task_id())["steps"]
        times = {one["type"]: one["time"] for one in cli.json("runs", "tail", step["run"])}
        asked, ended = (datetime.fromisoformat(times[f"soong.{name}"]) for name in ("aborted_tools", "run_cancelled"))
        assert step["status"] == "cancelled"
        assert (ended - asked).total_seconds() < 1
        interrupted(up)
