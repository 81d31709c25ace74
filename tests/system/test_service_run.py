"""``soong run`` beside a service that is up: by its operations, or by the same ones in the command's own process."""

import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from soong.orchestrator.client.home_api import socket_of
from soong.shared.sandbox import subreaper
from tests.security.reused_peer import request
from tests.system.cli_scene import CliHarness, interrupted, scene

ECHO = "title: Echo\nsteps:\n- {id: echo, kind: python, call: builtin.echo, inputs: {x: 1}}\n"
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
        up = cli.up_warm()
        assert cli.run("run", cli.plan(ECHO)).returncode == 0
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
    plan = service.plan(ECHO)

    done, who = called(service, "run", plan, *form)
    other, itself = called(service, "run", plan, *form, OTHER_API_KEY="a-secret-of-this-terminal")

    assert (who, itself) == ("SERVICE", "ITSELF")
    assert (done.returncode, other.returncode) == (0, 0)
    assert [line.split()[:1] for line in done.stdout.splitlines()] == [
        line.split()[:1] for line in other.stdout.splitlines()
    ]
    ends = [[line.split()[:3] for line in one.stderr.splitlines() if "completed" in line] for one in (done, other)]
    assert ends == [[["✓", "echo", "completed"]]] * 2


def test_paths_and_rules_are_those_of_the_command(service: CliHarness) -> None:
    (service.folder / "below").mkdir()
    rule = f"code.write_file:{service.folder / 'below'}"

    done, _ = called(service, "run", service.plan(WRITE.replace("note.txt", "below/note.txt")), "--allow", rule)

    assert done.returncode == 0, done.stdout + done.stderr
    assert (service.folder / "below" / "note.txt").read_text() == "a note"


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
