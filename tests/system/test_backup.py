"""A backup taken while a service works continues elsewhere: the same tasks, questions, files and keys (OPS-13)."""

import shutil
import stat
from pathlib import Path

import pytest

from tests.system.cli_scene import CliHarness, interrupted, until

WRITE = """
title: Write
steps:
  - id: first
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: out/first.txt, content: first}}]}
  - id: second
    depends_on: [first]
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: ask/second.txt, content: second}}]}
"""
FAN = """
title: Fan
steps:
  - {id: list, kind: python, call: builtin.echo, inputs: {n: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]}}
  - id: each
    kind: map
    over: ${list.output.n}
    as: n
    depends_on: [list]
    step: {kind: python, call: builtin.echo, inputs: {n: "${n}"}}
"""


def restored(cli: CliHarness, archive: Path) -> CliHarness:
    """Restore into a home of its own, in the same folder."""
    other = CliHarness(cli.folder / "other", cli.folder)
    done = other.run("restore", str(archive))
    assert done.returncode == 0, done.stderr
    return other


@pytest.mark.spec("OPS-13.a", "OPS-13.b")
def test_work_and_questions_of_a_running_service_continue_in_a_restored_home(cli: CliHarness) -> None:
    (cli.home / "agents").mkdir(parents=True)
    (cli.home / "agents" / "ours.md").write_text("---\ndescription: ours\n---\nBe brief.\n")
    (cli.home / "config.toml").write_text('[permission]\nmode = "auto"\n')
    service = cli.up_warm()
    task = cli.json(
        "run", cli.plan(WRITE), "--project", str(cli.folder), "--allow", f"code.write_file:{cli.folder}/out",
        "--approvals", "inbox", "--detach",
    )["id"]  # fmt: skip
    until(lambda: cli.json("approvals", "list"), "the question of the second step")
    archive = cli.folder / "backup.tar.gz"

    # Others write while it is copied.
    busy = cli.start("run", cli.plan(FAN, "fan.yaml"))
    done = cli.run("backup", str(archive))
    busy.communicate(timeout=60)
    assert busy.returncode == 0

    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    interrupted(service)
    shutil.rmtree(cli.home)
    other = restored(cli, archive)
    assert stat.S_IMODE((other.home / "signing.key").stat().st_mode) == 0o600
    assert (other.home / "agents" / "ours.md").exists()
    service = other.up_warm()
    until(lambda: other.json("approvals", "list"), "the same question", other.logs)
    (question,) = other.json("approvals", "list")
    assert other.run("approvals", "allow", question["id"]).returncode == 0
    until(lambda: other.json("tasks", "show", task)["status"] == "completed", "the end of the task", other.logs)
    assert (cli.folder / "ask" / "second.txt").read_text() == "second"
    (first,) = [step for step in other.json("tasks", "show", task)["steps"] if step["id"] == "first"]
    assert first["attempt"] == 1, "a step that had ended has run again"
    assert other.json("audit", "verify")["holds"] is True
    assert other.json("doctor")["ok"] is True
    interrupted(service)
    other.assert_nothing_left()
