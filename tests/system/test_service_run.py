"""``soong run`` beside a service that is up: the service does what a client would, and a client what it leaves."""

import json
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from soong.orchestrator.client.home_api import socket_of
from soong.shared.sandbox import subreaper
from tests.security.reused_peer import request
from tests.system.cli_scene import CliHarness, Terminal, scene, until

ECHO = "title: Echo\nsteps:\n- {id: echo, kind: python, call: builtin.echo, inputs: {x: 1}}\n"
NAP = "title: Nap\nsteps:\n- {id: nap, kind: python, call: builtin.sleep, inputs: {seconds: %s}}\n"
WRITE = """
title: Write
steps:
  - id: write
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: note.txt, content: a note}}]}
"""
REPORT = (
    "import atexit, sys\n"
    "own = 'soong.orchestrator.cli.plan_run'\n"
    "atexit.register(lambda: print('CLIENT' if own in sys.modules else 'SERVICE', file=sys.stderr))\n"
    "from soong.shared.core import timing\n"
    "from soong.orchestrator.cli.main import main\n"
    "timing.SETTLE_S = float(sys.argv.pop(1))\n"
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
        up = cli.start("up")
        until((cli.home / "service.json").exists, "the service is up", cli.logs)
        assert cli.run("run", cli.plan(ECHO)).returncode == 0
        yield cli
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=60)


def called(
    cli: CliHarness, *words: str, patience_s: float = 30.0, **variables: str
) -> "tuple[subprocess.CompletedProcess[str], str]":
    """Run a command in a process of its own; return its end, and which of the two has done it."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", REPORT, str(patience_s), *words],
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
def test_a_short_plan_is_run_by_the_service_and_told_as_by_a_client(service: CliHarness, form: tuple[str, ...]) -> None:
    plan = service.plan(ECHO)

    done, who = called(service, "run", plan, *form)
    other, client = called(service, "run", plan, *form, TRACEPARENT="00-" + "1" * 32 + "-" + "2" * 16 + "-01")

    assert (who, client) == ("SERVICE", "CLIENT")
    assert (done.returncode, other.returncode) == (0, 0)
    assert [line.split()[:1] for line in done.stdout.splitlines()] == [
        line.split()[:1] for line in other.stdout.splitlines()
    ]
    ends = [[line.split()[:3] for line in one.stderr.splitlines() if "completed" in line] for one in (done, other)]
    assert ends == [[["✓", "echo", "completed"]]] * 2


def test_a_failed_step_has_the_exit_code_that_a_client_gives(service: CliHarness) -> None:
    failing = "title: F\nsteps:\n- {id: bad, kind: python, call: builtin.fail, inputs: {times: 9, message: broken}}\n"

    done, who = called(service, "run", service.plan(failing, "failing.yaml"))

    assert (who, done.returncode) == ("SERVICE", 1)
    assert "broken" in done.stdout
    assert "soong resume task_" in done.stdout


def test_paths_and_rules_are_those_of_the_command(service: CliHarness) -> None:
    (service.folder / "below").mkdir()
    rule = f"code.write_file:{service.folder / 'below'}"

    done, _ = called(service, "run", service.plan(WRITE.replace("note.txt", "below/note.txt")), "--allow", rule)

    assert done.returncode == 0, done.stdout + done.stderr
    assert (service.folder / "below" / "note.txt").read_text() == "a note"


def test_what_is_wrong_is_found_and_told_by_a_client(service: CliHarness) -> None:
    done, who = called(service, "run", service.plan("title: Bad\nsteps: []\n", "bad.yaml"), "--json")

    assert (who, done.returncode) == ("CLIENT", 2)
    assert json.loads(done.stdout)["error"]["type"] == "InvalidPlanError"


def test_another_secret_in_the_environment_makes_a_client(service: CliHarness) -> None:
    _, who = called(service, "run", service.plan(ECHO), OTHER_API_KEY="a-secret-of-this-terminal")

    assert who == "CLIENT"


def test_a_longer_plan_is_followed_by_a_client_under_the_same_task(service: CliHarness) -> None:
    done, who = called(service, "run", service.plan(NAP % 2, "nap.yaml"), "--json", patience_s=0.3)

    report = json.loads(done.stdout)
    assert (who, report["exit_code"]) == ("CLIENT", 0)
    assert done.stderr.splitlines()[0] == f"task {report['id']}: Nap"
    assert service.task_id() == report["id"]


def test_an_interruption_pauses_what_the_service_has_begun(service: CliHarness) -> None:
    command = service.start("run", service.plan(NAP % 60, "long.yaml"))
    service.until_running("nap")

    command.send_signal(signal.SIGINT)
    _, told = command.communicate(timeout=60)

    assert command.returncode == 130
    assert f"resume {service.task_id()}" in told
    assert service.step_statuses() == {"nap": "ready"}


def test_a_detached_plan_is_left_to_the_service(service: CliHarness) -> None:
    done, who = called(service, "run", service.plan(ECHO), "--detach")

    assert (who, done.returncode) == ("SERVICE", 0)
    assert done.stdout.strip() == service.task_id()


def test_a_question_is_asked_in_the_terminal(service: CliHarness) -> None:
    terminal = Terminal(service, "run", service.plan(WRITE, "asks.yaml"))

    terminal.expect("[1] allow once")
    terminal.answer("3\n")

    assert terminal.wait() == 3


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

    assert called(service, "run", service.plan(ECHO))[1] == "SERVICE"
