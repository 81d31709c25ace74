"""Child processes: their bounds, their output, and which programs they are."""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import pytest

from soong.shared.sandbox.command import ChildCommand, Finished
from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError
from soong.shared.sandbox.process import TAIL_BYTES, OutputTranscript, ProcessRunner, run
from soong.shared.sandbox.programs import FALLBACK_PATH, child_environment, find_program
from soong.shared.sandbox.redact import redactor
from soong.shared.sandbox.threads import check, run_blocking
from tests.unit.sandbox.families import is_alive
from tests.waiting import until

Runner: TypeAlias = Callable[[ChildCommand], Awaitable[Finished]]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


async def python(folder: int, tmp_path: Path, code: str, **overrides: Any) -> Finished:
    options: dict[str, Any] = {"timeout": timedelta(seconds=20), "max_stdout_bytes": 1_000_000, "env": {}, **overrides}
    return await run(ChildCommand([sys.executable, "-I", "-c", code], folder, tmp_path, **options))


async def gone(pid: int) -> None:
    await until(lambda: not is_alive(pid))


async def test_a_child_runs_in_the_directory_with_no_input_and_only_the_given_environment(
    folder: int, tmp_path: Path
) -> None:
    os.environ["SECRET_OF_PARENT"] = "x"
    code = "import os,sys; print(os.getcwd(), sys.stdin.read() == '', sorted(os.environ), os.listdir('/proc/self/fd'))"

    ended = await python(folder, tmp_path, code, env={"LC_ALL": "C.UTF-8"})

    words = ended.stdout.decode()
    assert ended.code == 0
    assert words.startswith(f"{tmp_path} True ['LC_ALL'] ")
    assert len(words.partition("] ")[2].split(",")) == 4  # three of its own and the listing itself


async def test_a_child_over_its_time_is_killed_with_its_whole_group(folder: int, tmp_path: Path) -> None:
    code = (
        "import subprocess,sys,time; p = subprocess.Popen(['sleep', '100']); print(p.pid, flush=True); time.sleep(100)"
    )

    ended = await python(folder, tmp_path, code, timeout=timedelta(seconds=1.5))

    assert ended.ended == "timeout"
    await gone(int(ended.stdout))


async def test_a_child_ends_with_a_cancelled_caller(folder: int, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    code = f"import os,time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    task = asyncio.ensure_future(python(folder, tmp_path, code))
    await until(lambda: marker.exists() and bool(marker.read_text()))

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await gone(int(marker.read_text()))


async def test_errors_are_kept_and_bounded(folder: int, tmp_path: Path) -> None:
    ended = await python(folder, tmp_path, "import sys; sys.stderr.write('e' * 100000); sys.exit(3)")

    assert (ended.code, len(ended.stderr)) == (3, 16 * 1024)


async def test_a_grandchild_that_keeps_the_pipe_does_not_hold_the_caller(folder: int, tmp_path: Path) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '30'], start_new_session=True).pid)"
    begun = time.monotonic()

    ended = await python(folder, tmp_path, code)

    os.kill(int(ended.stdout), 9)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("runner", [run, ProcessRunner().run], ids=["alone", "kept"])
async def test_bytes_are_read_from_standard_input_to_their_end(folder: int, tmp_path: Path, runner: Runner) -> None:
    given = bytes(range(256)) * 8192

    ended = await runner(
        ChildCommand(["/bin/cat"], folder, tmp_path, {}, timedelta(seconds=20), 4_000_000, stdin=given)
    )

    assert (ended.code, ended.stdout == given) == (0, True)


async def test_what_is_said_beyond_the_bound_is_counted_and_thrown_away_where_asked_for(
    folder: int, tmp_path: Path
) -> None:
    code = "import sys; sys.stdout.write('o' * 300_000); sys.stderr.write('e' * 200_000); sys.exit(2)"

    ended = await python(folder, tmp_path, code, max_stdout_bytes=1000, max_stderr_bytes=10, overflow="discard")

    assert (ended.ended, ended.code) == ("exited", 2)
    assert (len(ended.stdout), ended.stdout_bytes) == (1000, 300_000)
    assert (len(ended.stderr), ended.stderr_bytes) == (10, 200_000)


async def test_endless_output_costs_neither_memory_nor_the_loop(folder: int, tmp_path: Path) -> None:
    before, ticks, late = psutil.Process().memory_info().rss, 0, 0.0
    what = ChildCommand(["/usr/bin/yes"], folder, tmp_path, {}, timedelta(seconds=4), 1_000_000, overflow="discard")
    task = asyncio.ensure_future(ProcessRunner().run(what))
    while not task.done():
        begun = time.monotonic()
        await asyncio.sleep(0.02)
        ticks, late = ticks + 1, max(late, time.monotonic() - begun)

    ended = await task

    assert (ended.ended, len(ended.stdout)) == ("timeout", 1_000_000)
    assert ended.stdout_bytes > 16_000_000
    assert psutil.Process().memory_info().rss - before < 32 * 1024 * 1024
    assert ticks > 40
    assert late < 1.0


