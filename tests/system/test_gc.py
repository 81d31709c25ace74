"""``soong gc`` beside a service that works: what has ended goes, what runs is not disturbed (OPS-10)."""

from collections.abc import Iterator

import pytest

from tests.system.cli_scene import Scene, scene, until

WRITE = """
title: Write
steps:
  - id: write
    allowed_tools: [code.write_file]
    script:
      - {call: code.write_file, with: {path: out/note.txt, content: a note}}
      - {finish: {done: true}}
"""


@pytest.fixture
def cli() -> Iterator[Scene]:
    with scene() as one:
        yield one


@pytest.mark.spec("OPS-10.d")
def test_ended_work_goes_while_a_service_works_and_the_audit_log_holds(cli: Scene) -> None:
    service = cli.start("up")
    until((cli.home / "service.json").exists, "the service")
    allowed = f"code.write_file:{cli.folder}/out"
    cli.json("run", cli.plan(WRITE), "--project", str(cli.folder), "--allow", allowed)
    another = cli.plan(WRITE.replace("note.txt", "other.txt"), "another.yaml")
    asking = cli.json("run", another, "--project", str(cli.folder), "--answer", "inbox", "--detach")["id"]
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
    service.terminate()
    service.wait(timeout=60)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--older-than"),
        (("--older-than", "soon"), "'soon' is not an age"),
        (("--keep", "lots"), "'lots' is not a size"),
    ],
    ids=["nothing named", "no age", "no size"],
)
def test_a_wrong_limit_is_named_and_removes_nothing(cli: Scene, words: tuple[str, ...], said: str) -> None:
    done = cli.run("gc", *words)

    assert done.returncode == 2
    assert said in done.stderr
