"""The web console in a real browser: submitted, watched, answered, and while things happen to its service."""

import json
import os
import re
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from llmock.scenarios import Reply, StreamFault
from llmock.testing import LLMockServer

from soong.shared.core.jsontext import JsonObject
from tests.extra import console_folder
from tests.system.browser_scene import drive
from tests.system.cli_scene import CONSOLE_SCRIPT, CliHarness, scene, until
from tests.system.http_scene import Service, http_service
from tests.wires.wire import Wires

pytestmark = [pytest.mark.timeout(400), pytest.mark.spec("OPS-04.d")]

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
    print("writes", inputs["name"])
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


@pytest.mark.spec("PER-13.d", "LOG-01.e/console")
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
    assert found["question_first"]
    assert found["rows"] == 3
    assert found["tools"] > 5
    assert [line.partition(" stdout ")[2] for line in found["lines"]][:1] == ["writes two.txt"]
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


STALL_S = 20.0
ANSWER = "The folder holds nothing at all, as far as anybody can see from here."
WAIT_MS = 100
"""What a person waits for at most: from what they do to the frame that shows it (issue 17)."""
HEAP_BYTES = 300 * 1024**2
STEPS = 5_000
ECHO = {"kind": "python", "call": "builtin.echo"}
LIVE_WORK = """
import time
from pathlib import Path
from soong import scripted_agent

@scripted_agent("work.hold")
async def hold(inputs, agent):
    while not Path(inputs["until"]).exists():
        time.sleep(0.1)
    return {}

@scripted_agent("work.read")
async def read(inputs, agent):
    while not Path(inputs["until"]).exists():
        await agent.call("code.list_dir", path=".")
        time.sleep(1)
    return {}

@scripted_agent("work.write")
async def write(inputs, agent):
    await agent.call("code.write_file", path=inputs["name"], content="hello")
    return {}
"""


def pictures(otherwise: Path) -> str:
    return os.environ.get("CONSOLE_PICTURES") or str(otherwise)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "work.py").write_text(LIVE_WORK)
    with LLMockServer() as server:
        wires = Wires(server)
        wires.will(StreamFault("stall", after_chunks=8, stall_seconds=STALL_S), Reply(text=ANSWER))
        environment = {**wires.environment, "SOONG_FUNCTIONS": "work", "SOONG_IMPORT_PATH": str(tmp_path)}
        short = {"SOONG_BEAT_S": "0.5", "SOONG_LEASE_S": "3", "SOONG_SWEEP_S": "0.5"}
        # A run reads on while the API starts again. The page shows the newest 1,000 events: those of 140 turns.
        long = {"SOONG_MAX_TURNS": "130"}
        with http_service(SOONG_WORKERS="2", **environment, **short, **long) as one:
            yield one


ONE_FILE = {"script": "work.write", "allowed_tools": ["code.write_file"]}
PLANS: dict[str, list[dict[str, Any]]] = {
    "streams": [{"title": "Describe it", "instructions": "Describe it.", "model": "openai-chat:gpt-5-mini"}],
    "holds": [{"title": "Hold on", "script": "work.hold"}],
    "reads": [{"title": "Read on", "script": "work.read"}],
    "asks": [{**ONE_FILE, "inputs": {"name": f"{number}/note.txt"}} for number in range(3)],
}


@dataclass(frozen=True)
class Behind:
    """What a driver asks to happen to the service; ``folder`` has the files for which steps wait."""

    service: Service
    folder: Path
    project: Path
    tokens: dict[str, str]

    def submit(self, name: str) -> str:
        waits = {"until": str(self.folder / name)}
        steps = [{"id": f"{name}{number}", "inputs": waits, **step} for number, step in enumerate(PLANS[name])]
        plan = {"title": name, "steps": steps}
        return self.service.submit(self.tokens["ada"], plan, project=self.project).rpartition("/")[2]

    def cancel(self, task: str) -> None:
        status, said = self.service.call(self.tokens["ada"], f"/v1/tasks/{task}/cancel", {})
        assert status == 200, said

    def release(self, name: str) -> None:
        (self.folder / name).touch()

    def kill(self, pid: int) -> None:
        psutil.Process(pid).kill()

    def restart(self) -> None:
        """Kill the API, which the service starts again."""
        api = self.service.api()
        api.kill()
        api.wait(10)
        until(self.service.is_answering, "the API answers again", self.service.cli.logs)

    def events(self, run: str) -> list[int]:
        """Return the numbers of the events that a run has, as stored."""
        found: list[int] = []
        after: str | None = "0"
        while after is not None:
            page = self.service.call(self.tokens["ada"], f"/v1/runs/{run}/events?limit=200&after={after}")[1]
            found += [int(event["id"]) for event in page["items"]]
            after = page["next"]
        return found


