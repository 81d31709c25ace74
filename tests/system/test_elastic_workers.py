"""A service with a range of workers: one while one is enough, more for more work, and one again afterwards."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.system.cli_scene import CliHarness, scene, until
from tests.system.deployment import HOLDS_TIMES

pytestmark = pytest.mark.timeout(300)

IDLE_S = 2
MODULE = """
import asyncio, ctypes, os
from soong import step

@step(name="team.pass_gate")
async def pass_gate(**inputs):
    while not os.path.exists(inputs["gate"]):
        await asyncio.sleep(0.02)

@step(name="team.hold_lock")
def hold_lock(**inputs):
    "Hold the interpreter's lock until somebody opens the other end of the pipe."
    ctypes.PyDLL(None).open(os.fsencode(inputs["gate"]), os.O_RDONLY)
"""
ECHO = "title: One\nsteps:\n  - {id: e, kind: python, call: builtin.echo, inputs: {x: 1}}\n"
SLOW_MACHINE = {"SOONG_LEASE_S": "60", "SOONG_HANG_S": "0"}  # a start may take longer than a lease


@dataclass(frozen=True)
class Gate:
    """Steps that wait until it opens, however long the machine takes for what is to happen before."""

    path: Path

    def plan(self, call: str, *names: str) -> str:
        inputs = f"inputs: {{gate: '{self.path}'}}"
        steps = (f"  - {{id: {name}, kind: python, call: {call}, {inputs}}}\n" for name in names)
        return f"title: Gate\nsteps:\n{''.join(steps)}"


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture(scope="module")
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        (one.folder / "team.py").write_text(MODULE)
        one.environment |= {
            "SOONG_WORKERS": "1-2",
            "SOONG_WORKER_IDLE_S": str(IDLE_S),
            "SOONG_FUNCTIONS": "team",
            "SOONG_IMPORT_PATH": str(one.folder),
            **SLOW_MACHINE,
        }
        one.up()
        yield one
        assert one.run("down").returncode == 0
        one.assert_nothing_left()


@pytest.fixture(autouse=True)
def one_worker(cli: CliHarness) -> psutil.Process:
    until(lambda: len(cli.workers()) == 1, "the service has one worker", cli.logs)
    return cli.workers()[0]


def begun(cli: CliHarness, plan: str) -> str:
    """Submit a plan and return its task's id."""
    assert cli.run("run", cli.plan(plan), "--detach").returncode == 0
    return cli.task_id()


def ended(cli: CliHarness, task: str) -> list[tuple[str, int]]:
    """Wait for a task's end; return how each step ended, and how often its lease was lost."""
    until(lambda: cli.json("tasks", "show", task)["status"] != "running", f"{task} ends", cli.logs)
    return [(step["status"], step["lost_leases"]) for step in cli.json("tasks", "show", task)["steps"]]


@pytest.mark.spec("OPS-01")
@pytest.mark.timed
def test_a_second_worker_comes_with_a_second_step_and_ends_when_it_is_idle(
    cli: CliHarness, one_worker: psutil.Process, gate: Gate
) -> None:
    for _ in range(3):
        assert cli.run("run", cli.plan(ECHO)).returncode == 0
    # One that lasts longer than the scaler's looks are apart asks for a second, which is a matter of the machine.
    assert cli.workers() == [one_worker] or not HOLDS_TIMES, "tasks that follow one another are work for one worker"

    first = begun(cli, gate.plan("team.pass_gate", "a", "b"))
    until(lambda: len(cli.json("workers", "list")["workers"]) == 2, "a second worker has come", cli.logs)
    # More than one worker's slots have room for, and than its idle time.
    nap = f"kind: python, call: builtin.sleep, inputs: {{seconds: {IDLE_S + 1}}}"
    second = begun(cli, "title: Naps\nsteps:\n" + "".join(f"  - {{id: n{n}, {nap}}}\n" for n in range(6)))
    gate.path.touch()

    assert ended(cli, first) == [("completed", 0)] * 2
    assert ended(cli, second) == [("completed", 0)] * 6
    until(lambda: cli.workers() == [one_worker], "the second has ended", cli.logs)
    assert "worker-2" not in cli.run("doctor").stdout, "its end is no failure"
    assert [one["state"] for one in cli.json("workers", "list")["workers"]] == ["live"]


@pytest.mark.spec("OPS-01", "DAG-05")
def test_a_step_of_the_only_worker_ends_on_the_one_that_follows_it(
    cli: CliHarness, one_worker: psutil.Process, gate: Gate
) -> None:
    task = begun(cli, gate.plan("team.pass_gate", "one"))
    cli.until_running("one")

    one_worker.kill()
    one_worker.wait()
    gate.path.touch()

    assert ended(cli, task) == [("completed", 1)]


@pytest.mark.spec("OPS-01", "OPS-12")
def test_a_step_that_blocks_the_only_worker_delays_others_by_a_start(
    cli: CliHarness, one_worker: psutil.Process, gate: Gate
) -> None:
    os.mkfifo(gate.path)
    blocked = begun(cli, gate.plan("team.hold_lock", "one"))
    cli.until_running("one")

    assert cli.run("run", cli.plan(ECHO)).returncode == 0

    assert cli.json("tasks", "show", blocked)["status"] == "running"
    gate.path.open("wb").close()
    assert ended(cli, blocked) == [("completed", 0)]
    assert one_worker.is_running()
