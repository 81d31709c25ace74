import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from soong.shared.permissions.request import PermissionRequest
from soong.shared.storage.sql.store import SqlStore
from tests.integration.acp_site import AGENT
from tests.system.cli_scene import CliHarness, Terminal, interrupted, scene, until
from tests.system.test_worker_families import ROOT, worker_of

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CliHarness]:
    with scene() as one:
        state = tmp_path / "state"
        state.mkdir()
        one.home.mkdir()
        command = [sys.executable, "-P", str(AGENT), "resume"]
        entry, variables = "[acp.agents.scripted]", "[acp.agents.scripted.variables]"
        text = f"{entry}\ncommand = {command!r}\n{variables}\nAGENT_STATE = {str(state)!r}\n"
        (one.home / "config.toml").write_text(text)
        # With a PYTHONPATH a worker is a program with a subreaper, and is not forked from the service.
        one.environment |= {"AGENT_STATE": str(state), "PYTHONPATH": str(ROOT)}
        up = one.up()
        yield one
        interrupted(up)


def questions(cli: CliHarness) -> list[PermissionRequest]:
    """Return the questions that nobody has answered."""

    async def read(store: SqlStore) -> list[PermissionRequest]:
        return [one.request for one in await store.consent.questions() if one.is_pending and one.answer is None]

    return cli.rows(read) or []


def answer(cli: CliHarness, *denied: str) -> list[PermissionRequest]:
    """Answer what is asked and return it: a no to tools that are named for their step (``step tool``), else a yes."""
    asked = questions(cli)
    for request in asked:
        step = request.identity.step_key.partition("/")[2]
        word = "deny" if f"{step} {request.tool}" in denied else "allow"
        cli.run("approvals", word, request.id)
    return asked


def agent_step(id: str, *actions: list[object]) -> str:
    return f"  - {{id: {id}, agent: 'acp:scripted', instructions: x, inputs: {json.dumps({'script': actions})}}}\n"


@pytest.mark.spec("ACP-01.a", "ACP-01.b", "CARD-3.a")
def test_two_agents_of_others_and_a_worker_ask_in_one_inbox(cli: CliHarness) -> None:
    files = {name: cli.folder / f"{name}.txt" for name in ("own", "ours", "worker")}
    write = {"calls": [{"call": "code.write_file", "with": {"path": str(files["worker"]), "content": "worker"}}]}
    plan = "title: Three writers\nsteps:\n" + agent_step(
        "own", ["edit", str(files["own"]), None, "own"], ["say", "done"]
    )
    plan += agent_step("ours", ["write", str(files["ours"]), "ours"], ["say", "done"])
    plan += "  - {id: worker, allowed_tools: [code.write_file], script: builtin.calls, "
    plan += f"inputs: {json.dumps(write)}}}\n"

    cli.run("run", cli.plan(plan), "--approvals", "inbox", "--detach")

    def has_ended() -> bool:
        answer(cli, "ours code.write_file")
        return {"completed"} == set(cli.step_statuses().values())

    def told() -> str:
        return f"{cli.json('tasks', 'show', cli.task_id())} {cli.logs()}"

    until(has_ended, "all three have ended", told, limit_s=100)
    shown = cli.json("tasks", "show", cli.task_id())
    assert {step["id"]: step["outcome"] for step in shown["steps"]} == {
        "own": "clean",
        "ours": "partial",
        "worker": "clean",
    }
    assert (files["own"].read_text(), files["ours"].exists(), files["worker"].read_text()) == ("own", False, "worker")


@pytest.mark.spec("ACP-01.c", "DAG-09")
def test_a_worker_that_is_killed_leaves_no_agent_and_nothing_is_done_twice(cli: CliHarness) -> None:
    state, file = Path(cli.environment["AGENT_STATE"]), cli.folder / "out.txt"
    plan = "title: t\nsteps:\n" + agent_step("it", ["edit", str(file), None, "x", "usual", "hang"], ["say", "done"])
    cli.run("run", cli.plan(plan), "--approvals", "inbox", "--detach")

    def has_acted() -> bool:
        answer(cli)
        return (state / "acted").exists()

    until(has_acted, "the agent has written", cli.logs)
    kept = next(state.glob("s*.json"))
    kept.write_text(kept.read_text().replace('"done": 0', '"done": 1'))
    worker = worker_of(cli)
    agents = [one for one in worker.children(recursive=True) if str(AGENT) in one.cmdline()]
    assert agents

    worker.kill()

    psutil.wait_procs(agents, timeout=20)
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in agents)
    until(lambda: cli.step_statuses()["it"] == "completed", "another life has ended it", cli.logs)
    shown = cli.json("tasks", "show", cli.task_id())["steps"][0]
    assert (shown["outcome"], shown["output"]) == ("partial", "done")
    assert "may or may not have happened" in (state / "prompts.txt").read_text()
    assert not questions(cli)


@pytest.mark.spec("ACP-01.a", "ACP-01.b")
def test_the_first_minute_of_the_documentation(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "acp.md").read_text()
    plan = page.partition("```yaml\n# readme.yaml\n")[2].partition("```")[0]
    said = page.partition("soong run readme.yaml")[2].partition("\n")[0]
    program = tmp_path / "claude-agent-acp"
    with scene() as one:
        readme = one.folder / "README.md"
        readme.write_text("# Titel\n")
        script = json.dumps([["edit", str(readme), "# Titel", "# Title\n"], ["say", "corrected"]])
        variables = f"AGENT_STATE={shlex.quote(str(tmp_path))} AGENT_SCRIPT={shlex.quote(script)}"
        program.write_text(f"#!/bin/sh\n{variables} exec {sys.executable} -P {AGENT} resume\n")
        program.chmod(0o755)
        one.environment |= {"PATH": f"{tmp_path}:/usr/bin:/bin", "COLUMNS": "100", "LINES": "60"}
        terminal = Terminal(one, "run", one.plan(plan, "readme.yaml"), *shlex.split(said))

        for tool in ("acp.claude-code.run", "acp.claude-code.edit"):
            terminal.expect(f"{tool} asks for permission")
            until(terminal.is_at_mark, "the prompt", lambda: terminal.shown)
            terminal.answer("1\n")

        terminal.expect("corrected")
        assert readme.read_text() == "# Title\n"
