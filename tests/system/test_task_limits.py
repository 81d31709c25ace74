"""Plans with limits, run by the service: the first limit that is reached ends the task, and says which (DIS-07)."""

from typing import Any

import pytest
from llmock.scenarios import Reply, ToolCall

from tests.system.cli_scene import CliHarness
from tests.wires.wire import Wires

SCENE = {"is_warm": True}

LOOK = ToolCall("code__list_dir", {"path": "."})
CHAIN = """
title: chain
limits: {%s}
steps:
  - {id: one, instructions: Look., model: "openai-chat:gpt-4o", allowed_tools: [code.list_dir]}
  - {id: two, depends_on: [one], instructions: Look., model: "openai-chat:gpt-4o", allowed_tools: [code.list_dir]}
  - {id: three, depends_on: [two], kind: python, call: builtin.echo, on_failure: keep}
"""


def step_of(ended: Any, step_id: str) -> Any:
    return next(step for step in ended["steps"] if step["id"] == step_id)


def end_reason(cli: CliHarness, ended: Any, step_id: str) -> str:
    return str(cli.json("runs", "show", step_of(ended, step_id)["run"])["end_reason"])


@pytest.mark.spec("DIS-07.e")
def test_the_model_turns_of_all_runs_of_a_task_are_limited(cli: CliHarness, wires: Wires) -> None:
    wires.will(Reply(tool_calls=(LOOK,)), Reply(text="seen"), Reply(tool_calls=(LOOK,)), Reply(text="seen, too"))
    plan = cli.plan(CHAIN % "max_turns: 3")

    failed = cli.run("run", plan)
    shown = cli.run("tasks", "show", cli.json("tasks", "list")[0]["id"]).stdout
    ended = cli.json("tasks", "show", cli.json("tasks", "list")[0]["id"])
    asked = len(wires.requests)
    again = cli.json("resume", ended["id"])
    more = cli.json("resume", ended["id"], "--limit", "max_turns=10")

    words = "the task has reached its limit max_turns: 3 of 3 model turns are used"
    assert failed.returncode == 1, failed.stderr
    assert words in failed.stdout + failed.stderr
    assert (ended["status"], ended["reason"], asked) == ("failed", words, 3)
    assert [step["status"] for step in ended["steps"]] == ["completed", "failed", "cancelled"]
    assert step_of(ended, "two")["error"] == {"type": "limit_exceeded", "message": words, "retryable": False}
    assert end_reason(cli, ended, "two") == "max_turns"
    assert ended["limits"]["max_turns"] == {"limit": 3, "used": 3}
    assert "limits: max_turns 3 of 3" in shown
    assert f"resume {ended['id']} --limit max_turns=…" in shown
    assert (again["status"], again["reason"]) == ("failed", words), "what was used stays used"
    assert (more["status"], more["limits"]["max_turns"]) == ("completed", {"limit": 10, "used": 4})


@pytest.mark.spec("DIS-07.h")
def test_the_time_of_a_task_is_limited(cli: CliHarness) -> None:
    plan = """
title: time
limits: {wall_s: 2}
steps:
  - {id: one, kind: python, call: builtin.sleep, inputs: {seconds: 60}}
  - {id: two, depends_on: [one], kind: python, call: builtin.echo}
"""
    ended = cli.json("run", cli.plan(plan))

    words = "the task has reached its limit wall_s: its 2 s have passed"
    assert (ended["status"], ended["exit_code"], ended["reason"]) == ("failed", 1, words)
    assert (step_of(ended, "one")["error"]["type"], end_reason(cli, ended, "one")) == ("limit_exceeded", "time_limit")
    assert step_of(ended, "two")["status"] == "cancelled"
    assert 2 <= ended["limits"]["wall_s"]["used"] < 30


def test_the_turns_of_scripted_agents_count_and_a_limit_that_is_not_reached_ends_nothing(cli: CliHarness) -> None:
    plan = """
title: scripts
limits: {max_turns: %s, tokens: 1, cost_usd: 0.000001, wall_s: 600}
steps:
  - id: map
    kind: map
    over: [a, b]
    step:
      script: builtin.calls
      allowed_tools: [code.list_dir]
      inputs: {calls: [{call: code.list_dir, with: {path: .}}]}
"""
    few, enough = cli.json("run", cli.plan(plan % 3)), cli.json("run", cli.plan(plan % 4))

    assert (few["status"], few["limits"]["max_turns"]["used"]) == ("failed", 3)
    assert "its limit max_turns:" in few["reason"]
    assert (enough["status"], enough["limits"]["max_turns"]["used"]) == ("completed", 4)
    assert (enough["limits"]["tokens"]["used"], enough["limits"]["cost_usd"]["used"]) == (0, 0)