def test_what_happens_to_a_service_is_seen_and_nothing_is_lost(service: Service, tmp_path: Path) -> None:
    folder = console_folder()
    tokens = {name: service.token(name, "run", "approve") for name in ("ada", "bob")}
    behind = Behind(service, tmp_path, service.project(), tokens)

    found = drive(
        "live.mjs",
        f"http://127.0.0.1:{service.port}",
        pictures(tmp_path),
        folder=folder,
        actions={
            "token": tokens.__getitem__,
            **{name: getattr(behind, name) for name in ("submit", "cancel", "release", "kill", "restart", "events")},
        },
    )

    assert found["noted"] == []
    assert "from here" not in found["streamed"]
    assert [text.count(ANSWER) for text in found["written"]] == [1]
    assert "Hold on" in found["moved"]
    assert "died (SIGKILL" in found["lost"]
    assert "holds0" in found["unended"]
    assert "cancelled, still running" in found["unended"]
    assert found["isSamePage"]
    assert found["told"] == found["stored"] == list(range(1, len(found["stored"]) + 1))
    assert "ada" in found["told_bob"]
    assert "not this one" in found["told_bob"]
    assert found["waiting"] == 2, "a key that came too late answered the next question"
    winner = "ada" if "answered by another" in found["raced"][1] or "No answer" in found["raced"][1] else "bob"
    assert [winner in said for said in found["raced"]] == [True, True], found["raced"]


def large_plan() -> JsonObject:
    """Return a plan of 5,000 steps: areas that fold, layers that do not, and items of maps."""
    steps: list[dict[str, Any]] = []
    for area in range(40):
        checks = [f"check{area}-{number}" for number in range(60)]
        steps.append({"id": f"area{area}", "title": f"Area {area}"})
        steps += [{"id": check, "title": f"Look at {check}", "depends_on": [f"area{area}"]} for check in checks]
        steps.append({"id": f"join{area}", "title": f"Join {area}", "depends_on": checks})
    for layer in range(10):
        for number in range(150):
            above = [f"l{layer - 1}-{number}", f"l{layer - 1}-{(number + 1) % 150}"] if layer else []
            steps.append({"id": f"l{layer}-{number}", "title": f"Layer {layer}, number {number}", "depends_on": above})
    each: dict[str, Any] = {"title": "Item ${n}", "inputs": {"value": "${n}"}, **ECHO}
    maps: list[dict[str, Any]] = [
        {"id": name, "kind": "map", "over": [*range(509)], "as": "n", "step": each} for name in ("each", "other")
    ]
    assert len(steps) + sum(1 + len(one["over"]) for one in maps) == STEPS
    return {"title": "Five thousand steps", "steps": [*({**step, **ECHO} for step in steps), *maps]}


def test_a_task_of_five_thousand_steps_stays_usable_while_it_runs(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The bound is the issue's, in the browser's own measure, times what the machine's other work makes of it."""
    folder = console_folder()
    with http_service(SOONG_WORKERS="1") as service:
        token = service.token("ada", "run", "approve")
        plan = {"plan": large_plan(), "project": str(service.project())}
        status, made = service.call(token, "/v1/tasks", plan)
        assert status == 201, made
        found = drive(
            "large.mjs",
            f"http://127.0.0.1:{service.port}",
            made["task"]["id"],
            pictures(tmp_path),
            folder=folder,
            actions={"token": lambda: token},
        )

    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    waited = {name: statistics.median(times) for name, times in found["waited"].items()}
    record_property("console", {**found, "waited": waited, "busy": busy})
    assert found["noted"] == []
    assert found["shown"].startswith(f"{STEPS} ") or "running" in found["shown"]
    assert {name: ms for name, ms in waited.items() if ms > WAIT_MS * busy} == {}
    assert found["heap"] < HEAP_BYTES
