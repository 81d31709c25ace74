"""Lists with filters, and acts on several tasks and questions after one look at all of them."""

import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.cli_scene import CliHarness, Terminal, scene, until

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
    with scene(is_warm=True) as one:
        one.up_warm()
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

    assert priorities(cli, task) == {"first": 7, "last": 9}


def test_a_paused_pool_starts_nothing_until_it_continues(cli: CliHarness) -> None:
    plan = cli.plan("title: T\nsteps: [{id: a, kind: python, call: builtin.echo, inputs: {x: 1}}]\n")
    assert cli.run("limits", "pause", "pool").returncode == 2
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


def priorities(cli: CliHarness, task: str) -> dict[str, int]:
    with sqlite3.connect(cli.home / "soong.db") as rows:
        found = rows.execute("SELECT key, priority FROM steps WHERE task_id = ?", (task,)).fetchall()
    return {key.partition("/")[2]: priority for key, priority in found}


def test_several_questions_are_answered_after_one_look_at_them(cli: CliHarness) -> None:
    def waiting() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = cli.json("approvals", "list")
        return found

    assert cli.run("run", cli.plan(ASKS), "--detach", "--approvals", "inbox").returncode == 0
    until(lambda: len(waiting()) == 2, "two questions wait", cli.logs)
    task = waiting()[0]["identity"]["task_id"]

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
