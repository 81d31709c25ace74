"""``soong run`` from nothing and beside a service: what it prints, what it leaves, what ends it."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from soong.orchestrator.client.home_api import socket_of
from soong.shared.sandbox import subreaper
from tests.architecture.document_examples import files
from tests.security.reused_peer import request
from tests.spec_document import ROOT
from tests.system.cli_scene import CliHarness, interrupted, scene, until, writes

ECHO = """
title: Echo
inputs: {word: {type: string, default: hello}}
steps:
  - {id: first, kind: python, call: builtin.echo, inputs: {said: "${inputs.word}"}}
  - {id: second, kind: python, call: builtin.echo, depends_on: [first], inputs: {heard: "${first.output.said}"}}
"""
SLOW = """
title: Slow
steps:
  - {id: quick, kind: python, call: builtin.echo, inputs: {x: 1}}
  - {id: slow, kind: python, call: builtin.sleep, depends_on: [quick], inputs: {seconds: %s}}
  - {id: last, kind: python, call: builtin.echo, depends_on: [slow], inputs: {x: 2}}
"""
WRITE = writes("out/note.txt", "a note")


@pytest.mark.spec("OPS-01.a", "OPS-04.a")
def test_a_plan_runs_from_nothing_and_nothing_is_left(cli: CliHarness) -> None:
    cli.is_warm = False
    report = cli.json("run", cli.plan(ECHO), "--input", "word=hi")

    assert (report["status"], report["exit_code"]) == ("completed", 0)
    assert report["steps"][1]["output"] == {"heard": "hi"}
    cli.assert_nothing_left()
    assert not (cli.home / "service.json").exists()


def test_a_failed_step_is_exit_code_1_and_resume_tries_it_again(cli: CliHarness) -> None:
    plan = cli.plan(
        "title: F\nsteps:\n"
        "- {id: good, kind: python, call: builtin.echo, inputs: {x: 1}}\n"
        "- {id: bad, kind: python, call: builtin.fail, depends_on: [good], inputs: {times: 1, message: broken pipe}}\n"
    )
    done = cli.run("run", plan)
    task = cli.task_id()

    assert done.returncode == 1
    assert "broken pipe" in done.stdout
    assert f"soong resume {task}" in done.stdout

    again = cli.json("resume", task[-8:])

    assert again["exit_code"] == 0
    steps = {step["id"]: step for step in again["steps"]}
    assert steps["good"]["attempt"] == 1
    assert steps["bad"]["attempt"] == 2
    assert cli.run("resume", task).returncode in (0, 1)


def test_a_plan_that_is_wrong_starts_no_service_and_makes_no_home(cli: CliHarness) -> None:
    cli.is_warm = False
    done = cli.run("run", cli.plan("title: nothing"))

    assert (done.returncode, "steps" in done.stderr) == (2, True)
    assert not cli.home.exists()
    cli.assert_nothing_left()


@pytest.mark.spec("PER-02")
def test_what_nobody_allows_is_denied_and_a_rule_for_its_scope_allows_it(cli: CliHarness) -> None:
    (cli.folder / "out").mkdir()
    denied = cli.json("run", cli.plan(WRITE))

    assert (denied["status"], denied["exit_code"]) == ("completed", 3)
    assert denied["denials"][0]["error"] == "permission_no_callback"
    assert not (cli.folder / "out" / "note.txt").exists()

    allowed = cli.json("run", cli.plan(WRITE), "--allow", f"code.write_file:{cli.folder / 'out'}")

    assert allowed["exit_code"] == 0
    assert (cli.folder / "out" / "note.txt").read_text() == "a note"
    copy = Path(allowed["deliverables"][0]["stored_at"])
    until(copy.exists, "the run's own copy is written")


def test_ctrl_c_twice_ends_everything_at_once(cli: CliHarness) -> None:
    cli.is_warm = False
    command = cli.start("run", cli.plan(SLOW % 600))
    cli.until_running("slow")

    os.kill(command.pid, signal.SIGINT)
    os.kill(command.pid, signal.SIGTERM)
    command.communicate(timeout=60)

    assert command.returncode == 130
    cli.assert_nothing_left()


def test_ctrl_c_pauses_leaves_no_process_and_resume_goes_on_from_where_the_task_stood(cli: CliHarness) -> None:
    cli.is_warm = False
    command = cli.start("run", cli.plan(SLOW % 8))
    cli.until_running("slow")
    task = cli.task_id()

    os.kill(command.pid, signal.SIGINT)
    _, told = command.communicate(timeout=60)
    cli.assert_nothing_left()
    cli.is_warm = True
    paused = cli.json("tasks", "show", task)
    report = cli.json("resume", task)

    assert (command.returncode, f"soong resume {task}" in told, paused["status"]) == (130, True, "paused")
    assert [step["status"] for step in paused["steps"]] == ["completed", "ready", "pending"]
    steps = {step["id"]: step for step in report["steps"]}
    assert report["exit_code"] == 0
    assert (steps["quick"]["fence"], steps["slow"]["attempt"]) == (1, 1)
    assert steps["slow"]["fence"] > 1


def test_a_killed_client_loses_nothing(cli: CliHarness) -> None:
    cli.is_warm = False
    command = cli.start("run", cli.plan(SLOW % 6))
    cli.until_running("slow")

    command.kill()
    command.communicate(timeout=10)

    cli.assert_nothing_left()
    assert cli.json("tasks", "show", cli.task_id())["status"] == "completed"


def test_a_killed_service_is_replaced_and_the_task_completes(cli: CliHarness) -> None:
    command = cli.start("run", cli.plan(SLOW % 8), "--json")
    cli.until_running("slow")
    first = psutil.Process(cli.record()["pid"])
    children = first.children(recursive=True)

    first.kill()
    out, told = command.communicate(timeout=120)

    assert command.returncode == 0, told
    report = json.loads(out)
    assert "the service died; starting another" in told
    assert [step["fence"] for step in report["steps"] if step["id"] == "quick"] == [1]
    psutil.wait_procs(children, timeout=30)
    assert not [child for child in children if child.is_running()]
    cli.assert_nothing_left()


def test_a_killed_redis_is_started_again_and_the_task_completes(cli: CliHarness) -> None:
    command = cli.start("run", cli.plan(SLOW % 6), "--json")
    cli.until_running("slow")

    cli.redis().kill()
    out, told = command.communicate(timeout=120)

    assert json.loads(out)["exit_code"] == 0, told
    cli.assert_nothing_left()


def test_a_detached_task_goes_on_by_itself_and_its_service_ends(cli: CliHarness) -> None:
    done = cli.run("run", cli.plan(SLOW % 1), "--detach")

    assert done.returncode == 0
    assert done.stdout.strip() == cli.task_id()
    cli.assert_nothing_left()
    assert cli.json("tasks", "show", done.stdout.strip())["status"] == "completed"


def test_the_counting_plan_of_the_guide_runs(cli: CliHarness) -> None:
    page = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")
    for path, body in files(page):
        if path.startswith("~/project/counting."):
            (cli.folder / Path(path).name).write_text(body)
    (cli.folder / "one.py").write_text("def a():\n    pass\n")

    cli.serve_with("counting")
    report = cli.json("run", "counting.yaml", "--allow", f"code.write_file:{cli.folder}")

    assert report["exit_code"] == 0
    assert json.loads((cli.folder / "lines.json").read_text()) == [{"file": "one.py", "lines": 2, "has_more": False}]


ECHO_ONE = "title: Echo\nsteps:\n- {id: echo, kind: python, call: builtin.echo, inputs: {x: 1}}\n"
REPORT = (
    "import atexit, sys\n"
    "own = 'soong.orchestrator.http.own_api'\n"
    "atexit.register(lambda: print('ITSELF' if own in sys.modules else 'SERVICE', file=sys.stderr))\n"
    "from soong.orchestrator.cli.main import main\n"
    "sys.argv = ['soong', *sys.argv[1:]]\n"
    "main()\n"
)
ASK = (
    "import socket, sys\n"
    "connection = socket.socket(socket.AF_UNIX)\n"
    "connection.connect(sys.argv[1])\n"
    "connection.sendall(sys.stdin.buffer.read())\n"
    "print(connection.makefile().readline())\n"
)


@pytest.fixture(scope="module")
def service() -> Iterator[CliHarness]:
    with scene() as cli:
        up = cli.up()
        assert cli.run("run", cli.plan(ECHO_ONE)).returncode == 0
        yield cli
        interrupted(up)


def called(cli: CliHarness, *words: str, **variables: str) -> "tuple[subprocess.CompletedProcess[str], str]":
    """Run a command in a process of its own; return its end, and where its operations were done."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", REPORT, *words],
        cwd=cli.folder,
        env={**cli.env, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    *lines, who = done.stderr.splitlines()
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout, "\n".join(lines)), who


