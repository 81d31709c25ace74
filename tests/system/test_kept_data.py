"""The data of a home: backed up, kept in a bucket, and collected while others work."""

import shutil
import stat
from pathlib import Path

import pytest

from soong.orchestrator.client.bootstrap import open_artifacts
from soong.orchestrator.doctor.machine import Level, check_artifacts
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.storage.s3_artifacts import S3Artifacts
from tests.s3_server import CREDENTIALS, s3_server
from tests.scripted import call, calls
from tests.system.cli_scene import CliHarness, interrupted, until, writes
from tests.system.deployment import Deployment

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
    service = cli.up()
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
    service = other.up()
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


@pytest.mark.spec("EVT-04.b")
async def test_a_deliverable_goes_through_the_bucket_and_no_artifact_is_on_the_disk(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server() as address:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": address}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SOONG_ARTIFACTS_URL", "s3://soong-artifacts/team")
        store = open_artifacts(load_settings())
        assert isinstance(store, S3Artifacts)
        missing = await check_artifacts(load_settings())
        store._opened().create_bucket(Bucket="soong-artifacts")
        project = tmp_path / "project"
        project.mkdir()
        extra = {"artifacts_url": "s3://soong-artifacts/team"}
        async with Deployment(f"sqlite:///{tmp_path / 'soong.db'}", redis_url, tmp_path, extra) as service:
            await service.start_workers(1)
            step = {
                "id": "write",
                "instructions": "x",
                "allowed_tools": ["code.write_file"],
                **calls(call("code.write_file", path="report.md", content="a report")),
            }
            task = await service.submit(
                {"title": "s3", "steps": [step]}, project=project, allow=(f"code.write_file:{project}",)
            )
            ended = await service.finished(task)
            run_id = (await service.steps(task))["write"].run_id
            delivered = service.settings.runs / run_id / "deliverables" / "report.md"

            await service.until(delivered.is_file)

        listed = list(store.stored())
        found = await check_artifacts(load_settings())

    assert ended.status is TaskStatus.COMPLETED
    assert delivered.read_text() == "a report"
    assert [one.size_bytes for one in listed] == [8]
    assert not service.settings.data.joinpath("artifacts").exists()
    assert (missing.level, found.level) == (Level.FAIL, Level.OK)
    assert "NoSuchBucket" in missing.says


@pytest.mark.spec("OPS-10.d")
def test_ended_work_goes_while_a_service_works_and_the_audit_log_holds(cli: CliHarness) -> None:
    service = cli.up()
    allowed = f"code.write_file:{cli.folder}/out"
    cli.json("run", cli.plan(writes("out/note.txt")), "--project", str(cli.folder), "--allow", allowed)
    another = cli.plan(writes("out/other.txt"), "another.yaml")
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


FAN_OUT = """
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
    service = cli.up()
    names = [f"work{number}" for number in range(6)]
    allowed = ("--project", str(cli.folder), "--allow", f"code.write_file:{cli.folder}", "--detach")
    for name in names:
        (cli.folder / name).mkdir()
        assert cli.json("run", cli.plan(FAN_OUT.replace("TASK", name), f"{name}.yaml"), *allowed)["id"]
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
