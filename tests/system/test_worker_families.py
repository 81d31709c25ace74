"""The processes of a worker's steps: they end with it, and a step that hangs is ended."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.system.cli_scene import CliHarness, WarmCommand, interrupted, scene, until
from tests.system.functions import CHILDREN
from tests.unit.sandbox.families import is_alive

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the subreaper needs Linux"),
    pytest.mark.timeout(180),
]

PROMISED_S = 5.0

BUSY_S = float(os.environ.get("TEST_BUSY_S", "5"))

FORK = "title: Fork\nsteps:\n- {id: fork, kind: python, call: family.fork, inputs: {stays: %s}}\n"

ROOT = Path(__file__).parents[2]

FUNCTIONS = {"SOONG_FUNCTIONS": "tests.system.functions", "SOONG_IMPORT_PATH": str(ROOT)}

SUBREAPER = "subreaper.py"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CliHarness]:
    with scene() as one:
        one.environment |= {**FUNCTIONS, "TEST_PIDS": str(tmp_path)}
        try:
            yield one
        finally:
            for pid in left(tmp_path).values():
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def up(cli: CliHarness) -> Iterator[WarmCommand]:
    command = cli.up()
    yield command
    if command.poll() is None:
        command.send_signal(signal.SIGINT)
    command.communicate(timeout=60)


def left(folder: Path) -> dict[str, int]:
    """Return the processes that a step has left and that live."""
    found = {}
    for path in folder.glob("*.pid"):
        pid = int(path.read_text())
        if is_alive(pid):
            found[path.stem] = pid
    return found


def worker_of(cli: CliHarness) -> psutil.Process:
    """Return the worker itself, not its subreaper."""
    found = [one for one in cli.processes() if "soong.worker" in one.cmdline() and "stand-in" not in one.cmdline()]
    return next(one for one in found if any(Path(word).name == SUBREAPER for word in (one.parent() or one).cmdline()))


def assert_gone(folder: Path) -> None:
    began_s = time.monotonic()
    until(lambda: not left(folder), f"nobody is left of {left(folder)}", limit_s=60)
    assert time.monotonic() - began_s <= PROMISED_S + BUSY_S


@pytest.mark.spec("DAG-06", "DAG-07")
def test_what_a_step_forked_ends_with_a_worker_that_is_killed(cli: CliHarness, up: WarmCommand, tmp_path: Path) -> None:
    command = cli.start("run", cli.plan(FORK % "true"), "--json")
    until(lambda: len(left(tmp_path)) == CHILDREN, "the step has forked", cli.logs)
    first = left(tmp_path)
    worker = worker_of(cli)

    worker.kill()

    began_s = time.monotonic()
    until(lambda: not set(first.values()) & set(left(tmp_path).values()), "they have ended", limit_s=60)
    assert time.monotonic() - began_s <= PROMISED_S + BUSY_S
    died = " died (SIGKILL, killed, perhaps out of memory); 1 step starts again\n"
    until(lambda: died in command.streams[1].read_text(), "its death is told", cli.logs)
    interrupted(command)


@pytest.mark.spec("DAG-07")
def test_what_a_step_forked_ends_with_a_service_that_is_killed(
    cli: CliHarness, up: WarmCommand, tmp_path: Path
) -> None:
    assert cli.json("run", cli.plan(FORK % "false"))["exit_code"] == 0
    assert len(left(tmp_path)) == CHILDREN
    worker = worker_of(cli)

    up.kill()

    psutil.wait_procs([worker], timeout=30)
    assert not worker.is_running()
    assert_gone(tmp_path)
    cli.assert_nothing_left()


def test_what_a_step_forked_ends_with_a_worker_that_restarts(cli: CliHarness, tmp_path: Path) -> None:
    cli.environment |= {"SOONG_RECYCLE_AFTER": "1", "SOONG_LOG_LEVEL": "info"}
    up = cli.up()

    assert cli.json("run", cli.plan(FORK % "false"))["exit_code"] == 0
    worker = worker_of(cli)

    until(lambda: not {"child", "deaf"} & left(tmp_path).keys(), "its children have ended", limit_s=60)
    assert worker.is_running()
    interrupted(up)
    assert not left(tmp_path)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)], ids=["told to stop", "killed"]
)
def test_a_worker_of_its_own_forwards_signals_ends_as_it_ended_and_leaves_nobody(
    cli: CliHarness, up: WarmCommand, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    own = cli.start("worker", "--name", "own", "--pools", "special")
    plan = cli.plan((FORK % "false").replace("kind: python", "kind: python, pool: special"))
    assert cli.json("run", plan)["exit_code"] == 0
    subreaper = psutil.Process(own.pid)
    forked = set(left(tmp_path).values())
    (worker,) = [
        child for child in subreaper.children() if "soong.worker" in child.cmdline() and child.pid not in forked
    ]

    (subreaper if number is signal.SIGTERM else worker).send_signal(number)

    assert own.wait(timeout=60) == code
    assert not left(tmp_path)


@pytest.mark.spec("DAG-05.d")
def test_a_step_that_ends_its_worker_is_failed_with_how_the_worker_ended(cli: CliHarness) -> None:
    cli.environment["SOONG_MAX_LOST_LEASES"] = "2"
    steps = [
        "- {id: code, kind: python, call: leave.code, inputs: {code: 7}, on_failure: keep}",
        "- {id: crash, kind: python, call: leave.signal, inputs: {name: SIGSEGV}, depends_on: [code]}",
    ]

    report = cli.json("run", cli.plan("title: Leave\nsteps:\n" + "\n".join(steps)))

    errors = {step["id"]: step["error"] for step in report["steps"]}
    assert {error["type"] for error in errors.values()} == {"poisoned"}
    assert errors["code"]["message"].endswith("died (exit code 7)")
    assert errors["crash"]["message"].endswith("died (SIGSEGV, segmentation fault)")
    assert "it lost its lease 2 times; the last time worker-1@" in errors["crash"]["message"]


def hanging(*names: str, more: str = "") -> str:
    """Return a plan whose steps hang their workers."""
    steps = (f"- {{id: {name}, kind: python, call: test.hold_lock{more}}}\n" for name in names)
    return f"title: bad\nsteps:\n{''.join(steps)}"


@pytest.fixture(scope="module")
def service() -> Iterator[CliHarness]:
    """A service with two workers, which may not hang for long."""
    with scene() as one:
        one.environment |= {**FUNCTIONS, "SOONG_WORKERS": "2", "SOONG_HANG_S": "2", "SOONG_MAX_LOST_LEASES": "2"}
        up = one.up()
        yield one
        interrupted(up)


@pytest.mark.spec("DAG-05", "OPS-12")
def test_steps_that_hang_every_worker_are_quarantined_and_the_workers_come_back(service: CliHarness) -> None:
    failed = service.json("run", service.plan(hanging("a", "b")))
    after = service.json("run", service.plan("title: good\nsteps:\n- {id: e, kind: python, call: builtin.echo}\n"))

    assert (failed["status"], after["status"]) == ("failed", "completed")
    for step in failed["steps"]:
        assert (step["error"]["type"], step["lost_leases"]) == ("poisoned", 2)
        assert "died (its event loop hung for 2 s, so its subreaper ended it)" in step["error"]["message"]


@pytest.mark.spec("DAG-05", "OPS-12")
def test_a_worker_started_by_hand_is_ended_too_and_says_where_it_hung(service: CliHarness) -> None:
    worker = service.start("worker", "--pools", "lonely")
    bad = service.run("run", service.plan(hanging("a", more=", pool: lonely")), "--detach").stdout.strip()

    _, said = worker.communicate(timeout=60)
    assert service.run("tasks", "cancel", bad).returncode == 0

    assert worker.returncode == -signal.SIGABRT
    assert "in hold_lock" in said
    until(lambda: service.json("tasks", "show", bad)["status"] in ("failed", "cancelled"), "its end", service.logs)
