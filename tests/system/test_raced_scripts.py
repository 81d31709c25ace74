"""A person reads a script, another agent rewrites it, the person says yes: what they read runs, or nothing does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.cli_scene import LIMIT_S, CliHarness, scene, until

BUILD = """
title: Build
steps:
  - id: build
    allowed_tools: [code.run_command]
    script: builtin.calls
    inputs: {calls: [{call: code.run_command, with: {argv: [python3, build.py]}}]}
"""
REWRITE = """
title: Rewrite
steps:
  - id: rewrite
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs:
      calls: [{call: code.write_file, with: {path: build.py, content: "open('EVIL', 'w')\\n", overwrite: true}}]
"""


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene(is_warm=True) as one:
        one.home.mkdir(parents=True)
        (one.home / "config.toml").write_text("[tools]\ndangerous = true\n")
        (one.home / "config.toml").chmod(0o600)
        (one.folder / "build.py").write_text("open('good', 'a').write('x')\n")
        yield one


def asked(cli: CliHarness) -> list[dict[str, Any]]:
    """Return the questions that wait; none before the service has made its database."""
    done = cli.run("approvals", "list", "--json")
    return list(json.loads(done.stdout)) if done.returncode == 0 else []


@pytest.mark.spec("CMD-01", "PER-12", "PER-06")
def test_a_script_that_another_agent_rewrites_after_it_was_shown_is_not_run(cli: CliHarness) -> None:
    allow = f"code.write_file:{cli.folder}"
    building = cli.start("run", cli.plan(BUILD, "build.yaml"), "--approvals", "inbox", "--json")
    until(lambda: (cli.home / "soong.db").exists() and len(asked(cli)) == 1, "the build is asked for", cli.logs)
    (question,) = asked(cli)

    rewritten = cli.json("run", cli.plan(REWRITE, "rewrite.yaml"), "--allow", allow, "--approvals", "deny")
    shown = cli.run("approvals", "show", question["id"]).stdout
    allowed = cli.run("approvals", "allow", question["id"])
    report = json.loads(building.communicate(timeout=LIMIT_S)[0])

    assert question["preview"].startswith("file build.py: sha256 ")
    assert rewritten["exit_code"] == 0
    assert "the target has changed since the question was asked" in shown
    assert allowed.returncode == 0, allowed.stderr
    assert "path_conflict" in json.dumps(report["steps"][0]["output"]), report
    assert not Path(cli.folder, "EVIL").exists()
    assert not Path(cli.folder, "good").exists()
