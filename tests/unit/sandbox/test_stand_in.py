"""Between a serving program and its parent: the stand-in by start and by fork, and its signs of life."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from soong.shared.sandbox import subreaper
from tests.unit.sandbox.families import STAYING, is_alive, pids, until_ended
from tests.waiting import wait_until

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


def until_forked(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def words_of(process: "subprocess.Popen[str]", name: str) -> Sequence[str]:
    return Path(f"/proc/{process.pid}/{name}").read_text().rstrip("\0").split("\0")


def test_it_takes_signals_from_its_first_moment_on() -> None:
    told = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"

    with started(told) as process:
        assert process.wait(LIMIT_S) == -signal.SIGTERM


@pytest.mark.spec("OPS-12")
def test_it_has_neither_memory_nor_environment_of_the_process_that_it_was() -> None:
    with started(f"import time; {READY}; time.sleep(60)") as process:
        until_forked(process)
        wait_until(lambda: subreaper.ADOPT in words_of(process, "cmdline"), LIMIT_S)  # the program may be there first
        words = words_of(process, "cmdline")
        environment = words_of(process, "environ")
        process.send_signal(subreaper.END_NOW)

        assert process.wait(LIMIT_S) == -signal.SIGKILL
    assert words[1:5] == ["-I", "-S", subreaper.__file__, subreaper.ADOPT]
    assert words[-1] == "worker-9"
    assert environment == ["LD_LIBRARY_PATH=/x"]


def test_the_kernel_ends_the_program_of_a_killed_stand_in() -> None:
    with started("import os, sys, time; print(os.getpid(), flush=True); time.sleep(60)") as process:
        assert process.stdout is not None
        program = int(process.stdout.readline())
        process.kill()
        process.wait(LIMIT_S)

        assert process.stdout.read() == ""  # the last end of the pipe has gone with the program
        until_ended(program)


HANG_LIMIT_S = 30.0
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
                process.wait(HANG_LIMIT_S)


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
        code = process.wait(HANG_LIMIT_S)

        assert code == (-signal.SIGKILL if "SIG_IGN" in hanging else -signal.SIGABRT)
        assert report_of(process) == "hung 0.5\n"
        assert not subreaper._content(f"/proc/{pid}/stat")
        assert process.stderr is not None
        if code == -signal.SIGABRT:
            assert 'File "<string>", line' in process.stderr.read()


def test_a_program_that_gives_signs_of_life_goes_on() -> None:
    code = "for _ in range(20):\n    alive()\n    time.sleep(0.1)\n"
    with kept(code, 0.5) as (process, _):
        assert process.wait(HANG_LIMIT_S) == 0


@pytest.mark.parametrize("before", ["", "alive(); alive(0)", "alive(); os.close(pulse)"])
def test_of_a_program_that_announces_no_sign_of_life_none_is_expected(before: str) -> None:
    with kept(f"{before}\ntime.sleep(1)\n", 0.2) as (process, _):
        assert process.wait(HANG_LIMIT_S) == 0


def test_a_program_that_was_stopped_for_long_goes_on_where_it_was() -> None:
    code = "print('up', flush=True)\nfor _ in range(10):\n    alive()\n    time.sleep(0.1)\n"
    with kept(code, 0.5) as (process, pid):
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.5)  # three times as long as it may be silent
        os.kill(pid, signal.SIGCONT)

        assert process.wait(HANG_LIMIT_S) == 0


def test_a_subreaper_that_was_stopped_itself_does_not_count_that_time() -> None:
    code = "print('up', flush=True)\nalive()\ntime.sleep(0.3)\nalive(0)\n"
    with kept(code, 1.0) as (process, _):
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        process.send_signal(signal.SIGCONT)

        assert process.wait(HANG_LIMIT_S) == 0


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
            assert process.wait(HANG_LIMIT_S) == 0, process.stderr.read()
            worst_s = float(said)
    finally:
        _end(others)

    assert worst_s > 1.0, "it had its time: this shows nothing"
