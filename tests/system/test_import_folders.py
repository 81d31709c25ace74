"""Modules of one's own from the folder that one works in, as docs/plans.md says; and nothing else from there."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spec_document import ROOT
from tests.system.cli_scene import CliHarness, interrupted, until
from tests.warm import called

pytestmark = pytest.mark.timeout(180)

_BLOCK = re.compile(
    r"```\w+\n# (?P<name>[\w.]+)(?: +(?P<command>\S[^\n]*))?\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)

ECHO = "title: Echo\nsteps:\n- {id: echo, kind: python, call: builtin.echo, inputs: {x: 1}}\n"
TOOL_MODULE = '''
```python
# team_tools.py  SOONG_TOOLS=team_tools soong tools call team.square x=4
from soong import Permission, Toolset

tools = Toolset()

@tools.tool("team.square", permission=Permission.READONLY)
def square(x: int) -> int:
    """Square a number."""
    return x ** 2
```
'''
TOOL_PLAN = """
title: Tool
steps:
  - id: square
    allowed_tools: [team.square]
    script: builtin.calls
    inputs: {calls: [{call: team.square, with: {x: 4}}]}
"""


def from_guide(folder: Path) -> dict[str, str]:
    """Write the guide's files into a folder; return the command that it shows beside each."""
    blocks = list(_BLOCK.finditer((ROOT / "docs" / "plans.md").read_text() + TOOL_MODULE))
    for block in blocks:
        (folder / block["name"]).write_text(block["body"])
    return {block["name"]: block["command"] or "" for block in blocks}


def typed(cli: CliHarness, line: str) -> subprocess.CompletedProcess[str]:
    """Type a command line of the guide: settings, ``soong``, words."""
    words = line.split()
    settings = dict(word.split("=", 1) for word in words[: words.index("soong")])
    arguments = words[words.index("soong") + 1 :]
    return called("soong.orchestrator.cli", arguments, env={**cli.env, **settings}, cwd=cli.folder, limit_s=90)


@pytest.mark.parametrize("path", [None, "../elsewhere:."], ids=["no PYTHONPATH", "several"])
def test_the_guides_step_function_runs_from_the_current_folder(cli: CliHarness, path: str | None) -> None:
    commands = from_guide(cli.folder)
    if path is not None:
        cli.environment["PYTHONPATH"] = path

    done = typed(cli, commands["square.yaml"])

    assert done.returncode == 0, done.stderr
    assert "144" in done.stdout
    cli.assert_nothing_left()


@pytest.mark.spec("REG-06", "REG-07.a")
def test_a_tool_is_called_and_run_from_the_current_folder(cli: CliHarness) -> None:
    commands = from_guide(cli.folder)
    cli.plan(TOOL_PLAN, "tool.yaml")

    shown = typed(cli, commands["team_tools.py"])
    done = typed(cli, "SOONG_TOOLS=team_tools soong run tool.yaml")

    assert (shown.returncode, shown.stdout.strip()) == (0, "16"), shown.stderr
    assert done.returncode == 0, done.stderr
    assert "16" in done.stdout


def test_a_worker_of_its_own_imports_from_the_folder_it_is_started_in(cli: CliHarness) -> None:
    from_guide(cli.folder)
    elsewhere = cli.folder / "elsewhere"
    elsewhere.mkdir()
    up = cli.up()
    cli.environment["SOONG_FUNCTIONS"] = "steps"
    worker = cli.start("worker", "--name", "own", "--pools", "special")
    del cli.environment["SOONG_FUNCTIONS"]
    square = (cli.folder / "square.yaml").read_text().replace("kind: python", "kind: python, pool: special")
    until(lambda: "special" in cli.run("workers", "list").stdout, "the worker is there", cli.logs)

    report = cli.json("run", cli.plan(square))

    assert report["exit_code"] == 0
    for process in (worker, up):
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_a_module_may_import_its_neighbours_and_its_packages(cli: CliHarness) -> None:
    (cli.folder / "acme").mkdir()
    (cli.folder / "acme" / "__init__.py").write_text("")
    (cli.folder / "acme" / "steps.py").write_text(
        "from soong import step_function\nfrom helper import twice\n"
        "@step_function('acme.late')\ndef late(inputs, context):\n"
        "    import later\n    return twice(later.NUMBER)\n"
    )
    (cli.folder / "helper.py").write_text("def twice(x): return 2 * x\n")
    (cli.folder / "later.py").write_text("NUMBER = 21\n")
    cli.environment["SOONG_FUNCTIONS"] = "acme.steps"

    report = cli.json("run", cli.plan(ECHO.replace("builtin.echo", "acme.late")))

    assert report["steps"][0]["output"] == 42


