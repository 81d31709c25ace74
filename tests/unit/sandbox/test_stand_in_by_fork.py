"""A process that forks its program and becomes its stand-in: an interpreter that knows nothing of what it was."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from soong.shared.sandbox import subreaper
from tests.unit.sandbox.families import STAYING, is_alive, pids, until_ended
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the subreaper needs Linux")

LIMIT_S = 20.0
FORKING = f"""
import os, runpy, sys
secret = "s3cr3t" * 1000
subreaper = type("M", (), runpy.run_path({subreaper.__file__!r}))
subreaper.keep.__globals__["__file__"] = {subreaper.__file__!r}
subreaper.keep(lambda pulse: os.execv(sys.argv[1], sys.argv[1:]), -1, -1, 0.2, "worker-9", {{"LD_LIBRARY_PATH": "/x"}})
"""
READY = "print('ready', flush=True)"


def started(code: str, *arguments: str) -> "subprocess.Popen[str]":
    program = (sys.executable, "-I", "-S", "-c", code, *arguments)
    argv = (sys.executable, "-I", "-S", "-c", FORKING, *program)
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={"SOONG_SIGNING_KEY": "secret"})


def until_ready(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def words_of(process: "subprocess.Popen[str]", name: str) -> Sequence[str]:
    return Path(f"/proc/{process.pid}/{name}").read_text().rstrip("\0").split("\0")


@pytest.mark.parametrize("code", [0, 7])
def test_it_ends_as_its_program_ends(code: int) -> None:
    with started(f"raise SystemExit({code})") as process:
        assert process.wait(LIMIT_S) == code


def test_it_takes_signals_from_its_first_moment_on() -> None:
    told = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"

    with started(told) as process:
        assert process.wait(LIMIT_S) == -signal.SIGTERM


@pytest.mark.spec("OPS-12")
def test_it_has_neither_memory_nor_environment_of_the_process_that_it_was() -> None:
    with started(f"import time; {READY}; time.sleep(60)") as process:
        until_ready(process)
        wait_until(lambda: subreaper.ADOPT in words_of(process, "cmdline"), LIMIT_S)  # the program may be there first
        words = words_of(process, "cmdline")
        environment = words_of(process, "environ")
        process.send_signal(subreaper.END_NOW)

        assert process.wait(LIMIT_S) == -signal.SIGKILL
    assert words[1:5] == ["-I", "-S", subreaper.__file__, subreaper.ADOPT]
    assert words[-1] == "worker-9"
    assert environment == ["LD_LIBRARY_PATH=/x"]


@pytest.mark.spec("DAG-06")
def test_everybody_ends_with_a_killed_stand_in_or_with_the_program(tmp_path: Path) -> None:
    with started(STAYING, str(tmp_path)) as process:
        until_ready(process)
        os.kill(pids(tmp_path)["program"], signal.SIGKILL)

        assert process.wait(LIMIT_S) == -signal.SIGKILL
    assert not any(map(is_alive, pids(tmp_path).values()))


def test_the_kernel_ends_the_program_of_a_killed_stand_in() -> None:
    with started("import os, sys, time; print(os.getpid(), flush=True); time.sleep(60)") as process:
        assert process.stdout is not None
        program = int(process.stdout.readline())
        process.kill()
        process.wait(LIMIT_S)

        assert process.stdout.read() == ""  # the last end of the pipe has gone with the program
        until_ended(program)
