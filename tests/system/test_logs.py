"""What functions, tools and scripted agents write, and their folders, as a user of a real service meets them."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from soong import Soong
from tests.spec_document import ROOT
from tests.system.cli_scene import CliHarness, until
from tests.system.http_scene import Service, http_service

KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\nAASCBKcwggSjAgEAAoIBAQC7\n-----END PRIVATE KEY-----"
KINDS = ("plain", "async", "process")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    modules = {"SOONG_FUNCTIONS": "tests.system.logging_steps", "SOONG_TOOLS": "tests.system.logging_tools"}
    with http_service(**modules, PYTHONPATH=str(ROOT), SOONG_WORKERS="1", SOONG_SLOTS="64") as one:
        yield one


@pytest.fixture(scope="module")
def runs(service: Service) -> Mapping[str, Mapping[str, Any]]:
    """The steps of one task, by their ids, as its result has them."""
    steps: list[dict[str, object]] = []
    for kind in KINDS:
        steps += [
            {"id": kind, "call": f"logs.{kind}"},
            {"id": f"read_{kind}", "call": f"logs.read.{kind}", "inputs": {"file": f"${{{kind}.output.file}}"}},
        ]
        steps[-1]["depends_on"] = [kind]
    steps += [
        {"id": "raise", "call": "logs.raise"},
        {"id": "secret", "call": "logs.secret", "inputs": {"key": KEY}},
        {"id": "many", "call": "logs.many", "inputs": {"lines": 10_000}},
        {"id": "quiet", "call": "builtin.echo"},
    ]
    plan = {"title": "t", "steps": [{"kind": "python", **step} for step in steps]}
    script = {"id": "script", "script": "logs.script", "allowed_tools": ["logs.shout"]}
    done = run(service, {**plan, "steps": [*plan["steps"], script]})
    return {step["id"]: step for step in done["steps"]}


def run(service: Service, plan: object) -> Any:
    return service.cli.json("run", service.cli.plan(json.dumps(plan)))


def lines_of(service: Service, step: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return stream, level and text of each line of a step's run."""
    return [(line["stream"], line["level"], line["text"]) for line in service.cli.json("runs", "logs", step["run"])]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.spec(f"LOG-01.a/{kind}")) for kind in KINDS])
def test_what_a_function_prints_and_logs_is_kept_in_order(service: Service, runs: Mapping[str, Any], kind: str) -> None:
    lines = lines_of(service, runs[kind])

    assert [line for line in lines if line[2] != "from a program"] == [
        ("stdout", "", "printed"),
        ("stderr", "", "to stderr"),
        ("log", "warning", "team: counted 3"),
        ("log", "debug", "step: attempt 1"),
        ("stdout", "", "in a thread"),
    ]
    assert (("stderr", "", "from a program") in lines) == (kind == "process")


@pytest.mark.spec("LOG-01.a", "LOG-01.b")
def test_a_traceback_begins_with_the_users_own_line(service: Service, runs: Mapping[str, Any]) -> None:
    lines = lines_of(service, runs["raise"])

    texts = [text for stream, _, text in lines if stream == "traceback"]
    assert lines[0] == ("stdout", "", "before it")
    assert texts[0] == "Traceback (most recent call last):"
    assert "logging_steps.py" in texts[1]
    assert texts[-1] == "ValueError: no such word"


@pytest.mark.spec("LOG-01.b/script", "LOG-01.b/tool")
def test_a_scripted_agent_and_its_tools_write_into_their_run(service: Service, runs: Mapping[str, Any]) -> None:
    texts = [text for _, _, text in lines_of(service, runs["script"])]

    assert texts[0] == "in the script"
    assert texts[1] == "shouted hey"
    assert "OSError: hoarse" in texts
    assert texts[-1].startswith("soong.shared.core.errors.ToolCallError: ")


@pytest.mark.spec("LOG-01.c")
def test_secrets_are_taken_out_also_from_between_two_writes(service: Service, runs: Mapping[str, Any]) -> None:
    texts = [text for _, _, text in lines_of(service, runs["secret"])]

    assert texts[0] == "key s3cret-of-the-team"  # which nobody has named as one
    assert texts[-1] == "after it"
    assert not [text for text in texts if "MII" in text or "AAS" in text]


