"""``soong gc`` beside a service that works: what has ended goes, what runs is not disturbed (OPS-10)."""

import pytest

from tests.system.cli_scene import CliHarness, interrupted, until

SCENE = {"is_warm": True}

WRITE = """
title: Write
steps:
  - id: write
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: out/note.txt, content: a note}}]}
"""


@pytest.mark.spec("OPS-10.d")
def test_ended_work_goes_while_a_service_works_and_the_audit_log_holds(cli: CliHarness) -> None:
    service = cli.up_warm()
    allowed = f"code.write_file:{cli.folder}/out"
    cli.json("run", cli.plan(WRITE), "--project", str(cli.folder), "--allow", allowed)
    another = cli.plan(WRITE.replace("note.txt", "other.txt"), "another.yaml")
    asking = cli.json("run", another, "--project", str(cli.folder), "--approvals", "inbox", "--detach")["id"]
    until(lambda: cli.json("approvals", "list"), "the question of a task that goes on")

    preview = cli.json("gc", "--older-than", "0s", "--dry-run")
    removed = cli.json("gc", "--older-than", "0s")

    (question,) = cli.json("approvals", "list")
    assert cli.run("approvals", "deny", question["id"]).returncode == 0
    until(lambda: cli.json("tasks", "show", asking)["status"] == "completed", "the end of the task that went on")
    assert (preview["tasks"], removed["tasks"]) == (1, 1)
    assert [task["id"] for task in cli.json("tasks", "list")] == [asking]
    assert removed["folders"] >= 1
    assert cli.json("audit", "verify")["holds"] is True
    assert cli.json("doctor")["ok"] is True
    interrupted(service)


FAN = """
title: Fan
steps:
  - {id: list, kind: python, call: builtin.echo, inputs: {names: [a, b, c, d, e, f]}}
  - id: each
    kind: map
    over: ${list.output.names}
    as: name
    depends_on: [list]
    step:
      allowed_tools: [code.write_file, code.read_file]
      script: builtin.calls
      inputs:
        calls:
          - {call: code.write_file, with: {path: "TASK/${name}.txt", content: "${name} of TASK"}}
          - {call: code.read_file, with: {path: "TASK/${name}.txt"}}
        output: {wrote: "${name}"}
  - {id: end, kind: python, call: builtin.echo, depends_on: [each], inputs: {all: "${each.output}"}}
"""


@pytest.mark.spec("OPS-10.a", "OPS-10.c", "OPS-10.d")
def test_a_service_that_collects_by_itself_without_pause_finishes_all_its_work(cli: CliHarness) -> None:
    cli.environment = {"SOONG_GC_OLDER_THAN": "0s", "SOONG_GC_EVERY_S": "0.05", "SOONG_SLOTS": "8"}
    service = cli.up_warm()
    names = [f"work{number}" for number in range(6)]
    allowed = ("--project", str(cli.folder), "--allow", f"code.write_file:{cli.folder}", "--detach")
    for name in names:
        (cli.folder / name).mkdir()
        assert cli.json("run", cli.plan(FAN.replace("TASK", name), f"{name}.yaml"), *allowed)["id"]
        cli.json("gc", "--older-than", "0s")  # a second collection beside the service's own

    until(lambda: not cli.json("tasks", "list"), "the end and the removal of every task", cli.logs)

    written = {path.read_text() for name in names for path in (cli.folder / name).iterdir()}
    assert written == {f"{letter} of {name}" for name in names for letter in "abcdef"}
    until(lambda: not list((cli.home / "runs").iterdir()), "the removal of the last folders")
    assert cli.json("audit", "verify")["holds"] is True
    assert "reconcile_failed" not in cli.logs()
    assert "gc_failed" not in cli.logs()
    service.terminate()
    assert "gc_done" in service.communicate(timeout=60)[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--older-than"),
        (("--older-than", "soon"), "'soon' is not an age"),
        (("--keep", "lots"), "'lots' is not a size"),
    ],
    ids=["nothing named", "no age", "no size"],
)
def test_a_wrong_limit_is_named_and_removes_nothing(cli: CliHarness, words: tuple[str, ...], said: str) -> None:
    done = cli.run("gc", *words)

    assert done.returncode == 2
    assert said in done.stderr
