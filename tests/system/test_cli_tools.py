"""Tool calls at a terminal: asked, interrupted and aborted; hooks of the configuration in a whole service."""

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from llmock.scenarios import Delay, Match, Reply, ToolCall

from tests.log_entries import SQLITE_EVENTS
from tests.system.cli_scene import CliHarness, Terminal, WarmCommand, until
from tests.wires.wire import Wires

WRITE = ("tools", "call", "code.write_file", "path=out.txt", "content=hello")
MODULE = """
import asyncio
from soong import Permission, ToolContext, Toolset

tools = Toolset()


@tools.tool("team.program", permission=Permission.READONLY)
async def program(context: ToolContext) -> str:
    '''Run a program that runs another, for ever.'''
    child = await asyncio.create_subprocess_exec("/bin/sleep", "7331")
    try:
        await context.progress.report("it runs")
        await child.wait()
    finally:
        child.kill()
        await child.wait()
    return ""
"""


@pytest.mark.spec("PER-05")
def test_a_terminal_that_ends_instead_of_answering_denies(cli: CliHarness) -> None:
    terminal = Terminal(cli, *WRITE)

    terminal.expect("[3] deny")
    terminal.answer("\x04")

    assert terminal.wait() == 3
    assert "permission_failed" in terminal.shown


@pytest.mark.spec("PER-03", "EXE-12.c")
def test_the_question_leaves_standard_output_to_the_result(cli: CliHarness) -> None:
    terminal = Terminal(cli, *WRITE, "--json", output=cli.folder / "result.json")

    terminal.expect("code.write_file asks for permission")
    assert not (cli.folder / "out.txt").exists()
    terminal.answer("1\n")

    assert terminal.wait() == 0
    assert json.loads((cli.folder / "result.json").read_text())["is_error"] is False
    assert (cli.folder / "out.txt").read_text() == "hello"


@pytest.mark.spec("EXE-07", "PER-15")
def test_ctrl_c_at_the_question_withdraws_it(cli: CliHarness) -> None:
    terminal = Terminal(cli, *WRITE)

    terminal.expect("[3] deny")
    terminal.press("\x03")

    assert terminal.wait() == 130
    assert "aborted" in terminal.shown
    assert not (cli.folder / "out.txt").exists()
    (events,) = (cli.home / "runs").glob("*/events.jsonl")
    types = [json.loads(line)["type"] for line in events.read_text().splitlines()]
    assert "soong.permission_withdrawn" in types
    assert types[-2:] == ["soong.tool_failed", "soong.run_completed"]


@pytest.mark.spec("EXE-07", "EXE-12")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_call_its_program_and_the_command(cli: CliHarness, number: signal.Signals) -> None:
    (cli.folder / "team_tools.py").write_text(MODULE)
    cli.environment |= {"SOONG_TOOLS": "team_tools", "PYTHONPATH": str(cli.folder)}
    calling = cli.start("tools", "call", "team.program", "--json")
    until(lambda: children(calling), "the program runs")
    (program,) = children(calling)

    os.kill(calling.pid, number)
    out, err = calling.communicate(timeout=30)

    assert calling.returncode == 130, err
    result = json.loads(out)
    assert result["error"]["type"] == "aborted"
    assert result["metadata"]["abort_reason"] == "interrupted by the person at the terminal"
    until(lambda: not program.is_running(), "the program has ended", limit_s=5)


def children(command: WarmCommand) -> list[psutil.Process]:
    try:
        return psutil.Process(command.pid).children()
    except psutil.NoSuchProcess:
        return []


SCENE = {"models": "openai-chat:gpt-*"}
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


def command_under_way(cli: CliHarness) -> tuple[WarmCommand, dict[str, Any]]:
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


@pytest.mark.spec("EXE-07.a", "EXE-07.h")
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


@pytest.mark.spec("EXE-07.a", "EXE-07.h")
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


LOOK = """
title: Look
steps:
  - id: look
    allowed_tools: [code.list_dir]
    script: builtin.calls
    inputs: {calls: [{call: code.list_dir, with: {path: .}}]}
"""


def configure(cli: CliHarness, command: str) -> None:
    cli.home.mkdir(parents=True, exist_ok=True)
    text = f'[[hooks.pre]]\nname = "curfew"\ntools = "code.*"\ncommand = {command}\n'
    (cli.home / "config.toml").write_text(text, encoding="utf-8")


def program(folder: Path, body: str) -> Path:
    path = folder / "curfew.sh"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def events(cli: CliHarness) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(cli.home / "soong.db")) as database:
        rows = database.execute(f"SELECT type, data FROM {SQLITE_EVENTS} ORDER BY run_id, seq")
        return [(str(kind), str(data)) for kind, data in rows]


@pytest.mark.spec("EXE-13.a")
def test_a_hook_of_the_configuration_stops_a_run(cli: CliHarness) -> None:
    cli.home.mkdir(parents=True, exist_ok=True)
    hook = program(cli.home, """printf '{"action": "stop", "reason": "not after ten"}'""")
    configure(cli, f'["{hook}"]')

    report = cli.json("run", cli.plan(LOOK))

    assert report["exit_code"] == 1
    assert report["steps"][0]["error"]["message"] == "not after ten"
    (data,) = [data for kind, data in events(cli) if kind == "hook_run"]
    assert '"curfew"' in data
    assert '"stop"' in data


@pytest.mark.spec("EXE-13")
def test_a_hook_program_that_is_not_there_keeps_the_service_from_running_and_is_named(cli: CliHarness) -> None:
    configure(cli, '["/nowhere/curfew"]')

    done = cli.run("run", cli.plan(LOOK))

    assert done.returncode != 0
    assert "hooks.pre[0]" in done.stdout + done.stderr
    cli.assert_nothing_left()
