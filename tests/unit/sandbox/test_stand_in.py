"""A subreaper that stands in for a program that serves: it forwards signals, ends as it does, leaves nobody."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from soong.shared.sandbox import subreaper
from tests.unit.sandbox.families import STAYING, is_alive, pids, until_ended

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the subreaper needs Linux")

LIMIT_S = 20.0
HEARING = """
import signal, sys, time
signal.signal(signal.{}, lambda *_: sys.exit(5))
print('up', flush=True)
time.sleep(60)
"""


def stand_in(*program: str, control: int = -1, grace_s: float = 0.2) -> "subprocess.Popen[str]":
    argv = [
        sys.executable,
        "-I",
        "-S",
        subreaper.__file__,
        subreaper.STAND_IN,
        str(control),
        "-1",
        str(grace_s),
        *program,
    ]
    fds = (control,) if control >= 0 else ()
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=fds)


def python(code: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code, *arguments)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        with contextlib.suppress(OSError):  # the test has closed it
            os.close(descriptor)


def until_ready(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{word}\n"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT, signal.SIGTERM])
def test_it_ends_by_the_signal_that_ended_the_program(number: signal.Signals) -> None:
    with stand_in(*python(f"import os; os.kill(os.getpid(), {int(number)})")) as process:
        assert process.wait(LIMIT_S) == -number


def test_a_program_that_is_not_there_is_named() -> None:
    with stand_in("/nonexistent/program") as process:
        assert process.wait(LIMIT_S) == 127
        assert process.stderr is not None
        assert "/nonexistent/program cannot be started: No such file" in process.stderr.read()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1"])
def test_a_signal_reaches_the_program(name: str) -> None:
    with stand_in(*python(HEARING.format(name))) as process:
        until_ready(process, "up")
        process.send_signal(signal.Signals[name])

        assert process.wait(LIMIT_S) == 5


@pytest.mark.spec("DAG-06")
def test_everybody_ends_when_it_is_asked_to_end_now(tmp_path: Path) -> None:
    with stand_in(*python(STAYING, str(tmp_path))) as process:
        until_ready(process, "ready")
        process.send_signal(subreaper.END_NOW)

        assert process.wait(LIMIT_S) == -signal.SIGKILL
        assert not any(map(is_alive, pids(tmp_path).values()))


def test_the_program_has_a_grace_when_its_starter_has_ended(pipe: tuple[int, int]) -> None:
    watching = f"import os; os.read({pipe[0]}, 1); raise SystemExit(3)"
    with stand_in(*python(watching), control=pipe[0], grace_s=LIMIT_S) as process:
        os.close(pipe[1])

        assert process.wait(LIMIT_S) == 3


def test_a_killed_subreaper_takes_its_program_with_it(tmp_path: Path) -> None:
    with stand_in(*python(HEARING.format("SIGTERM").replace("'up'", "__import__('os').getpid()"))) as process:
        assert process.stdout is not None
        program = int(process.stdout.readline())
        process.kill()

        until_ended(program)
