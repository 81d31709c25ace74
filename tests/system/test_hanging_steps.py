"""A step whose code never gives the interpreter back: its worker is ended from outside, and another one starts."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.http_scene import Service, http_service

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the subreaper needs Linux"),
]

ROOT = Path(__file__).parents[2]
GOOD = {"title": "good", "steps": [{"id": "e", "kind": "python", "call": "builtin.echo"}]}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    given = {"SOONG_FUNCTIONS": "tests.system.functions", "PYTHONPATH": str(ROOT), "SOONG_WORKERS": "2"}
    with http_service(**given, SOONG_HANG_S="2") as one:
        yield one


@pytest.fixture
def token(service: Service) -> str:
    return service.token("ada", "run")


def hanging(step_id: str, **more: object) -> dict[str, object]:
    return {"id": step_id, "kind": "python", "call": "test.hold_lock", **more}


@pytest.mark.spec("DAG-05", "OPS-12")
def test_steps_that_hang_every_worker_are_quarantined_and_the_workers_come_back(service: Service, token: str) -> None:
    bad = service.submit(token, {"title": "bad", "steps": [hanging("a"), hanging("b")]})

    failed = service.ended(token, bad)
    after = service.submit(token, GOOD)

    assert service.ended(token, after)["status"] == "completed"
    assert failed["status"] == "failed"
    for step in failed["steps"].values():
        assert (step["error"]["type"], step["lost_leases"]) == ("poisoned", 3)
        assert "died (its event loop hung for 2 s, so its subreaper ended it)" in step["error"]["message"]


@pytest.mark.spec("DAG-05", "OPS-12")
def test_a_worker_started_by_hand_is_ended_too_and_says_where_it_hung(service: Service, token: str) -> None:
    worker = service.cli.start("worker", "--pools", "lonely")
    bad = service.submit(token, {"title": "bad", "steps": [hanging("a", pool="lonely")]})

    _, said = worker.communicate(timeout=60)
    service.call(token, f"{bad}/cancel", {})

    assert worker.returncode == -signal.SIGABRT
    assert "in hold_lock" in said
    assert service.ended(token, bad)["status"] in ("failed", "cancelled")
