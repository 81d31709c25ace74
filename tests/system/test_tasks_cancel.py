"""Acts on tasks: a cancel reaches everything of one, and several are acted on after one look (DAG-06)."""

import asyncio
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

import tests.system.functions  # noqa: F401  # the plan check knows the functions of its own process
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.record import EndReason, RunStatus
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from tests.scripted import calls
from tests.system.cli_scene import CliHarness, Terminal, scene, until
from tests.system.deployment import ON_POSTGRES, Deployment, promised

CANCEL_LIMIT_S = 1.0
TREE = """\
import subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(3600)", sys.argv[1]]
subprocess.Popen(sleeper)
subprocess.Popen(sleeper, start_new_session=True)
time.sleep(3600)
"""


def agent_step(step_id: str, tool: str, arguments: dict[str, Json]) -> dict[str, Json]:
    return {
        "id": step_id,
        "instructions": "Do it.",
        "allowed_tools": [tool],
        **calls({"call": tool, "with": arguments}),
    }


def marked(mark: str) -> list[psutil.Process]:
    """Return the living processes that carry a word of ours, the command's own and those that it started."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        is_alive = process.info["status"] != psutil.STATUS_ZOMBIE
        if is_alive and mark in (process.info["cmdline"] or ()):
            found.append(process)
    return found


@pytest.mark.spec("DAG-06", "DAG-06.d")
@pytest.mark.timed
@ON_POSTGRES
async def test_cancel_reaches_queued_running_asking_and_waiting_children_and_their_process_trees(
    service: Deployment, tmp_path: Path
) -> None:
    service.settings.home.joinpath("config.toml").write_text("[tools]\ndangerous = true\n", encoding="utf-8")
    program, mark = tmp_path / "tree.py", f"mark-{uuid4().hex}"  # folders of two tests may have one name
    program.write_text(TREE, encoding="utf-8")
    allowed, asked = asyncio.Event(), asyncio.Event()

    async def answer(request: PermissionRequest) -> PermissionDecision:
        if request.tool == "code.run_command":
            allowed.set()
            return PermissionDecision(Choice.ALLOW_ONCE)
        assert allowed.is_set(), "the program's question was asked first"
        asked.set()
        await asyncio.Event().wait()  # a person who is asleep
        raise AssertionError

    await service.start_workers(1)
    task = await service.submit(
        {
            "title": "everything at once",
            "steps": [
                agent_step("runs", "code.run_command", {"argv": [sys.executable, str(program), mark]}),
                {"id": "later", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 3}},
                {
                    **agent_step("asks", "code.write_file", {"path": str(tmp_path / "x.txt"), "content": "x"}),
                    "depends_on": ["later"],
                },
                {"id": "sleeps", "kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 3600}},
                {"id": "queued", "kind": "python", "call": "builtin.echo", "needs": ["a-label-that-nobody-has"]},
                {"id": "waits", "kind": "python", "call": "builtin.echo", "depends_on": ["runs", "asks", "queued"]},
            ],
        },
        callback=answer,
        project=tmp_path,
    )
    async with asyncio.timeout(30):
        await asked.wait()
    # The command runs with both of the programs that it starts.
    await service.until(lambda: sum("time.sleep(3600)" in " ".join(one.info["cmdline"]) for one in marked(mark)) == 2)
    await service.until(lambda: _stand(service, task, running=["runs", "asks", "sleeps"]))

    began = time.monotonic()
    await service.command(task, "cancel")
    await service.until(lambda: _stand(service, task, running=[]))
    cancelled_s = time.monotonic() - began
    left = marked(mark)

    steps = await service.steps(task)
    assert steps.pop("later").status is StepStatus.COMPLETED
    assert left == []  # a step has not ended before its programs have
    assert promised(cancelled_s, CANCEL_LIMIT_S)
    assert {step.status for step in steps.values()} == {StepStatus.CANCELLED}
    assert (await service.store.tasks.task(task.id)).status is TaskStatus.CANCELLED
    assert await service.store.consent.pending(task.session_id) == []
    for step in steps.values():
        run = await service.store.runs.run(step.run_id)
        assert run.status is RunStatus.CANCELLED
        assert run.end_reason in (EndReason.CANCELLED, EndReason.ABORTED_TOOLS)
    assert not (tmp_path / "x.txt").exists()


async def _stand(service: Deployment, task: Task, *, running: Sequence[str]) -> bool:
    steps = await service.steps(task)
    if running:
        return all(steps[name].status is StepStatus.RUNNING for name in running)
    return all(step.status.is_terminal for step in steps.values())


WAITS = """
title: {title}
tags: [plan]
steps:
  - {{id: first, kind: python, call: builtin.echo, inputs: {{x: 1}}, needs: [nobody-has-it]}}
  - {{id: last, kind: python, call: builtin.echo, inputs: {{x: 1}}, depends_on: [first]}}
"""
ASKS = """
title: Asks twice
steps:
  - {id: a, allowed_tools: [code.write_file], script: builtin.calls,
     inputs: {calls: [{call: code.write_file, with: {path: a.txt, content: "a"}}]}}
  - {id: b, allowed_tools: [code.write_file], script: builtin.calls,
     inputs: {calls: [{call: code.write_file, with: {path: b.txt, content: "b"}}]}}
