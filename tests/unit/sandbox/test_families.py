"""Nothing that a command started outlives it, however it ends and wherever its descendants went."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from soong.shared.sandbox import subreaper
from soong.shared.sandbox.command import ChildCommand, Finished
from soong.shared.sandbox.process import ProcessRunner
from tests.unit.sandbox.families import DOUBLE_FORK, STAYING, all_gone, command, is_alive, pids, python
from tests.waiting import others_run, until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the subreaper needs Linux")

OWNER = """
import asyncio, os, sys
from datetime import timedelta
from pathlib import Path
from soong.shared.sandbox.command import ChildCommand
from soong.shared.sandbox.process import ProcessRunner

folder = os.open(sys.argv[1], os.O_RDONLY)
argv = [sys.executable, "-I", "-S", "-c", sys.argv[2], sys.argv[1]]
asyncio.run(ProcessRunner().run(ChildCommand(argv, folder, Path(sys.argv[1]), {}, timedelta(seconds=300), 1000)))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


async def run(what: ChildCommand) -> Finished:
    async with asyncio.timeout(60):
        return await ProcessRunner().run(what)


@pytest.mark.spec("CMD-01")
async def test_everybody_ends_with_a_program_that_ends(folder: int, tmp_path: Path) -> None:
    ended = await run(python(folder, tmp_path, DOUBLE_FORK, str(tmp_path)))

    assert (ended.ended, ended.code, ended.stdout, ended.left_running) == ("exited", 0, b"ready\n", 0)
    assert not any(map(is_alive, pids(tmp_path).values()))
    await all_gone(pids(tmp_path))


@pytest.mark.spec("CMD-01.g", "EXE-07")
async def test_a_second_cancellation_does_not_cut_the_ending_short(folder: int, tmp_path: Path) -> None:
    task = asyncio.ensure_future(run(python(folder, tmp_path, STAYING, str(tmp_path))))
    await until(lambda: len(pids(tmp_path)) == 4)

    for _ in range(3):
        task.cancel()
        await others_run()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not any(map(is_alive, pids(tmp_path).values()))


async def test_everybody_ends_when_too_much_is_said(folder: int, tmp_path: Path) -> None:
    talking = DOUBLE_FORK + "while True: print('y' * 1000)\n"

    ended = await run(python(folder, tmp_path, talking, str(tmp_path), max_stdout_bytes=5_000))

    assert (ended.ended, len(ended.stdout)) == ("output_limit", 5_000)
    await all_gone(pids(tmp_path))


@pytest.mark.spec("CMD-01")
async def test_everybody_ends_when_the_process_that_ran_the_command_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), STAYING])  # noqa: ASYNC220  # returns at once
    try:
        await until(lambda: len(pids(tmp_path)) == 4)
    finally:
        owner.kill()
        owner.wait()

    await all_gone(pids(tmp_path))


async def test_a_subreaper_asked_to_end_by_a_signal_ends_everybody(folder: int, tmp_path: Path) -> None:
    task = asyncio.ensure_future(run(python(folder, tmp_path, STAYING, str(tmp_path))))
    await until(lambda: len(pids(tmp_path)) == 4)

    os.kill(psutil.Process(pids(tmp_path)["program"]).ppid(), signal.SIGTERM)

    ended = await task
    assert (ended.ended, ended.code) == ("exited", -signal.SIGKILL)
    await all_gone(pids(tmp_path))


async def test_a_program_that_kills_its_subreaper_dies_with_its_group(folder: int, tmp_path: Path) -> None:
    script = "sleep 300 & echo $!; kill -9 $PPID; sleep 300"

    ended = await run(command(folder, tmp_path, "/bin/sh", "-c", script))

    assert ended.code == -signal.SIGKILL
    await until(lambda: not is_alive(int(ended.stdout)))


async def test_a_program_that_stops_its_subreaper_gains_nothing(folder: int, tmp_path: Path) -> None:
    stopping = DOUBLE_FORK + "import signal; os.kill(os.getppid(), signal.SIGSTOP); time.sleep(300)\n"

    ended = await run(python(folder, tmp_path, stopping, str(tmp_path), timeout=timedelta(seconds=4)))

    assert ended.ended == "timeout"
    await all_gone(pids(tmp_path))


async def test_a_program_that_ignores_signals_ends(folder: int, tmp_path: Path) -> None:
    ignoring = "for s in signal.valid_signals() - {9, 19}: signal.signal(s, signal.SIG_IGN)"
    no_subscription = f"import signal, time\n{ignoring}\nprint('ready', flush=True)\ntime.sleep(300)"

    ended = await run(python(folder, tmp_path, no_subscription, timeout=timedelta(seconds=3)))

    assert (ended.ended, ended.stdout) == ("timeout", b"ready\n")


@pytest.mark.spec("CMD-05")
async def test_a_program_has_the_given_environment_three_descriptors_and_no_terminal(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_PARENT", "canary-41f")
    inherited = os.dup(folder)
    os.set_inheritable(inherited, True)
    code = """
import os
terminal = "none"
try: os.open("/dev/tty", os.O_RDWR); terminal = "one"
except OSError: pass
print([n for n in range(1024) if os.path.exists(f"/proc/self/fd/{n}")], terminal)
for pid in (os.getpid(), os.getppid()): print(open(f"/proc/{pid}/environ").read())
"""

    ended = await run(python(folder, tmp_path, code, env={"PATH": "/usr/bin:/bin"}))

    os.close(inherited)
    lines = ended.stdout.decode().replace("\0", "").splitlines()
    assert lines == ["[0, 1, 2] none", "PATH=/usr/bin:/bin", "PATH=/usr/bin:/bin"]


async def test_no_process_of_ours_is_left_as_a_zombie(folder: int, tmp_path: Path) -> None:
    for _ in range(3):
        await run(command(folder, tmp_path, "/bin/true"))

    assert [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE] == []


def test_children_are_found_on_a_kernel_that_does_not_list_them() -> None:
    child = subprocess.Popen(["/bin/sleep", "60"])
    try:
        assert child.pid in subreaper.children_by_scan(os.getpid())
        assert child.pid in subreaper.children(os.getpid())
    finally:
        child.kill()
        child.wait()

    assert subreaper.children(child.pid) == []


async def test_freezing_stops_every_descendant_of_a_process() -> None:
    parent = subprocess.Popen(["/bin/sh", "-c", "sleep 60 & sleep 60"])  # noqa: ASYNC220  # returns at once
    try:
        await until(lambda: len(subreaper.children(parent.pid)) == 2)

        frozen = subreaper.freeze(parent.pid)

        assert len(frozen) == 2
        await until(lambda: {psutil.Process(pid).status() for pid in frozen} == {psutil.STATUS_STOPPED})
    finally:
        for pid in (*subreaper.children(parent.pid), parent.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        parent.wait()
