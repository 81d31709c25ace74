import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from soong.shared.sandbox import subreaper

pytestmark = [pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the subreaper needs Linux")]

LIMIT_S = 30.0
BEGIN = """
import faulthandler, os, sys, time
faulthandler.enable()
pulse = int(os.environ["SOONG_PULSE_FD"])
def alive(seconds=%s):
    os.write(pulse, f"{seconds}\\n".encode())
"""
HOLDS_THE_LOCK = "import ctypes; ctypes.PyDLL(None).sleep(10**6)"


@contextmanager
def kept(code: str, allowed_s: float) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """Run a program under a subreaper; yield both, the subreaper by its process and the program by its id."""
    reading, writing = os.pipe()
    program = [sys.executable, "-I", "-S", "-c", BEGIN % allowed_s + code]
    argv = [sys.executable, "-I", "-S", subreaper.__file__, subreaper.STAND_IN, "-1", str(writing), "0.2", *program]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=(writing,)
    ) as process:
        os.close(writing)
        with os.fdopen(reading) as report:
            word, pid = report.readline().split()
            assert word == "started"
            process.report = report  # type: ignore[attr-defined]  # read by the tests
            try:
                yield process, int(pid)
            finally:
                process.send_signal(subreaper.END_NOW)
                process.wait(LIMIT_S)


def report_of(process: "subprocess.Popen[str]") -> str:
    return str(process.report.read())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "hanging",
    [
        pytest.param(HOLDS_THE_LOCK, id="a-c-call-that-holds-the-lock"),
        pytest.param("while True: pass", id="a-loop-that-never-ends"),
        pytest.param("import time; time.sleep(60)", id="waiting"),
        pytest.param("import signal\nsignal.signal(signal.SIGABRT, signal.SIG_IGN)\nsignal.pause()", id="deaf"),
    ],
)
def test_a_program_that_gives_no_sign_of_life_is_ended_and_says_where_it_hung(hanging: str) -> None:
    with kept(f"alive()\nprint('up', flush=True)\n{hanging}\n", 0.5) as (process, pid):
        code = process.wait(LIMIT_S)

        assert code == (-signal.SIGKILL if "SIG_IGN" in hanging else -signal.SIGABRT)
        assert report_of(process) == "hung 0.5\n"
        assert not subreaper._content(f"/proc/{pid}/stat")
        assert process.stderr is not None
        if code == -signal.SIGABRT:
            assert 'File "<string>", line' in process.stderr.read()


def test_a_program_that_gives_signs_of_life_goes_on() -> None:
    code = "for _ in range(20):\n    alive()\n    time.sleep(0.1)\n"
    with kept(code, 0.5) as (process, _):
        assert process.wait(LIMIT_S) == 0


@pytest.mark.parametrize("before", ["", "alive(); alive(0)", "alive(); os.close(pulse)"])
def test_of_a_program_that_announces_no_sign_of_life_none_is_expected(before: str) -> None:
    with kept(f"{before}\ntime.sleep(1)\n", 0.2) as (process, _):
        assert process.wait(LIMIT_S) == 0


def test_a_program_that_was_stopped_for_long_goes_on_where_it_was() -> None:
    code = "print('up', flush=True)\nfor _ in range(10):\n    alive()\n    time.sleep(0.1)\n"
    with kept(code, 0.5) as (process, pid):
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.5)  # three times as long as it may be silent
        os.kill(pid, signal.SIGCONT)

        assert process.wait(LIMIT_S) == 0


def test_a_subreaper_that_was_stopped_itself_does_not_count_that_time() -> None:
    code = "print('up', flush=True)\nalive()\ntime.sleep(0.3)\nalive(0)\n"
    with kept(code, 1.0) as (process, _):
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        process.send_signal(signal.SIGCONT)

        assert process.wait(LIMIT_S) == 0


STARVED = """
worst, last = 0.0, time.monotonic()
os.sched_setaffinity(0, {cpu})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
if os.path.exists("/proc/self/autogroup"):  # the kernel shares the CPU among sessions first
    open("/proc/self/autogroup", "w").write("19")
until = last + 30
while last < until and worst < 1.5:
    alive()
    began = time.process_time()
    while time.process_time() - began < 0.008:
        pass
    now = time.monotonic()
    worst, last = max(worst, now - last), now
print(worst, flush=True)
os._exit(0)
"""


def _end(programs: "list[subprocess.Popen[bytes]]") -> None:
    for program in programs:
        program.kill()
        program.wait()


def test_a_program_that_gets_no_cpu_time_goes_on() -> None:
    cpu = min(os.sched_getaffinity(0))
    greedy = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    command = [sys.executable, "-I", "-S", "-c", greedy]
    others = [subprocess.Popen(command, start_new_session=True) for _ in range(6)]
    try:
        with kept(STARVED.replace("{cpu}", f"{{{cpu}}}"), 1.0) as (process, _):
            assert process.stdout is not None
            assert process.stderr is not None
            said = process.stdout.readline()
            _end(others)  # its own end needs time as well
            assert process.wait(LIMIT_S) == 0, process.stderr.read()
            worst_s = float(said)
    finally:
        _end(others)

    assert worst_s > 1.0, "it had its time: this shows nothing"
