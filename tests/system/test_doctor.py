"""``soong doctor`` sees what is wrong with the workers and steps of a living service."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.cli_scene import CliHarness, interrupted, scene, until

pytestmark = [pytest.mark.timeout(180), pytest.mark.spec("OPS-07.b", "OPS-07.c")]

FUNCTIONS = """\
import asyncio, os
from soong import step_function

@step_function("bad.leave")
def leave(inputs, context):
    os._exit(7)

@step_function("bad.deaf")
async def deaf(inputs, context):
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""
PLAN = "title: t\nsteps:\n- {id: a, kind: python, call: %s, inputs: {seconds: 600}, timeout_s: %s}\n"


@pytest.fixture
def service() -> Iterator[CliHarness]:
    """A service that stays, with step functions that end their process or hear nothing."""
    with scene() as one:
        (one.folder / "bad_steps.py").write_text(FUNCTIONS)
        one.environment |= {"SOONG_FUNCTIONS": "bad_steps", "SOONG_BEAT_S": "0.5", "SOONG_LEASE_S": "60"}
        up = one.up_warm()
        yield one
        interrupted(up)


def finding(service: CliHarness, check: str) -> dict[str, Any]:
    return next(dict(one) for one in service.json("doctor")["checks"] if one["check"] == check)


def test_a_worker_that_a_step_ends_again_and_again_is_seen(service: CliHarness) -> None:
    assert finding(service, "workers")["level"] == "ok"

    failed = service.run("run", service.plan(PLAN % ("bad.leave", 60)))
    done = service.run("doctor")

    assert failed.returncode == 1
    assert done.returncode == 1
    seen = finding(service, "workers")
    assert seen["level"] == "fail"
    assert seen["says"].startswith("worker-1 ended unexpectedly 3 times, last by exit code 7")
    assert "a step's function or library ends the process" in seen["hint"]
    assert "worker-1 ended unexpectedly 3 times, last by exit code 7" in done.stdout


def test_a_step_that_hears_no_cancelling_is_seen_when_its_time_is_over(service: CliHarness) -> None:
    task = service.run("run", "--detach", service.plan(PLAN % ("bad.deaf", 1))).stdout.strip()
    service.until_running("a")

    until(lambda: finding(service, "steps")["level"] == "warn", "doctor sees it", service.logs)

    seen = finding(service, "steps")
    assert seen["says"].startswith(f"{task}/a (bad.deaf): timed out, still running; the step took longer than 1")
    assert "a thread cannot be ended" in seen["hint"]


def test_a_stopped_worker_has_no_heartbeat(service: CliHarness) -> None:
    service.run("run", "--detach", service.plan(PLAN % ("builtin.sleep", 600)))
    service.until_running("a")
    assert finding(service, "steps")["level"] == finding(service, "workers")["level"] == "ok"
    pid = service.json("workers", "list")["workers"][0]["pid"]

    os.kill(pid, signal.SIGSTOP)
    try:
        seen = finding(service, "workers")
    finally:
        os.kill(pid, signal.SIGCONT)

    assert seen["level"] == "warn"
    assert seen["says"].startswith("no heartbeat within 1 s: worker-1@")
    assert f"(pid {pid} on " in seen["says"]
