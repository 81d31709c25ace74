"""A command runs the code that its user sees, whatever service runs when it comes (DIS-13)."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.system.cli_scene import CliHarness

PLAN = """
title: Who
modules: [work]
steps:
  - {id: who, kind: python, call: team.who}
"""


def project(cli: CliHarness, name: str) -> Path:
    """Return a plan file in a folder of its own, next to a module of the same name as the others."""
    folder = cli.folder / name
    folder.mkdir()
    (folder / "plan.yaml").write_text(PLAN)
    change(folder / "plan.yaml", name)
    return folder / "plan.yaml"


def change(plan: Path, answer: str) -> None:
    """Have the function of a plan's module return another answer."""
    module = plan.with_name("work.py")
    module.write_text(
        "from soong import step_function\n\n\n"
        '@step_function("team.who")\n'
        "def who(inputs, context):\n"
        f"    return {answer!r}\n"
    )
    later_ns = time.time_ns() + 1_000_000_000 * len(answer)  # also where the clock of files is coarse
    os.utime(module, ns=(later_ns, later_ns))


def answer_of(cli: CliHarness, plan: Path) -> str:
    report = cli.json("run", str(plan))
    return str(report["steps"][0]["output"])


@pytest.mark.spec("DIS-13.a")
def test_a_service_that_lingers_makes_way_for_a_command_with_other_modules(cli: CliHarness) -> None:
    first, second = project(cli, "first"), project(cli, "second")

    answers = [answer_of(cli, plan) for plan in (first, second, first)]
    change(first, "first, changed")
    answers.append(answer_of(cli, first))

    assert answers == ["first", "second", "first", "first, changed"]
    assert [task["status"] for task in cli.json("tasks", "list")] == ["completed"] * 4


@pytest.mark.spec("DIS-13.a")
def test_a_service_that_stays_runs_no_other_module_of_the_same_name(cli: CliHarness) -> None:
    first, second = project(cli, "first"), project(cli, "second")
    cli.environment |= {"SOONG_FUNCTIONS": "work", "SOONG_IMPORT_PATH": str(first.parent)}
    cli.up()
    del cli.environment["SOONG_FUNCTIONS"], cli.environment["SOONG_IMPORT_PATH"]

    assert answer_of(cli, first) == "first"
    refused = cli.run("run", str(second), "--json")
    change(first, "first, changed")
    older = cli.run("run", str(first), "--json")

    message = json.loads(refused.stdout)["error"]["message"]
    assert (refused.returncode, str(first.with_name("work.py")) in message, "soong down" in message) == (1, True, True)
    assert "loaded work before the last change" in older.stderr
    assert [task["status"] for task in cli.json("tasks", "list")] == ["completed"] * 2


def test_a_service_that_stops_says_so(cli: CliHarness) -> None:
    assert answer_of(cli, project(cli, "first")) == "first"

    states: list[str] = []
    findings: list[dict[str, str]] = []
    while not states or states[-1] != "none":
        states.append(cli.json("status")["service"]["state"])
        findings += [one for one in cli.json("doctor")["checks"] if one["check"] == "service"]

    assert set(states) <= {"ready", "stopping", "none"}
    assert {one["level"] for one in findings} == {"ok"}, findings


def test_the_module_next_to_the_plan_comes_before_one_of_its_name_where_the_command_is_typed(cli: CliHarness) -> None:
    (cli.folder / "work.py").write_text("raise RuntimeError('another program of this user')\n")

    assert answer_of(cli, project(cli, "first")) == "first"
