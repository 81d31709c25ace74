"""Hooks of the configuration in a whole service: a worker asks them, and does not start without their programs."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.log_entries import SQLITE_EVENTS
from tests.system.cli_scene import CliHarness

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
    cli.is_warm = True
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