@pytest.mark.spec("FS-09")
def test_nothing_that_lies_in_the_folder_is_imported_by_anybody_else(cli: CliHarness) -> None:
    # Names that libraries try, that Python loads at its start, and our own.
    planted = (
        "brotli", "brotlicffi", "zstandard", "simplejson", "chardet", "setproctitle", "uvloop", "msgpack", "ujson",
        "celeryconfig", "sitecustomize", "usercustomize", "orjson", "sqlcipher3", "shared", "worker", "orchestrator",
        "celery", "redis", "json", "greenlet",
    )  # fmt: skip
    mark = cli.folder / "was_imported"
    for name in planted:
        (cli.folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write('{name}\\n')\n")
    from_guide(cli.folder)

    done = typed(cli, "SOONG_FUNCTIONS=steps soong run square.yaml")

    assert done.returncode == 0, done.stderr
    assert not mark.exists(), mark.read_text()


@pytest.mark.parametrize(("name", "whose"), [("soong", "Soong"), ("queue", "Python")])
def test_a_module_whose_name_is_taken_is_named_with_the_file_to_rename(cli: CliHarness, name: str, whose: str) -> None:
    (cli.folder / f"{name}.py").write_text("")
    cli.environment["SOONG_FUNCTIONS"] = name

    done = cli.run("run", cli.plan(ECHO))

    assert done.returncode == 1
    assert f"SOONG_FUNCTIONS names {name!r}: {name!r} is the name of a module of {whose}; " in done.stderr
    assert f"rename {cli.folder}/{name}.py" in done.stderr


def test_the_project_of_a_plan_adds_no_folder(cli: CliHarness) -> None:
    project = cli.folder / "project"
    project.mkdir()
    from_guide(project)
    elsewhere = cli.folder / "elsewhere"
    elsewhere.mkdir()
    shutil.move(project / "square.yaml", elsewhere)
    cli.environment["SOONG_FUNCTIONS"] = "steps"

    arguments = ("run", str(elsewhere / "square.yaml"), "--project", str(project))
    done = called("soong.orchestrator.cli", arguments, env=cli.env, cwd=elsewhere, limit_s=90)

    assert done.returncode == 1
    assert f"SOONG_FUNCTIONS names 'steps', which is neither in {elsewhere} nor installed" in done.stderr


def test_a_running_service_with_other_modules_is_said_to_have_them(cli: CliHarness) -> None:
    commands = from_guide(cli.folder)
    up = cli.up()

    done = typed(cli, commands["square.yaml"])

    assert done.returncode == 1
    assert "the running service has other modules of step functions: none; " in done.stderr
    assert f"this command names steps (in {cli.folder}); to use these, end the service with" in done.stderr
    assert "step 'square' needs the function 'team.square', which no worker of the running service has" in done.stderr
    interrupted(up)
    assert typed(cli, commands["square.yaml"]).returncode == 0


PROGRAM = """
import asyncio
from soong import Soong

async def main():
    async with Soong.embedded(functions=("steps",)) as soong:
        outcome = await soong.run("square.yaml")
        print(outcome.status, outcome.outputs["square"])

asyncio.run(main())
"""


def test_a_program_finds_the_step_functions_beside_it_wherever_it_is_called(cli: CliHarness) -> None:
    from_guide(cli.folder)
    program = cli.folder / "program.py"
    program.write_text(PROGRAM.replace('"square.yaml"', repr(str(cli.folder / "square.yaml"))))
    elsewhere = cli.folder / "elsewhere"
    elsewhere.mkdir()

    done = cli_python(cli, str(program), cwd=elsewhere)

    assert done.stdout.strip() == "completed {'square': 144}", done.stderr


def cli_python(cli: CliHarness, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=cli.env, capture_output=True, text=True, timeout=90, check=False)


WRITES = """
title: Write
steps:
  - id: neighbour
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: helper.py, content: "EVIL = 1"}}]}
  - id: module
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: steps.py, content: "EVIL = 1"}}]}
  - id: other
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: other.py, content: "FINE = 1"}}]}
"""


@pytest.mark.spec("FS-09")
def test_no_run_writes_a_module_that_the_workers_have_loaded_from_the_folder(cli: CliHarness) -> None:
    from_guide(cli.folder)
    steps = cli.folder / "steps.py"
    steps.write_text(f"import helper\n{steps.read_text()}")
    (cli.folder / "helper.py").write_text("FINE = 1\n")
    cli.environment["SOONG_FUNCTIONS"] = "steps"

    report = cli.json("run", cli.plan(WRITES), "--allow", f"code.write_file:{cli.folder}")

    errors = {step["id"]: step["output"]["error"] for step in report["steps"]}
    assert errors == {"neighbour": "path_protected", "module": "path_protected", "other": ""}
    assert (cli.folder / "helper.py").read_text() == "FINE = 1\n"
    assert "EVIL" not in steps.read_text()
