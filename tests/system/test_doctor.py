"""An installation that lacks parts or is tampered with, and what ``soong doctor`` says of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest

from soong.shared.core.installation import install_line
from tests.spec_document import ROOT
from tests.system import cli_scene
from tests.system.cli_scene import CliHarness, interrupted, scene, until

pytestmark = pytest.mark.timeout(180)

FUNCTIONS = """\
import asyncio, os
from soong import step

@step(name="bad.leave")
def leave(**inputs):
    os._exit(7)

@step(name="bad.deaf")
async def deaf(**inputs):
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""

PLAN = "title: t\nsteps:\n- {id: a, kind: python, call: %s, inputs: {seconds: 600}, timeout_s: %s}\n"


@pytest.fixture
def service() -> Iterator[CliHarness]:
    """A service that stays, with step functions that end their process or hear nothing."""
    with scene() as one:
        (one.folder / "bad_steps.py").write_text(FUNCTIONS)
        one.environment |= {"SOONG_FUNCTIONS": "bad_steps", "SOONG_BEAT_S": "0.5", "SOONG_LEASE_S": "60"}
        up = one.up()
        yield one
        interrupted(up)


def finding(service: CliHarness, check: str) -> dict[str, Any]:
    return next(dict(one) for one in service.json("doctor")["checks"] if one["check"] == check)


@pytest.mark.spec("OPS-07.b", "OPS-07.c")
def test_a_worker_that_a_step_ends_again_and_again_is_seen(service: CliHarness) -> None:
    assert finding(service, "workers")["level"] == "ok"

    failed = service.run("run", service.plan(PLAN % ("bad.leave", 60)))
    done = service.run("doctor")

    assert failed.returncode == 1
    assert done.returncode == 1
    seen = finding(service, "workers")
    assert seen["level"] == "fail"
    assert seen["says"].startswith("worker-1 ended unexpectedly 3 times, last by exit code 7")
    assert "a step's function or library ends the process" in seen["hint"]
    assert "worker-1 ended unexpectedly 3 times, last by exit code 7" in done.stdout


@pytest.mark.spec("OPS-07.b", "OPS-07.c")
def test_a_step_that_hears_no_cancelling_is_seen_when_its_time_is_over(service: CliHarness) -> None:
    task = service.run("run", "--detach", service.plan(PLAN % ("bad.deaf", 1))).stdout.strip()
    service.until_running("a")

    until(lambda: finding(service, "steps")["level"] == "warn", "doctor sees it", service.logs)

    seen = finding(service, "steps")
    assert seen["says"].startswith(f"{task}/a (bad.deaf): timed out, still running; the step took longer than 1")
    assert "a thread cannot be ended" in seen["hint"]


@pytest.mark.spec("OPS-07.b", "OPS-07.c")
def test_a_stopped_worker_has_no_heartbeat(service: CliHarness) -> None:
    service.run("run", "--detach", service.plan(PLAN % ("builtin.sleep", 600)))
    service.until_running("a")
    assert finding(service, "steps")["level"] == finding(service, "workers")["level"] == "ok"
    pid = service.json("workers", "list")["workers"][0]["pid"]

    os.kill(pid, signal.SIGSTOP)
    try:
        seen = finding(service, "workers")
    finally:
        os.kill(pid, signal.SIGCONT)

    assert seen["level"] == "warn"
    assert seen["says"].startswith("no heartbeat within 1 s: worker-1@")
    assert f"(pid {pid} on " in seen["says"]


PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "the MCP client": ("soong.shared.toolsets.mcp",),
    "the MCP server": ("soong.orchestrator.mcp",),
    "agents over ACP": ("soong.worker.acp", "soong.orchestrator.acp"),
    "notifications": ("soong.orchestrator.notifications",),
    "telemetry": ("soong.orchestrator.telemetry",),
    "memory": ("soong.orchestrator.memory", "soong.shared.storage.memory", "soong.shared.toolsets.memory"),
    "declarative tools": ("soong.shared.toolsets.declarative",),
    "skills": ("soong.shared.toolsets.skills",),
    "the web tool": ("soong.shared.toolsets.web",),
    "retention and backups": ("soong.orchestrator.retention", "soong.orchestrator.backup"),
    "replay": ("soong.orchestrator.replay", "soong.shared.agents.replay"),
    "artifacts in S3": ("soong.shared.storage.s3_artifacts",),
}

RUNS: Final = range(6)


@pytest.fixture
def partial(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> CliHarness:
    """A scene whose commands lack the modules in ``LEFT_OUT``."""
    monkeypatch.setattr(cli_scene, "CLI", "tests.system.without_parts")
    return cli


@pytest.mark.parametrize("run", RUNS)
def test_the_demo_runs_without_optional_parts(run: int, partial: CliHarness) -> None:
    """Each part is left out in three runs, in one of them beside each part that stays."""
    missing = zip(PARTS.values(), combinations(RUNS, 3), strict=False)
    partial.environment["LEFT_OUT"] = " ".join(name for names, runs in missing if run in runs for name in names)
    partial.serve_with("hello", ROOT / "soong" / "examples")

    done = partial.run("demo", "hello", "--input", "name=Ada")

    assert (done.returncode, "Ada" in done.stdout) == (0, True), done.stdout + done.stderr
    assert "starting a service" not in done.stderr, f"the partial service did not start: {partial.logs()}"
    assert "child_died" not in partial.logs(), "a child was started again, with all parts"


def test_a_command_of_a_part_that_is_left_out_says_so(partial: CliHarness) -> None:
    partial.environment["LEFT_OUT"] = "soong.orchestrator.backup"

    done = partial.run("backup", str(partial.folder / "one.tar"))

    assert done.returncode == 1
    assert done.stderr.startswith("soong: soong.orchestrator.backup"), done.stderr
    assert done.stderr.endswith("is left out of this installation; install the complete package\n"), done.stderr


def test_the_line_that_adds_an_extra_works_for_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    line = install_line("otel")
    assert line.startswith("pip install ")
    modes = ("DRY_RUN", "NO_INDEX", "NO_DEPS", "IGNORE_INSTALLED")
    environment = {f"PIP_{mode}": "1" for mode in modes} | {"PIP_NO_BUILD_ISOLATION": "0", "HOME": str(tmp_path)}
    environment["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"

    done = subprocess.run(
        line, shell=True, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert (done.returncode, "Would install soong-agents" in done.stdout) == (0, True), done.stdout + done.stderr


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
