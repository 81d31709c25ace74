"""The workers that a service forks from itself are workers like any other, to a user and to an attacker."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from soong.shared.sandbox.command import HAS_SUBREAPER
from tests.system.cli_scene import CliHarness, scene, until

pytestmark = pytest.mark.skipif(not HAS_SUBREAPER, reason="workers are forked on Linux alone")

ONE = "title: One\nsteps:\n  - {id: a, kind: python, call: builtin.echo, inputs: {x: 1}}\n"


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        one.environment.update(SOONG_WORKERS="2")
        yield one


def is_program(process: psutil.Process) -> bool:
    """Say whether a worker was started as a program: its own environment block names its pipes."""
    return "SOONG_PARENT_FD" in process.environ()


def started(cli: CliHarness) -> int:
    service = cli.start("up")
    until(lambda: (cli.home / "service.json").exists() and len(cli.workers()) == 2, "two workers are there", cli.logs)
    return service.pid


def opened(process: psutil.Process) -> Sequence[str]:
    found = []
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(str(entry.readlink()))
    return sorted(found)


@pytest.mark.spec("OPS-01", "OPS-06")
def test_forked_workers_run_steps_and_a_killed_one_is_followed_by_a_program(cli: CliHarness) -> None:
    service = started(cli)
    first = cli.workers()

    assert cli.run("run", cli.plan(ONE)).returncode == 0
    assert [is_program(process) for process in first] == [False, False]
    first[0].kill()
    until(lambda: set(cli.workers()) - set(first) and first[0] not in cli.workers(), "another has come", cli.logs)

    assert sorted(is_program(process) for process in cli.workers()) == [False, True]
    assert cli.run("run", cli.plan(ONE)).returncode == 0
    psutil.Process(service).send_signal(signal.SIGINT)
    cli.assert_nothing_left()


@pytest.mark.spec("OPS-12")
def test_a_forked_worker_has_no_descriptor_of_its_service(cli: CliHarness) -> None:
    service = psutil.Process(started(cli))

    held = {name for name in opened(service) if name.startswith("/") and not name.startswith("/dev/")}
    shared = {name for process in cli.workers() for name in held & set(opened(process))}

    assert f"{cli.home}/service.lock" in held
    # The database and its lock are what a worker opens itself.
    assert not {name for name in shared if not name.startswith(f"{cli.home}/soong.db")}
    service.send_signal(signal.SIGINT)
    cli.assert_nothing_left()


@pytest.mark.spec("OPS-01")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_forked_workers_end_with_their_service(cli: CliHarness, end: signal.Signals) -> None:
    psutil.Process(started(cli)).send_signal(end)

    cli.assert_nothing_left()


@pytest.mark.spec("OPS-01")
def test_a_service_that_cannot_start_leaves_no_worker_at_its_gate(cli: CliHarness) -> None:
    holder = started(cli)
    second = cli.start("up")

    assert second.wait(60) != 0
    until(lambda: len(cli.workers()) == 2, "only the first has workers", cli.logs)
    psutil.Process(holder).send_signal(signal.SIGINT)
    cli.assert_nothing_left()


@pytest.mark.spec("OPS-01")
def test_a_path_for_modules_makes_each_worker_a_program(cli: CliHarness) -> None:
    cli.environment.update(PYTHONPATH=str(cli.folder))
    service = started(cli)

    assert [is_program(process) for process in cli.workers()] == [True, True]
    psutil.Process(service).send_signal(signal.SIGINT)
    cli.assert_nothing_left()