@pytest.mark.spec("OPS-01")
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_a_short_plan_is_told_alike_wherever_it_is_run(service: CliHarness, form: tuple[str, ...]) -> None:
    plan = service.plan(ECHO_ONE)

    done, who = called(service, "run", plan, *form)
    other, itself = called(service, "run", plan, *form, OTHER_API_KEY="a-secret-of-this-terminal")

    assert (who, itself) == ("SERVICE", "ITSELF")
    assert (done.returncode, other.returncode) == (0, 0)
    assert [line.split()[:1] for line in done.stdout.splitlines()] == [
        line.split()[:1] for line in other.stdout.splitlines()
    ]
    ends = [[line.split()[:3] for line in one.stderr.splitlines() if "completed" in line] for one in (done, other)]
    assert ends == [[["✓", "echo", "completed"]]] * 2


def as_a_run() -> None:
    resource.setrlimit(subreaper.RLIMIT_LOCKS, (4096, 4096))


@pytest.mark.spec("PER-13")
@pytest.mark.parametrize(
    ("begin", "is_taken"), [(None, True), (as_a_run, False)], ids=["a command", "a program of a run"]
)
def test_a_program_of_a_run_hands_nothing_over(
    service: CliHarness, begin: Callable[[], None] | None, is_taken: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", ASK, socket_of(service.home)],
        input=request(service.folder, service.env),
        capture_output=True,
        check=True,
        preexec_fn=begin,
    )

    assert done.stdout.split()[1] == (b"201" if is_taken else b"421")


def test_nonsense_on_the_socket_is_refused_and_serves_others_on(service: CliHarness) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(socket_of(service.home))
        connection.sendall(b'{"v": 1, "op": "run", "plan": 7}\n\n')
        assert connection.makefile().readline().split()[1] == "400"

    assert called(service, "run", service.plan(ECHO_ONE))[1] == "SERVICE"
