"""The whole service under an activated environment of the project, in which each program is a trap."""

import json
from pathlib import Path

import pytest

from tests.system.cli_scene import LIMIT_S, CliHarness

NAMED_BY_OURS = ("rg", "redis-server", "valkey-server", "git", "uname", "ldconfig", "gcc", "ld", "id", "ps", "tput")
OVERWRITE_AND_SEARCH = """
title: Write a program, then search
inputs:
  program: ""
steps:
  - id: plant
    allowed_tools: [code.write_file, code.search]
    script: builtin.calls
    inputs:
      calls:
        - call: code.write_file
          with: {path: project/.venv/bin/rg, content: "${inputs.program}", overwrite: true}
        - {call: code.search, with: {query: needle, glob: "*.txt"}}
"""


def trap(cli: CliHarness) -> str:
    return f'#!/bin/sh\necho "$0" >> {cli.folder}/caught\nexit 1\n'


def caught(cli: CliHarness) -> list[str]:
    mark = cli.folder / "caught"
    return mark.read_text().splitlines() if mark.exists() else []


@pytest.fixture
def project(cli: CliHarness) -> Path:
    """A project whose activated environment has every program of the system, each one a trap."""
    project = cli.folder / "project"
    (project / ".venv/bin").mkdir(parents=True)
    (project / "a.txt").write_text("needle\n")
    everything = {path.name for path in Path("/usr/bin").iterdir()}
    for name in everything.union(NAMED_BY_OURS):
        planted = project / ".venv/bin" / name
        planted.write_text(trap(cli))
        planted.chmod(0o755)
    cli.environment["PATH"] = f"{project}/.venv/bin:/usr/bin:/bin"
    return project


@pytest.mark.spec("FS-03", "CMD-01", "OPS-12")
def test_a_run_that_overwrites_rg_in_the_projects_environment_and_searches_runs_nothing_of_it(
    cli: CliHarness, project: Path
) -> None:
    plan, rule = cli.plan(OVERWRITE_AND_SEARCH), f"code.write_file:{project}"
    (project / ".venv/bin/rg").write_text("#!/bin/sh\necho ripgrep\n")

    report = cli.json("run", plan, "--project", str(project), "--allow", rule, "--input", f"program={trap(cli)}")

    _, searched = report["steps"][0]["output"]["results"]
    assert (report["exit_code"], [one["path"] for one in searched["value"]["matches"]]) == (0, ["a.txt"])
    assert (project / ".venv/bin/rg").read_text() == trap(cli)
    assert caught(cli) == []


@pytest.mark.spec("OPS-12")
def test_doctor_starts_and_names_no_program_of_the_projects_environment(cli: CliHarness, project: Path) -> None:
    done = cli.run("doctor", "--json")

    assert '"ripgrep"' in done.stdout
    assert str(project) not in done.stdout, done.stdout
    assert caught(cli) == []


REWRITE_MODULES = """
title: Write what workers import
steps:
  - id: write
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs:
      calls:
        - {call: code.write_file, with: {path: team_steps.py, content: "EVIL", overwrite: true}}
        - {call: code.write_file, with: {path: sitecustomize.py, content: "EVIL"}}
        - {call: code.write_file, with: {path: json.py, content: "EVIL"}}
        - {call: code.write_file, with: {path: app.py, content: "ours"}}
"""


@pytest.mark.spec("FS-09", "OPS-12")
def test_a_run_writes_no_module_that_workers_import_from_its_project(cli: CliHarness) -> None:
    (cli.folder / "team_steps.py").write_text("")
    cli.environment |= {"SOONG_FUNCTIONS": "team_steps", "PYTHONPATH": str(cli.folder)}

    done = cli.start("run", cli.plan(REWRITE_MODULES), "--allow", f"code.write_file:{cli.folder}", "--json")
    report = json.loads(done.communicate(timeout=LIMIT_S)[0])

    made = report["steps"][0]["output"]["results"]
    said = {name: json.dumps(call) for name, call in zip(("module", "start", "shadow", "own"), made, strict=True)}
    assert [name for name, call in said.items() if "path_protected" in call] == ["module", "start", "shadow"], said
    assert (cli.folder / "team_steps.py").read_text() == ""
    assert (cli.folder / "app.py").read_text() == "ours"
    assert not (cli.folder / "sitecustomize.py").exists()
    assert not (cli.folder / "json.py").exists()
