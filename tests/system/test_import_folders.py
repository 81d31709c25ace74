"""Modules of one's own: from the folder that one works in, by the plan's names, and the code that its user sees."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.spec_document import ROOT
from tests.system.cli_scene import CONSOLE_SCRIPT, LIMIT_S, CliHarness, interrupted, until
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


def test_the_guides_step_function_runs_from_the_current_folder_beside_a_pythonpath(cli: CliHarness) -> None:
    commands = from_guide(cli.folder)
    cli.environment["PYTHONPATH"] = "../elsewhere:."
    cli.is_warm = False

    done = typed(cli, commands["square.yaml"])

    assert done.returncode == 0, done.stderr
    assert "144" in done.stdout
    cli.assert_nothing_left()


@pytest.mark.spec("REG-06", "REG-07.a")
def test_a_tool_is_called_and_run_from_the_current_folder(cli: CliHarness) -> None:
    commands = from_guide(cli.folder)
    cli.plan(TOOL_PLAN, "tool.yaml")

    shown = typed(cli, commands["team_tools.py"])
    cli.environment["SOONG_TOOLS"] = "team_tools"
    done = cli.run("run", "tool.yaml")

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


def test_a_worker_that_reloads_runs_the_code_that_its_file_has_now(cli: CliHarness) -> None:
    module = cli.folder / "now.py"
    module.write_text("from soong import step\n\n@step\ndef version() -> int:\n    return 1\n")
    plan = cli.plan("title: t\nsteps: [{id: a, kind: python, call: now.version, pool: special}]\n")
    up = cli.up()
    worker = cli.start("worker", "--pools", "special", "--functions", "now", "--reload")

    def runs(version: int) -> bool:
        done = cli.json("run", plan)  # while the worker starts again, nothing can run it, which is an error
        return [one["output"] for one in done.get("steps", ())] == [version]

    until(lambda: "special" in cli.run("workers", "list").stdout, "the worker is there", cli.logs)
    assert runs(1)
    module.write_text(module.read_text().replace("1", "22"))
    until(lambda: runs(22), "the worker has the new code", cli.logs)

    for process in (worker, up):
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert "a module has changed: the worker starts again" in worker.streams[1].read_text()
    cli.assert_nothing_left()


def test_a_module_may_import_its_neighbours_and_its_packages(cli: CliHarness) -> None:
    (cli.folder / "acme").mkdir()
    (cli.folder / "acme" / "__init__.py").write_text("")
    (cli.folder / "acme" / "steps.py").write_text(
        "from soong import step\nfrom helper import twice\n"
        "@step(name='acme.late')\ndef late(**inputs):\n"
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
    commands = from_guide(cli.folder)
    cli.is_warm = False

    done = typed(cli, commands["square.yaml"])

    assert (done.returncode, "144" in done.stdout) == (0, True), done.stderr
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
    shutil.move(project / "square.yaml", cli.folder)
    cli.environment["SOONG_FUNCTIONS"] = "steps"

    done = cli.run("run", "square.yaml", "--project", str(project))

    assert done.returncode == 1
    assert f"SOONG_FUNCTIONS names 'steps', which is neither in {cli.folder} nor installed" in done.stderr


def test_a_running_service_without_the_modules_of_a_command_starts_a_worker_with_them(cli: CliHarness) -> None:
    commands = from_guide(cli.folder)
    up = cli.up()

    done = typed(cli, commands["square.yaml"])

    assert done.returncode == 0, done.stderr
    assert len(cli.workers()) == 2
    interrupted(up)


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


RESEARCH = '''
from soong import ToolCallError, scripted_agent


@scripted_agent("research.note")
async def note(inputs, agent):
    """Write a note, and say what came of it."""
    try:
        await agent.call("code.write_file", path="note.txt", content=inputs["text"])
    except ToolCallError as error:
        return {"denied": error.type}
    return {"seen": (await agent.call("code.read_file", path="note.txt"))["text"]}
'''
PLAN = """
title: Note
modules: [research]
steps:
  - id: note
    script: research.note
    allowed_tools: [code.write_file, code.read_file]
    inputs: {text: hello}