@pytest.mark.spec("LOG-01.d")
def test_of_very_many_lines_the_first_and_the_last_are_kept_and_all_as_an_artifact(
    service: Service, runs: Mapping[str, Any]
) -> None:
    found = service.cli.json("runs", "logs", runs["many"]["run"])

    numbers = [line["number"] for line in found if line["stream"] == "stdout"]
    (gap,) = [after - before for before, after in pairwise(numbers) if after > before + 1]
    (left_out,) = [line["text"] for line in found if line["stream"] == "left_out"]
    assert (numbers[0], numbers[-1], left_out) == (1, 10_000, f"{gap - 1:,} lines are left out")
    assert 1_000 < len(numbers) < 4_000
    artifact = found[-1]["text"].rpartition(" ")[2]
    whole = service.call(service.token("ada", "read"), f"/v1/artifacts/{artifact}?limit=1000000")[1]["text"]
    assert whole.splitlines()[0] == "stdout: line 0"
    assert len(whole.splitlines()) == 10_000


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.spec(f"FLW-03.b/{kind}", f"FLW-03.c/{kind}")) for kind in KINDS]
)
@pytest.mark.spec("FLW-03.a")
def test_paths_and_temporary_files_of_a_function_begin_in_its_folder(
    service: Service, runs: Mapping[str, Any], kind: str
) -> None:
    output = runs[kind]["output"]

    assert (output["is_here"], output["is_temporary_here"]) == (True, True)
    assert output["project"] == str(service.cli.folder)
    assert (service.cli.home / "runs" / runs[kind]["run"] / "workspace" / "out.txt").read_text() == "from the folder"
    assert not (service.cli.home / "out.txt").exists()
    assert not (service.cli.home / "runs" / runs["quiet"]["run"]).exists()


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.spec(f"FLW-03.d/{kind}")) for kind in KINDS])
def test_a_file_that_was_handed_on_is_opened_by_a_dependent(
    service: Service, runs: Mapping[str, Any], kind: str
) -> None:
    file = runs[kind]["output"]["file"]
    (service.cli.home / "runs" / runs[kind]["run"] / "workspace" / "out.txt").write_text("changed since")

    assert (file["name"], file["size"], file["artifact"]) == ("out.txt", len("from the folder"), file["sha256"])
    assert runs[f"read_{kind}"]["output"] == "from the folder"
    until(
        (service.cli.home / "runs" / runs[kind]["run"] / "deliverables" / "out.txt").exists,
        "it is a deliverable",
        service.cli.logs,
    )


def begun(service: Service, until_file: Path) -> str:
    """Start a task that ticks until a file is there, and return its step's run once it has written."""
    plan = {"title": "t", "steps": [slow_step(until_file)]}
    service.cli.run("run", service.cli.plan(json.dumps(plan)), "--detach")
    task = service.cli.json("tasks", "show", service.cli.task_id())
    run_id = str(task["steps"][0]["run"])
    until(lambda: bool(service.cli.json("runs", "logs", run_id)), "it has printed", service.cli.logs)
    return run_id


def slow_step(until_file: Path) -> Mapping[str, object]:
    return {"id": "slow", "kind": "python", "call": "logs.slow", "inputs": {"until": str(until_file)}}


@pytest.mark.spec("LOG-01.e/cli")
def test_lines_are_followed_in_a_terminal_until_the_run_has_ended(service: Service, tmp_path: Path) -> None:
    run_id = begun(service, tmp_path / "end")
    following = service.cli.start("runs", "logs", run_id, "-f", "--tail", "1")
    until(lambda: following.streams[0].read_text().count("tick") > 2, "more lines have come", service.cli.logs)

    (tmp_path / "end").touch()
    out, _ = following.communicate(timeout=30)

    ticks = [int(line.split(" tick ")[1].split()[0]) for line in out.splitlines()]
    assert ticks == list(range(ticks[0], ticks[-1] + 1))


