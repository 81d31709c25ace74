"""What the supervisor says of a child, and when a worker is taken for one that will not start."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from soong.orchestrator.embedded.child import EXIT_RETIRED, EXIT_USAGE, ServiceChild, exit_words
from soong.orchestrator.embedded.folders import STATUS_FD
from soong.worker import lifetime

REPORTING = """
import os, sys
os.write(int(os.environ["{fd}"]), sys.argv[1].encode() + b"\\n")
sys.stdin.read() if sys.argv[2] == "stay" else sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (7, "exit code 7"),
        (-signal.SIGKILL, "SIGKILL, killed, perhaps out of memory"),
        (-signal.SIGSEGV, "SIGSEGV, segmentation fault"),
        (-signal.SIGABRT, "SIGABRT, aborted"),
        (-63, "signal 63"),
    ],
)
def test_how_a_process_ended_is_said_in_words(code: int, words: str) -> None:
    assert exit_words(code) == words


async def ended(child: ServiceChild, folder: Path) -> ServiceChild:
    await child.spawn(folder)
    assert child.process is not None
    async with asyncio.timeout(30):
        code = await child.process.wait()
    child.note_end(code, is_steady=False)
    return child


def worker(line: str, then: str) -> ServiceChild:
    code = REPORTING.format(fd=STATUS_FD)
    return ServiceChild("w", [sys.executable, "-c", code, line, then], dict(os.environ), is_worker=True)


async def test_a_worker_whose_settings_are_wrong_is_hopeless_at_once_and_says_why(tmp_path: Path) -> None:
    child = await ended(worker("failed SOONG_SLOTS='x' is wrong", str(EXIT_USAGE)), tmp_path)

    assert (child.is_hopeless, child.problem) == (True, "SOONG_SLOTS='x' is wrong")
    assert child.health().problem == "SOONG_SLOTS='x' is wrong"


async def test_a_worker_that_cannot_start_is_tried_a_few_times_and_one_that_was_ready_always(tmp_path: Path) -> None:
    child = worker("failed the database is away", "1")

    seen = [(await ended(child, tmp_path)).is_hopeless for _ in range(3)]

    assert seen == [False, False, True]

    child = worker("ready", str(EXIT_USAGE))

    seen = [(await ended(child, tmp_path)).is_hopeless for _ in range(4)]

    assert (seen, child.failed_starts, child.deaths) == ([False] * 4, 0, 4)


@pytest.mark.parametrize(
    ("retires_after_s", "code", "lived_s", "has_retired"),
    [(60, EXIT_RETIRED, 61, True), (60, EXIT_RETIRED, 59, False), (60, 0, 61, False), (0, EXIT_RETIRED, 61, False)],
    ids=["idle for long enough", "a step has ended it so", "stopped by hand", "one that stays"],
)
def test_only_an_added_worker_that_had_the_time_for_it_has_retired(
    retires_after_s: float, code: int, lived_s: float, *, has_retired: bool
) -> None:
    child = ServiceChild("w", [], {}, is_worker=True, retires_after_s=retires_after_s)

    assert child.has_retired(code, lived_s) is has_retired


def test_both_sides_mean_the_same_exit_code() -> None:
    assert EXIT_RETIRED == lifetime.EXIT_RETIRED


async def test_a_worker_starts_until_it_says_that_it_is_ready(tmp_path: Path) -> None:
    silent = worker("something else", "stay")
    await silent.spawn(tmp_path)
    states = [silent.state]
    assert silent.process is not None
    await silent.process.wait()  # its standard input is empty
    states.append(silent.state)

    assert states == ["starting", "dead"]


async def test_a_worker_that_its_subreaper_ended_is_said_to_have_hung_until_it_is_started_again(tmp_path: Path) -> None:
    child = await ended(worker("hung 15", "1"), tmp_path)

    assert child.ending(-signal.SIGABRT) == "its event loop hung for 15 s, so its subreaper ended it"

    child.close()
    assert child.ending(-signal.SIGABRT) == "SIGABRT, aborted"
