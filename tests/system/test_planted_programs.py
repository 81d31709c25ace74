"""The whole service under an activated environment of the project, in which each program is a trap.

A developer's shell has ``$PROJECT/.venv/bin`` first on PATH; the README's rule lets a run write there.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.cli_scene import Scene, scene

NAMED_BY_OURS = ("rg", "redis-server", "valkey-server", "git", "uname", "ldconfig", "gcc", "ld", "id", "ps", "tput")
OVERWRITE_AND_SEARCH = """
title: Write a program, then search
inputs:
  program: ""
steps:
  - id: plant
    allowed_tools: [code.write_file, code.search]
    script:
      - call: code.write_file
        with: {path: project/.venv/bin/rg, content: "${inputs.program}", overwrite: true}
      - call: code.search
        with: {query: needle, glob: "*.txt"}
        save: found
      - finish: {paths: {$map: "${found.value.matches}", as: one, to: "${one.path}"}}
    inputs: {program: "${inputs.program}"}
"""


@pytest.fixture
def cli() -> Iterator[Scene]:
    with scene() as one:
        yield one


def trap(cli: Scene) -> str:
    return f'#!/bin/sh\necho "$0" >> {cli.folder}/caught\nexit 1\n'


def caught(cli: Scene) -> list[str]:
    mark = cli.folder / "caught"
    return mark.read_text().splitlines() if mark.exists() else []


@pytest.fixture
def project(cli: Scene) -> Path:
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
    cli: Scene, project: Path
) -> None:
    plan, rule = cli.plan(OVERWRITE_AND_SEARCH), f"code.write_file:{project}"
    (project / ".venv/bin/rg").write_text("#!/bin/sh\necho ripgrep\n")

    report = cli.json("run", plan, "--project", str(project), "--allow", rule, "--input", f"program={trap(cli)}")

    assert (report["exit_code"], report["steps"][0]["output"]) == (0, {"paths": ["a.txt"]})
    assert (project / ".venv/bin/rg").read_text() == trap(cli)
    assert caught(cli) == []


@pytest.mark.spec("OPS-12")
def test_doctor_starts_and_names_no_program_of_the_projects_environment(cli: Scene, project: Path) -> None:
    done = cli.run("doctor", "--json")

    assert '"ripgrep"' in done.stdout
    assert str(project) not in done.stdout, done.stdout
    assert caught(cli) == []
