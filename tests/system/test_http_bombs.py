"""Plans that are made to hurt, sent to the API of a real service with the smallest right that takes them."""

import json
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.security.plan_bombs import SHAPES
from tests.system.http_scene import Service, http_service

pytestmark = [pytest.mark.spec("OPS-12"), pytest.mark.timeout(300)]

MIB = 1024 * 1024
BODY = 2 * MIB - 1024
HELD = 400 * MIB
"""What the API may take more than at rest; a container of `deploy/kubernetes` has 512 MiB."""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with http_service() as one:
        yield one


@pytest.fixture(scope="module")
def api(service: Service) -> psutil.Process:
    """The API's process, of which allocations fail beyond what it may take."""
    process = service.api()
    at_rest = process.memory_info().vms
    process.rlimit(resource.RLIMIT_AS, (at_rest + 3 * HELD, at_rest + 3 * HELD))  # arenas of threads count, too
    return process


def peak(process: psutil.Process) -> int:
    """Return the most memory that a process has had."""
    (line,) = (each for each in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmHWM" in each)
    return int(line.split()[1]) * 1024


def body_of(shape: str, *, is_text: bool) -> dict[str, Any]:
    size = BODY
    while True:
        text = SHAPES[shape](size)
        body: dict[str, Any] = {"plan": text if is_text else json.loads(text)}
        if len(json.dumps(body)) <= BODY:
            return body
        size = size * 3 // 4


def validate(service: Service, token: str, body: object) -> tuple[int, Any]:
    """Return status and document; several large plans take their time, one after another."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=280, trust_env=False) as client:
        response = client.post("/v1/tasks/validate", json=body, headers=headers)
    return response.status_code, response.json()


@pytest.mark.parametrize("is_text", [True, False], ids=["text", "object"])
def test_a_reader_of_plans_is_answered_and_the_api_lives_on_whatever_it_sends(
    service: Service, api: psutil.Process, is_text: bool
) -> None:
    reader, before = service.token("eve", "read"), peak(api)
    shapes = ("empty objects", "unknown dependencies", "unknown references")
    bodies = [body_of(shape, is_text=is_text) for shape in (*shapes, shapes[0], shapes[0])]

    with ThreadPoolExecutor(len(bodies)) as senders:
        answers = list(senders.map(lambda body: validate(service, reader, body), bodies))

    assert [status for status, _ in answers] == [422] * len(answers)
    assert all(len(json.dumps(document)) < 64 * 1024 for _, document in answers)
    assert all(1 <= len(document["errors"]) <= 50 for _, document in answers)
    assert api.is_running()
    assert api.pid == service.api().pid
    assert peak(api) - before < HELD


def test_a_small_plan_does_not_wait_for_large_ones(service: Service, api: psutil.Process) -> None:
    reader = service.token("eve", "read")
    large, small = body_of("deep numbers", is_text=True), {"plan": {"title": "t", "steps": []}}

    with ThreadPoolExecutor(4) as senders:
        waiting = [senders.submit(validate, service, reader, large) for _ in range(4)]
        status, _ = validate(service, reader, small)
        were_waiting = [one for one in waiting if not one.done()]

    assert status == 422
    assert were_waiting
    assert api.is_running()


# -- plans that are run
GOOD: dict[str, Any] = {"title": "good", "steps": [{"id": "e", "kind": "python", "call": "builtin.echo"}]}


def test_a_plan_whose_children_are_gigabytes_fails_and_other_plans_go_on(service: Service) -> None:
    runner, pid = service.token("ada", "run"), service.cli.record()["pid"]
    owner = psutil.Process(pid)
    at_rest = owner.memory_info().vms
    owner.rlimit(resource.RLIMIT_AS, (at_rest + 3 * HELD, at_rest + 3 * HELD))
    before = peak(owner)
    child = {"kind": "python", "call": "builtin.echo", "title": "${inputs.x}" * 500, "inputs": {"a": "${inputs.x}" * 9}}
    bomb = {
        "title": "bomb",
        "inputs": {"x": {"type": "string"}},
        "steps": [{"id": "m", "kind": "map", "over": list(range(1_000)), "title": "${inputs.x}" * 500, "step": child}],
    }

    bad = service.submit(runner, bomb, inputs={"x": "x" * 450_000})
    good = service.submit(runner, GOOD)

    assert service.ended(runner, good)["status"] == "completed"
    failed = service.ended(runner, bad)
    assert failed["status"] == "failed"
    step = failed["steps"]["m"]
    assert step["error"]["type"] == "limit_exceeded"
    assert "the children of the map step would take more than 128 MiB" in step["error"]["message"]
    assert service.cli.record()["pid"] == pid
    assert owner.is_running()
    assert peak(owner) - before < HELD
