"""A person aborts a tool call: the run ends with it, or, when the person says so, the agent reads that and goes on."""

import json
import subprocess
from typing import Any

import pytest
from llmock.scenarios import Delay, Match, Reply, ToolCall

from tests.system.cli_scene import CliHarness, until
from tests.wires.wire import Wires

SCENE = {"is_warm": True, "models": "openai-chat:gpt-*"}

MODEL = "openai-chat:gpt-5"
CHILD = "openai-chat:gpt-5-mini"
PLAN = f"""
title: t
steps:
  - id: wait
    instructions: Wait.
    model: {MODEL}
    allowed_tools: [code.run_command]
    retries: 3
"""

pytestmark = pytest.mark.spec("EXE-07.a")


def agent(*calls: ToolCall, text: str = "") -> Reply:
    given: dict[str, Any] = {"tool_calls": calls} if calls else {"text": text}
    return Reply(**given, match=Match(model="gpt-5"))


def asked(cli: CliHarness) -> list[dict[str, Any]]:
    listed = cli.json("approvals", "list")
    return listed if isinstance(listed, list) else []  # an error, before anything was written


def under_way(cli: CliHarness, tool: str) -> dict[str, Any]:
    """Wait until a call of that tool runs; return its run."""
    found: dict[str, Any] = {}

    def runs() -> bool:
        listed = cli.json("runs", "list")
        for run in listed if isinstance(listed, list) else []:  # an error, before anything was written
            events = cli.json("runs", "tail", run["id"])
            if any(one["type"] == "soong.tool_started" and one["data"].get("tool") == tool for one in events):
                found.update(run)
        return bool(found)

    until(runs, f"{tool} runs", cli.logs)
    return found


def command_under_way(cli: CliHarness) -> tuple["subprocess.Popen[str]", dict[str, Any]]:
    """Start a plan whose agent runs a command for two minutes; return it and its run."""
    cli.home.mkdir(exist_ok=True)
    (cli.home / "config.toml").write_text("[tools]\ndangerous = true\n", encoding="utf-8")
    running = cli.start("run", cli.plan(PLAN), "--approvals", "inbox", "--json")
    until(lambda: asked(cli), "it asks", cli.logs)
    cli.run("approvals", "allow", asked(cli)[0]["id"], "--wait", "20")
    return running, under_way(cli, "code.run_command")


@pytest.mark.spec("EXE-07.a", "EXE-07.c", "EXE-07.d", "EXE-07.e", "EXE-07.g", "DAG-05.f")
def test_an_abort_ends_the_run_and_its_step_which_nothing_tries_again(cli: CliHarness, wires: Wires) -> None:
    argv = [{"argv": ["sleep", "120"]}, {"argv": ["echo", "2"]}]
    wires.will(agent(*(ToolCall("code__run_command", one) for one in argv)))
    running, run = command_under_way(cli)

    aborted = cli.run("runs", "abort", run["id"], "--reason", "too slow")
    out, _ = running.communicate(timeout=60)

    assert aborted.returncode == 0, aborted.stderr
    (step,) = json.loads(out)["steps"]
    words = "a person aborted this run: too slow"
    assert (step["status"], step["attempt"], step["error"]["type"]) == ("failed", 1, "aborted_tools")
    assert words in step["error"]["message"]
    assert cli.json("runs", "show", run["id"])["end_reason"] == "aborted_tools"
    log = cli.json("runs", "tail", run["id"])
    ended = {one["data"]["tool_call_id"]: one["data"] for one in log if one["type"] == "soong.tool_failed"}
    assert [one["error"] for one in ended.values()] == ["aborted", "aborted"]
    (cut,) = (one["data"] for one in log if one["type"] == "soong.aborted_tools")
    assert (set(cut["calls"]), cut["reason"]) == (set(ended), words)
    assert len(wires.requests) == 1


@pytest.mark.spec("EXE-07.h")
def test_a_command_of_a_worker_is_aborted_and_its_agent_goes_on(cli: CliHarness, wires: Wires) -> None:
    wires.will(agent(ToolCall("code__run_command", {"argv": ["sleep", "120"]})), agent(text="it was aborted"))
    running, run = command_under_way(cli)

    aborted = cli.run("runs", "abort", run["id"], "--continue", "--reason", "too slow")
    out, _ = running.communicate(timeout=60)

    assert aborted.returncode == 0, aborted.stderr
    assert "aborts a call of run" in aborted.stderr
    ended = json.loads(out)
    assert (ended["status"], ended["steps"][0]["output"]) == ("completed", "it was aborted")
    (result,) = (one for one in wires.requests[-1].body["messages"] if one["role"] == "tool")
    assert "a person aborted this call: too slow" in str(result["content"])
    again = cli.run("runs", "abort", run["id"])
    assert again.returncode == 1
    assert "it is over" in again.stderr


@pytest.mark.spec("EXE-07.h")
def test_an_agent_stops_waiting_for_its_worker_and_answers(cli: CliHarness, wires: Wires) -> None:
    wires.will(
        agent(ToolCall("agent__dispatch_worker", {"instructions": "Wait.", "model": CHILD})),
        Delay(seconds=60, match=Match(model="gpt-5-mini")),
        agent(text="nobody waited"),
    )
    asking = cli.start("ask", "Wait.", "--model", MODEL, "--json")
    run = under_way(cli, "agent.dispatch_worker")

    wrong = cli.run("runs", "abort", run["id"], "call_of_nobody")
    aborted = cli.run("runs", "abort", run["id"], "--continue")
    out, _ = asking.communicate(timeout=60)

    assert wrong.returncode == 1
    assert "no call call_of_nobody of run" in wrong.stderr
    assert "(agent.dispatch_worker)" in wrong.stderr
    assert aborted.returncode == 0, aborted.stderr
    ended = json.loads(out)
    assert (ended["status"], ended["answer"]) == ("completed", "nobody waited")
    assert "no reason was given" in str(wires.requests[-1].body["messages"])
