"""The web console in a real browser, before a real service: submitted, watched, answered, with hostile names."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extra import console_folder
from tests.system.browser_scene import drive
from tests.system.cli_scene import CONSOLE_SCRIPT, CliHarness, scene, until
from tests.system.http_scene import http_service

pytestmark = [pytest.mark.timeout(300), pytest.mark.spec("OPS-04.d")]

DRIVER = Path(__file__).parents[1] / "console" / "drive.mjs"
PLAN = r"""
title: "<img src=x onerror=alert(1)>\u202Egnp.exe"
steps:
  - {id: look, title: "<script>alert(2)</script>", script: builtin.echo}
  - {id: one, depends_on: [look], script: work.write, allowed_tools: [code.write_file], inputs: {name: one.txt}}
  - {id: two, depends_on: [look], script: work.write, allowed_tools: [code.write_file], inputs: {name: two.txt}}
"""
WORK = """
from soong import scripted_agent

@scripted_agent("work.write")
async def write(inputs, agent):
    await agent.call("code.write_file", path=inputs["name"], content="<b>hello</b>\\n")
    return {"wrote": inputs["name"]}
"""


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        (one.folder / "work.py").write_text(WORK)
        one.environment["SOONG_FUNCTIONS"] = "work"
        one.environment |= {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
        yield one


@pytest.mark.spec("PER-13.d")
def test_a_person_submits_watches_and_answers_in_a_browser(cli: CliHarness, tmp_path: Path) -> None:
    folder = console_folder()
    pictures = Path(os.environ.get("CONSOLE_PICTURES") or tmp_path)
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)
    shutil.copy(DRIVER, folder / DRIVER.name)
    output = tmp_path / "console.log"
    with output.open("w") as written:
        console = subprocess.Popen(
            [*CONSOLE_SCRIPT, "console", "--no-open"],
            env=cli.env,
            cwd=cli.folder,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
        )
    try:
        until(lambda: "#code=" in output.read_text(), "a link", output.read_text)
        link = re.findall(r"http://\S+#code=\S+", output.read_text())[0]
        driven = subprocess.run(
            ["node", DRIVER.name, link, str(plan), str(cli.folder), str(pictures)],
            cwd=folder,
            env={**os.environ, "CHROMIUM": os.environ.get("CHROMIUM", "/usr/bin/chromium")},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
    finally:
        console.terminate()
        console.wait(timeout=30)

    assert driven.returncode == 0, driven.stderr[-3000:] + output.read_text()[-2000:]
    found = json.loads(driven.stdout)
    assert "soong_tok" not in found["address"]
    assert (found["dialogs"], found["violations"], found["errors"]) == (0, [], [])
    assert found["axe"] == []
    assert found["stored"] == [0, 0, 0]
    assert not found["scrolls"]
    assert found["rows"] == 3
    assert found["tools"] > 5
    assert found["limits"] == ["model turns\t2\t9"]
    assert found["commands"] == []
    assert found["several"] == ["⊘ cancelled", "⊘ cancelled"]
    assert found["stopped"] == ["run again what did not complete"]
    written_files = sorted(path.name for path in cli.folder.glob("*.txt"))
    assert len(written_files) == 1
    assert "allowed" in found["answered"][0]
    assert "denied" in found["answered"][1]


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31mred\x1b[0m\u202egnp.exe\u200b"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" onload="alert(3)"><script>alert(4)</script></svg>'
HOSTILE_WORK = f"""
from soong import ToolCallError, scripted_agent

HOSTILE, SVG = {HOSTILE!r}, {SVG!r}

@scripted_agent("work.say")
async def say(inputs, agent):
    for path in (HOSTILE, "n" * 1_000_000):
        try:
            await agent.call("code.read_file", path=path)
        except ToolCallError:
            pass
    await agent.call("code.read_file", path="picture.svg")
    return {{HOSTILE: HOSTILE, "svg": SVG, "long": HOSTILE + "x" * 200_000}}

@scripted_agent("work.ask")
async def ask(inputs, agent):
    await agent.call("code.write_file", path="<b>bold<b> picture.svg", content=SVG + HOSTILE + "\\n" * 50)
    return {{}}
"""


def test_hostile_text_is_inert_in_every_screen_and_a_token_is_nowhere(tmp_path: Path) -> None:
    folder = console_folder()
    (tmp_path / "work.py").write_text(HOSTILE_WORK)
    with http_service(SOONG_WORKERS="1", SOONG_FUNCTIONS="work", SOONG_IMPORT_PATH=str(tmp_path)) as service:
        token, other = service.token("ada", "run", "approve"), service.token("bob", "read")
        project = service.project()
        (project / "picture.svg").write_text(SVG)
        title = HOSTILE.replace("\x1b", "")
        say = {"id": "look", "title": title, "script": "work.say", "allowed_tools": ["code.*"]}
        ask = {**say, "id": "ask", "script": "work.ask", "depends_on": ["look"]}
        body = {"plan": {"title": title, "steps": [say, ask]}, "project": str(project)}
        status, made = service.call(token, "/v1/tasks", body)
        assert status == 201, made
        _, waiting = service.call(token, "/v1/approvals?wait=55")
        (question,) = waiting["items"]
        task = made["task"]["id"]
        run = next(one["run"] for one in service.call(token, f"/v1/tasks/{task}")[1]["steps"] if one["id"] == "look")

        def revoke() -> None:
            done = service.cli.run("tokens", "revoke", token.removeprefix("soong_")[:30])
            assert done.returncode == 0, done.stderr

        found = drive(
            "hostile.mjs",
            *(f"http://127.0.0.1:{service.port}", task, run, made["session"]["id"], question["id"]),
            folder=folder,
            actions={"token": lambda: token, "revoke": revoke},
        )
        kept = [
            path for path in service.cli.home.rglob("*") if path.is_file() and token[-43:].encode() in path.read_bytes()
        ]
        refused = service.call(
            other, f"/v1/approvals/{question['id']}/answer", {"choice": "deny", "input_digest": "0" * 64}
        )

    assert (found["noted"], found["grown"], found["raw"]) == ([], [], [])
    hostile = {name for name, text in found["texts"].items() if text["isHostile"]}
    assert {"tasks", "inbox", "task graph", "task steps", "task result", "run transcript"} <= hostile
    assert found["stored"] == [0, 0, 0, 0, 0]
    assert found["broken"] == []
    assert found["elsewhere"] == "nothing"
    assert "revoked" in found["revoked"]
    assert "script" not in found["revoked"]
    assert kept == []
    assert refused[0] == 403
