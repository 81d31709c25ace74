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
from tests.system.cli_scene import CONSOLE_SCRIPT, CliHarness, scene, until

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
        yield one


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
    written_files = sorted(path.name for path in cli.folder.glob("*.txt"))
    assert len(written_files) == 1
    assert "allowed" in found["answered"][0]
    assert "denied" in found["answered"][1]
