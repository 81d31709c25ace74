"""Modules that a plan names: imported for their user's own service, kept for ``soong resume``, refused elsewhere."""

import json
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.system.cli_scene import CONSOLE_SCRIPT, LIMIT_S, CliHarness, scene, until

pytestmark = pytest.mark.spec("DIS-13")

RESEARCH = '''
from soong import ToolCallError, scripted_agent


@scripted_agent("research.note")
async def note(inputs, agent):
    """Write a note, and say what came of it."""
    try:
        await agent.call("code.write_file", path="note.txt", content=inputs["text"])
    except ToolCallError as error:
        return {"denied": error.type}
    return {"seen": (await agent.call("code.read_file", path="note.txt"))["text"]}
'''
PLAN = """
title: Note
modules: [research]
steps:
  - id: note
    script: research.note
    allowed_tools: [code.write_file, code.read_file]
    inputs: {text: hello}
"""


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        one.home.mkdir(parents=True)
        (one.folder / "research.py").write_text(RESEARCH)
        yield one


@pytest.mark.spec("DIS-13.a", "PER-01")
@pytest.mark.parametrize(
    ("choice", "output", "code"), [("allow", {"seen": "hello"}, 0), ("deny", {"denied": "permission_denied"}, 3)]
)
def test_a_scripted_agent_of_the_plans_module_asks_for_consent_and_goes_on_with_the_answer(
    cli: CliHarness, choice: str, output: dict[str, str], code: int
) -> None:
    running = cli.start("run", cli.plan(PLAN), "--project", str(cli.folder), "--approvals", "inbox", "--json")
    until(lambda: (cli.home / "service.json").exists() and cli.json("approvals", "list"), "the question", cli.logs)
    (question,) = cli.json("approvals", "list")

    assert cli.run("approvals", choice, question["id"]).returncode == 0
    report = json.loads(running.communicate(timeout=LIMIT_S)[0])

    assert question["tool"] == "code.write_file"
    assert (report["exit_code"], report["steps"][0]["output"]) == (code, output)
    assert (cli.folder / "note.txt").exists() is (choice == "allow")


def test_resume_starts_a_service_that_has_the_modules_of_the_plan(cli: CliHarness) -> None:
    running = cli.start("run", cli.plan(PLAN), "--project", str(cli.folder), "--approvals", "inbox")
    until(lambda: (cli.home / "service.json").exists() and cli.json("approvals", "list"), "the question", cli.logs)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=LIMIT_S)
    assert cli.run("down").returncode == 0
    (task,) = cli.json("tasks", "list")
    assert task["status"] == "paused"

    # The plan file is not needed any more, and the command is called elsewhere than where the plan was.
    (cli.folder / "plan.yaml").unlink()
    resumed = cli.start("resume", task["id"], "--json")
    until(lambda: (cli.home / "service.json").exists() and cli.json("approvals", "list"), "the question", cli.logs)
    (question,) = cli.json("approvals", "list")
    assert cli.run("approvals", "allow", question["id"]).returncode == 0
    report = json.loads(resumed.communicate(timeout=LIMIT_S)[0])

    assert (report["exit_code"], report["steps"][0]["output"]) == (0, {"seen": "hello"})


@pytest.mark.spec("OPS-12")
def test_a_module_where_runs_write_is_refused_before_anything_runs(cli: CliHarness) -> None:
    config = cli.home / "config.toml"
    config.write_text(f'[[permission.rules]]\neffect = "allow"\ntools = "code.write_file"\nscope = "{cli.folder}"\n')
    config.chmod(0o600)

    done = cli.run("run", cli.plan(PLAN))

    assert done.returncode == 2
    assert "plan.yaml:3 modules[0]: " in done.stderr
    assert f"{cli.folder}/research.py lies in {cli.folder}, where runs write" in done.stderr
    assert not (cli.home / "service.json").exists()


def test_a_plan_on_standard_input_loads_no_module(cli: CliHarness) -> None:
    command = [*CONSOLE_SCRIPT, "run", "-"]
    done = subprocess.run(
        command, input=PLAN, env=cli.env, cwd=cli.folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )

    assert done.returncode == 2
    assert "SOONG_FUNCTIONS does not name the module 'research'" in done.stderr
    assert not (cli.home / "service.json").exists()