@pytest.mark.spec("LOG-01.e/http")
def test_lines_are_streamed_over_http(service: Service, tmp_path: Path) -> None:
    run_id = begun(service, tmp_path / "end")
    authorization = {"Authorization": f"Bearer {service.token('ada', 'read')}"}
    request = urllib.request.Request(f"{service.address}/v1/runs/{run_id}/logs/stream", headers=authorization)

    with urllib.request.urlopen(request, timeout=60) as response:
        lines = [json.loads(line[6:]) for line in _data_lines(response, 3)]
        (tmp_path / "end").touch()

    assert [line["number"] for line in lines] == [1, 2, 3]
    assert lines[0]["text"].startswith("tick 0")


def _data_lines(response: Any, count: int) -> Iterator[str]:
    for raw in response:
        if raw.startswith(b"data: "):
            yield raw.decode()
            count -= 1
            if not count:
                return


@pytest.mark.spec("LOG-01.e/sdk")
async def test_lines_are_followed_by_a_program(service: Service, tmp_path: Path) -> None:
    run_id = await asyncio.to_thread(begun, service, tmp_path / "end")
    async with Soong.embedded(agent_home=service.cli.home) as soong:
        numbers = []
        async for line in soong.logs(run_id, follow=True):
            numbers.append(line.number)
            if line.number == 5:
                (tmp_path / "end").touch()

        assert numbers == list(range(1, len(numbers) + 1))
        assert [one.number async for one in soong.logs(run_id, after=4)] == numbers[4:]


@pytest.mark.spec("FLW-03.e")
def test_where_threads_share_a_folder_a_warning_says_so_and_no_file_gets_into_the_home(cli: CliHarness) -> None:
    code = (
        "import runpy, sys; from tests.system.without_unshare import refuse; refuse();"
        "runpy.run_module('soong.orchestrator.cli', run_name='__main__', alter_sys=True)"
    )
    env = {**cli.env, "PYTHONPATH": str(ROOT), "SOONG_FUNCTIONS": "tests.system.logging_steps"}

    def soong(*words: str) -> str:
        command = [sys.executable, "-P", "-c", code, *words]
        return subprocess.run(command, cwd=cli.folder, env=env, capture_output=True, text=True, check=False).stdout

    plan = cli.plan("title: t\nsteps: [{id: where, kind: python, call: logs.where}]")

    done = json.loads(soong("run", plan, "--json"))
    findings = soong("doctor")

    output = done["steps"][0]["output"]
    assert Path(output["cwd"]).name.startswith("soong-worker-")
    assert output["temporary"] == str(cli.home / "runs" / done["steps"][0]["run"] / "workspace")
    assert "functions_share_folder" in cli.logs()
    assert "refuses unshare" in findings


@pytest.mark.spec("LOG-01.g")
def test_a_killed_worker_loses_no_line_that_is_older_than_a_second(service: Service, tmp_path: Path) -> None:
    run_id = begun(service, tmp_path / "end")
    time.sleep(1.5)  # it writes meanwhile
    for worker in service.cli.workers():
        os.kill(worker.pid, signal.SIGKILL)
    killed_s = time.time()

    kept = service.cli.json("runs", "logs", run_id)
    (tmp_path / "end").touch()

    assert kept[-1]["text"].startswith("tick")
    assert float(kept[-1]["text"].split()[2]) > killed_s - 1.1
    assert [line["number"] for line in kept] == list(range(1, len(kept) + 1))


@pytest.mark.spec("LOG-01.e/cli")
def test_the_last_lines_that_a_step_has_written_itself_are_shown_below_it(service: Service) -> None:
    calls = {"bad": "logs.raise", "good": "logs.plain", "many": "logs.many"}
    steps = [{"id": key, "kind": "python", "call": call, "inputs": {"lines": 50}} for key, call in calls.items()]
    done = service.cli.run("run", service.cli.plan(json.dumps({"title": "t", "steps": steps})))

    def shown(key: str) -> list[str]:
        return [line.split(f" {key}: ")[1] for line in done.stderr.splitlines() if f" {key}: " in line]

    assert shown("bad") == ["before it"]
    assert shown("good") == ["printed", "to stderr", "team: counted 3", "step: attempt 1", "in a thread"]
    assert shown("many")[0].endswith(f"runs logs {re.findall('run_[0-9a-z]+', shown('many')[0])[0]}")
    assert shown("many")[1:] == [f"line {number}" for number in range(45, 50)]
    assert "runs logs run_" in done.stdout