async def test_cancelled_thread_work_is_asked_to_stop_and_waited_for() -> None:
    begun, seen = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def work(stop: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert stop.wait(5)
        seen.append("stopped")
        check(stop)

    task = asyncio.ensure_future(run_blocking(work))
    await asyncio.wait_for(begun.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert seen == ["stopped"]


@pytest.mark.parametrize("keep", [True, False])
async def test_an_effect_that_happened_is_reported_where_asked_for(keep: bool) -> None:
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(stop: Any) -> str:
        loop.call_soon_threadsafe(begun.set)
        stop.wait(5)
        return "done"

    task = asyncio.ensure_future(run_blocking(work, keep_result=keep))
    await asyncio.wait_for(begun.wait(), 5)
    task.cancel()

    if keep:
        assert await task == "done"
    else:
        with pytest.raises(asyncio.CancelledError):
            await task


def make_transcript(max_bytes: int = 1_000_000, *secrets: str) -> OutputTranscript:
    return OutputTranscript(max_bytes, redactor(secrets))


def test_what_fits_is_kept_whole_with_bytes_that_are_no_text() -> None:
    transcript = make_transcript()
    transcript.hear("stdout", b"caf\xc3")
    transcript.hear("stdout", b"\xa9 \xff\n")
    transcript.hear("stderr", b"log")

    assert transcript.raw("stdout") == "café \udcff\n"
    assert transcript.shown("stdout") == "café \ufffd\n"
    assert (transcript.said, transcript.is_cut()) == ({"stdout": 8, "stderr": 3}, False)


def test_what_exceeds_the_limit_by_no_more_than_the_ring_is_still_whole() -> None:
    transcript = make_transcript(10)
    transcript.hear("stdout", b"x" * 10 + b"y" * TAIL_BYTES)

    assert transcript.raw("stdout") == "x" * 10 + "y" * TAIL_BYTES


def test_of_a_flood_the_beginning_and_the_end_are_kept() -> None:
    transcript = make_transcript(100_000)
    for number in range(200_000):
        transcript.hear("stdout", f"line {number}\n".encode())

    text = transcript.shown("stdout")
    assert transcript.is_cut()
    assert text.startswith("line 0\n")
    assert text.endswith("line 199999\n")
    assert f"some {transcript.left_out('stdout')} bytes left out" in text
    assert len(text) < 400_000


def test_only_whole_lines_are_reported_as_progress() -> None:
    transcript = make_transcript()
    for piece in (b"one\ntwo\n", b"half a secr"):
        transcript.hear("stdout", piece)

    assert transcript.last_lines("stdout", 5, 100) == ["one", "two"]
    transcript.hear("stdout", b"et\r")
    assert transcript.last_lines("stdout", 2, 100) == ["two", "half a secret"]
    assert transcript.last_lines("stderr", 5, 100) == []


def test_a_line_of_progress_is_inert_and_bounded() -> None:
    transcript = make_transcript()
    transcript.hear("stdout", b"\x1b[31m" + b"r" * 500 + b"\x1b]52;c;x\x07\n")

    assert transcript.last_lines("stdout", 5, 100) == ["r" * 100]


def make_program(path: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.spec("CMD-05")
@pytest.mark.parametrize(
    ("path", "expected"),
    [(".:/usr/bin::bin:/bin", "/usr/bin:/bin"), (".", FALLBACK_PATH), ("/usr/bin/:/usr/bin", "/usr/bin")],
    ids=["relative", "nothing-left", "twice"],
)
def test_no_relative_entry_is_in_the_path_of_a_child(monkeypatch: pytest.MonkeyPatch, path: str, expected: str) -> None:
    monkeypatch.setenv("PATH", path)

    assert child_environment()["PATH"] == expected


def test_a_path_is_found_from_the_cwd_and_its_folder_shown_without_links(tmp_path: Path) -> None:
    program = make_program(tmp_path / "real/run.sh")
    (tmp_path / "link").symlink_to(program.parent)
    (program.parent / "alias").symlink_to("run.sh")

    assert find_program("./link/run.sh", {}, cwd=tmp_path) == program
    assert find_program("link/alias", {}, cwd=tmp_path) == program.parent / "alias"
    assert find_program(str(program), {}, cwd=Path("/")) == program


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("", PathRefusal.INVALID),
        ("a\0b", PathRefusal.INVALID),
        ("\ud800", PathRefusal.INVALID),
        ("x" * 5000, PathRefusal.INVALID),
        (".", PathRefusal.NOT_REGULAR),
        ("./", PathRefusal.NOT_REGULAR),
        ("./folder", PathRefusal.NOT_REGULAR),
        ("./text", PathRefusal.INVALID),
        ("./absent", PathRefusal.NOT_FOUND),
        ("text/below", PathRefusal.NOT_FOUND),
        ("absent", PathRefusal.NOT_FOUND),
        ("folder", PathRefusal.NOT_FOUND),
    ],
    ids=lambda value: ascii(value)[:12],
)
def test_what_is_no_program_is_refused_by_name(tmp_path: Path, name: str, refusal: PathRefusal) -> None:
    (tmp_path / "folder").mkdir()
    make_program(tmp_path / "text", mode=0o644)

    with pytest.raises(PathRefusedError) as refused:
        find_program(name, {"PATH": str(tmp_path)}, cwd=tmp_path)

    assert refused.value.refusal is refusal