"""


@pytest.fixture
def noted(cli: CliHarness) -> CliHarness:
    cli.home.mkdir(parents=True)
    (cli.folder / "research.py").write_text(RESEARCH)
    return cli


def asked(noted: CliHarness) -> Any:
    """Return the one question once it is there."""
    until(
        lambda: (noted.home / "service.json").exists() and noted.json("approvals", "list"), "the question", noted.logs
    )
    (question,) = noted.json("approvals", "list")
    return question


@pytest.mark.spec("DIS-13", "DIS-13.a", "PER-01")
@pytest.mark.parametrize(
    ("choice", "output", "code"), [("allow", {"seen": "hello"}, 0), ("deny", {"denied": "permission_denied"}, 3)]
)
def test_a_scripted_agent_of_the_plans_module_asks_for_consent_and_goes_on_with_the_answer(
    noted: CliHarness, choice: str, output: dict[str, str], code: int
) -> None:
    noted.serve_with("research")
    running = noted.start("run", noted.plan(PLAN), "--project", str(noted.folder), "--approvals", "inbox", "--json")
    question = asked(noted)

    assert noted.run("approvals", choice, question["id"]).returncode == 0
    report = json.loads(running.communicate(timeout=LIMIT_S)[0])

    assert question["tool"] == "code.write_file"
    assert (report["exit_code"], report["steps"][0]["output"]) == (code, output)
    assert (noted.folder / "note.txt").exists() is (choice == "allow")


@pytest.mark.spec("DIS-13")
def test_resume_starts_a_service_that_has_the_modules_of_the_plan(noted: CliHarness) -> None:
    noted.serve_with("research")
    running = noted.start("run", noted.plan(PLAN), "--project", str(noted.folder), "--approvals", "inbox")
    asked(noted)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=LIMIT_S)
    assert noted.run("down").returncode == 0
    (task,) = noted.json("tasks", "list")
    assert task["status"] == "paused"

    noted.is_warm = False
    # The plan file is not needed any more, and the command is called elsewhere than where the plan was.
    (noted.folder / "plan.yaml").unlink()
    resumed = noted.start("resume", task["id"], "--json")
    question = asked(noted)
    assert noted.run("approvals", "allow", question["id"]).returncode == 0
    report = json.loads(resumed.communicate(timeout=LIMIT_S)[0])

    assert (report["exit_code"], report["steps"][0]["output"]) == (0, {"seen": "hello"})


@pytest.mark.spec("DIS-13", "OPS-12")
def test_a_module_where_runs_write_is_refused_before_anything_runs(noted: CliHarness) -> None:
    config = noted.home / "config.toml"
    config.write_text(f'[[permission.rules]]\neffect = "allow"\ntools = "code.write_file"\nscope = "{noted.folder}"\n')
    config.chmod(0o600)

    noted.is_warm = False
    done = noted.run("run", noted.plan(PLAN))

    assert done.returncode == 2
    assert "plan.yaml:3 modules[0]: " in done.stderr
    assert f"{noted.folder}/research.py lies in {noted.folder}, where runs write" in done.stderr
    assert not (noted.home / "service.json").exists()


@pytest.mark.spec("DIS-13")
def test_a_plan_on_standard_input_loads_no_module(noted: CliHarness) -> None:
    command = [*CONSOLE_SCRIPT, "run", "-"]
    done = subprocess.run(
        command,
        input=PLAN,
        env=noted.env,
        cwd=noted.folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert done.returncode == 2
    assert "SOONG_FUNCTIONS does not name the module 'research'" in done.stderr
    assert not (noted.home / "service.json").exists()


TEAM_PLAN = """
title: Who
modules: [work]
steps:
  - {id: who, kind: python, call: team.who}
"""


def project(cli: CliHarness, name: str) -> Path:
    """Return a plan file in a folder of its own, next to a module of the same name as the others."""
    folder = cli.folder / name
    folder.mkdir()
    (folder / "plan.yaml").write_text(TEAM_PLAN)
    change(folder / "plan.yaml", name)
    return folder / "plan.yaml"


def change(plan: Path, answer: str) -> None:
    """Have the function of a plan's module return another answer."""
    module = plan.with_name("work.py")
    module.write_text(
        f'from soong import step\n\n\n@step(name="team.who")\ndef who(**inputs):\n    return {answer!r}\n'
    )
    later_ns = time.time_ns() + 1_000_000_000 * len(answer)  # also where the clock of files is coarse
    os.utime(module, ns=(later_ns, later_ns))


def answer_of(cli: CliHarness, plan: Path) -> str:
    report = cli.json("run", str(plan))
    return str(report["steps"][0]["output"])


@pytest.mark.spec("DIS-13.a")
def test_a_service_that_lingers_makes_way_for_a_command_with_other_modules(cli: CliHarness) -> None:
    """The module next to a plan comes before one of its name where the command is typed."""
    (cli.folder / "work.py").write_text("raise RuntimeError('where the command is typed')\n")
    first, second = project(cli, "first"), project(cli, "second")
    cli.is_warm = False

    answers = [answer_of(cli, plan) for plan in (first, second)]
    change(second, "second, changed")
    answers.append(answer_of(cli, second))

    assert answers == ["first", "second", "second, changed"]
    assert [task["status"] for task in cli.json("tasks", "list")] == ["completed"] * 3


@pytest.mark.spec("DIS-13.a")
def test_a_service_that_stays_runs_no_other_module_of_the_same_name(cli: CliHarness) -> None:
    first, second = project(cli, "first"), project(cli, "second")
    cli.environment |= {"SOONG_FUNCTIONS": "work", "SOONG_IMPORT_PATH": str(first.parent)}
    cli.up()
    del cli.environment["SOONG_FUNCTIONS"], cli.environment["SOONG_IMPORT_PATH"]

    assert answer_of(cli, first) == "first"
    refused = cli.run("run", str(second), "--json")
    change(first, "first, changed")
    older = cli.run("run", str(first), "--json")

    message = json.loads(refused.stdout)["error"]["message"]
    assert (refused.returncode, str(first.with_name("work.py")) in message, "soong down" in message) == (1, True, True)
    assert "loaded work before the last change" in older.stderr
    assert "this worker has version" in json.loads(older.stdout)["steps"][0]["error"]["message"]
    assert [task["status"] for task in cli.json("tasks", "list")] == ["failed", "completed"]


def test_a_service_that_stops_says_so(cli: CliHarness) -> None:
    assert cli.run("run", cli.plan(ECHO)).returncode == 0

    states: list[str] = []
    findings: list[dict[str, str]] = []
    while not states or states[-1] != "none":
        states.append(cli.json("status")["service"]["state"])
        findings += [one for one in cli.json("doctor")["checks"] if one["check"] == "service"]

    assert set(states) <= {"ready", "stopping", "none"}
    assert {one["level"] for one in findings} == {"ok"}, findings