"""


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        one.up()
        yield one


def submitted(cli: CliHarness, title: str, *options: str) -> str:
    done = cli.run("run", cli.plan(WAITS.format(title=title)), "--detach", *options)
    assert done.returncode == 0, done.stderr
    newest: str = cli.json("tasks", "list")[0]["id"]
    return newest


def shown(cli: CliHarness, *options: str) -> list[str]:
    return [task["id"] for task in cli.json("tasks", "list", *options)]


def test_tasks_are_found_and_steered_by_what_they_have_in_common(cli: CliHarness) -> None:
    one, two = submitted(cli, "Nightly report", "--tag", "team:data"), submitted(cli, "Nightly copy")
    three = submitted(cli, "Other", "--tag", "team:data", "--tag", "blue")

    assert cli.json("tasks", "list")[0]["tags"] == ["blue", "plan", "team:data"]
    assert shown(cli, "--title", "nightly") == [two, one]
    assert shown(cli, "--tag", "team:data", "--since", "1h", "--status", "running") == [three, one]
    assert {run["task"] for run in cli.json("runs", "list", "--tag", "blue")} == {three}

    refused = cli.run("tasks", "cancel", "--tag", "team:data")
    assert refused.returncode == 2
    assert "add --yes" in refused.stderr
    assert three in refused.stderr
    assert shown(cli, "--status", "cancelled") == []
    assert cli.run("tasks", "cancel").returncode == 2
    assert cli.run("tasks", "cancel", one, "--tag", "blue").returncode == 2

    done = cli.run("tasks", "cancel", "--tag", "team:data", "--yes")
    assert done.returncode == 0, done.stderr
    assert shown(cli, "--status", "cancelled") == [three, one]

    part = cli.run("tasks", "cancel", one, two, "--yes")
    assert part.returncode == 1
    assert "1 of 2 failed" in part.stderr
    assert shown(cli, "--status", "running") == []

    again = cli.run("tasks", "retry", "--title", "nightly", "--yes")
    assert again.returncode == 0, again.stderr
    assert shown(cli, "--status", "running") == [two, one]


def test_a_wrong_filter_says_what_is_right(cli: CliHarness) -> None:
    for options, words in (
        (("--status", "rnning"), "running"),
        (("--since", "yesterday"), "such as 30d"),
        (("--tag", "Not a tag"), "tag"),
    ):
        done = cli.run("tasks", "list", *options)
        assert done.returncode == 2
        assert words in done.stderr
    done = cli.run("run", cli.plan(WAITS.format(title="W")), "--detach", "--tag", "Not a tag")
    assert done.returncode == 2
    assert "write up to 64 of a-z" in done.stderr


def test_a_priority_is_that_of_every_step_that_has_not_ended(cli: CliHarness) -> None:
    task = submitted(cli, "First")

    assert cli.run("tasks", "priority", task, "7").returncode == 0
    assert cli.run("tasks", "priority", task, "9", "--step", "last").returncode == 0
    assert cli.run("tasks", "priority", task, "9", "--step", "nobody").returncode == 1

    with sqlite3.connect(cli.home / "soong.db") as rows:
        found = rows.execute("SELECT key, priority FROM steps WHERE task_id = ?", (task,)).fetchall()
    assert {key.partition("/")[2]: priority for key, priority in found} == {"first": 7, "last": 9}


def test_a_paused_pool_starts_nothing_until_it_continues(cli: CliHarness) -> None:
    plan = cli.plan("title: T\nsteps: [{id: a, kind: python, call: builtin.echo, inputs: {x: 1}}]\n")
    assert cli.run("limits", "pause", "pool").returncode == 2
    unknown = cli.run("limits", "pause", "session:sess_nobody")
    assert unknown.returncode == 2
    assert "session" in unknown.stderr
    assert cli.run("limits", "pause", "pool:default").returncode == 0
    assert cli.json("limits", "list") == {
        "limits": [{"scope": "pool:default", "limit": 0, "used": 0, "is_paused": True}]
    }
    assert cli.run("run", plan, "--detach").returncode == 0
    time.sleep(1)  # what is not to happen takes its time
    assert shown(cli, "--status", "completed") == []

    assert cli.run("limits", "resume", "pool:default").returncode == 0
    until(lambda: shown(cli, "--status", "completed"), "it runs", cli.logs)
    assert cli.json("limits", "list") == {"limits": []}


def test_several_questions_are_answered_after_one_look_at_them(cli: CliHarness) -> None:
    def waiting() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = cli.json("approvals", "list")
        return found

    assert cli.run("run", cli.plan(ASKS), "--detach", "--approvals", "inbox").returncode == 0
    until(lambda: len(waiting()) == 2, "two questions wait", cli.logs)
    task = waiting()[0]["identity"]["task_id"]
    assert "  running, 2 questions  " in cli.run("tasks", "list").stdout

    refused = cli.run("approvals", "allow", "--task", task)
    assert refused.returncode == 2
    assert "add --yes" in refused.stderr
    assert len(waiting()) == 2

    terminal = Terminal(cli, "approvals", "allow", "--task", task, "--tool", "code.write_file")
    terminal.expect("allow 2 calls?")
    assert "a.txt" in terminal.text
    assert "b.txt" in terminal.text
    terminal.press("y\n")
    assert terminal.wait() == 0
    until(lambda: cli.json("tasks", "list")[0]["status"] == "completed", "both are written", cli.logs)
    assert (cli.folder / "a.txt").read_text() == "a"
    assert (cli.folder / "b.txt").read_text() == "b"
