"""What a plan can do by itself, and cannot: rows of docs/security.md, by the command line as it is installed."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.scripted import call, calls
from tests.system.cli_scene import CliHarness, scene

pytestmark = [pytest.mark.timeout(180), pytest.mark.spec("OPS-12.a")]

FUNCTIONS = """
from pathlib import Path

from soong import step_function


@step_function("ours.write")
def write(inputs, _context):
    Path(inputs["path"]).write_text(inputs["text"])
"""


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene(is_warm=True) as one:
        (one.folder / "ours.py").write_text(FUNCTIONS)
        yield one


def plan_of(cli: CliHarness, *steps: dict[str, Any], **more: Any) -> str:
    return cli.plan(json.dumps({"title": "Hostile", "steps": list(steps), **more}), "plan.json")


ECHO = {"id": "echo", "kind": "python", "call": "builtin.echo"}


def test_it_calls_every_function_of_the_deployment_with_any_inputs_and_nobody_is_asked(cli: CliHarness) -> None:
    written = cli.folder / "by-a-function.txt"
    inputs = {"path": str(written), "text": "chosen by the plan"}
    cli.environment["SOONG_FUNCTIONS"] = "ours"

    done = cli.json("run", plan_of(cli, {**ECHO, "call": "ours.write", "inputs": inputs}), "--approvals", "deny")

    assert (done["exit_code"], done["denials"]) == (0, [])
    assert written.read_text() == "chosen by the plan"


@pytest.mark.spec("PER-02", "PER-17")
def test_what_it_says_that_it_asks_for_is_no_consent(cli: CliHarness) -> None:
    out = cli.folder / "out"
    out.mkdir()
    step = {
        "id": "write",
        "allowed_tools": ["code.write_file"],
        **calls(call("code.write_file", path=str(out / "evil.txt"), content="x")),
    }

    done = cli.json("run", plan_of(cli, {**step, "permissions": {"write": [str(out)]}}), "--approvals", "deny")

    assert done["exit_code"] == 3
    assert [denial["step"] for denial in done["denials"]] == ["write"]
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("call", ["os.system", "ours.write"])
def test_it_calls_nothing_that_the_deployment_does_not_name(cli: CliHarness, call: str) -> None:
    written = cli.folder / "written"
    inputs = {"command": f"touch {written}", "path": str(written), "text": "x"}

    done = cli.run("run", plan_of(cli, {**ECHO, "call": call, "inputs": inputs}), "--approvals", "deny")

    assert done.returncode == 1
    assert call in done.stderr
    assert "the task is paused" in done.stderr
    assert cli.step_statuses() == {"echo": "ready"}
    assert not written.exists()


@pytest.mark.parametrize("place", ["plan", "step"])
def test_it_brings_no_rule_no_hook_no_folder_and_no_setting(cli: CliHarness, place: str) -> None:
    names = ("allow", "policy", "hooks", "project", "cwd", "env", "functions", "roots")
    fields = {key: ["code.write_file:/"] for key in names}
    plan = plan_of(cli, {**ECHO, **fields}) if place == "step" else plan_of(cli, ECHO, **fields)

    done = cli.run("run", plan)

    assert done.returncode == 2
    refused = [line for line in done.stderr.splitlines() if "unknown field" in line or "no such field" in line]
    assert [name for name in names if not any(name in line for line in refused)] == []
