"""``soong tools call`` at a terminal: a person is asked, Ctrl-C ends the call and whatever it started."""

import json
import os
import signal
import subprocess

import psutil
import pytest

from tests.system.cli_scene import CliHarness, Terminal, until

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


def children(command: "subprocess.Popen[str]") -> list[psutil.Process]:
    try:
        return psutil.Process(command.pid).children()
    except psutil.NoSuchProcess:
        return []
