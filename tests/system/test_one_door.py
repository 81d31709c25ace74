"""Every interface calls the same operations: over HTTP, over the socket of the home, and in a command's own process."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.system.http_scene import Service, http_service

PLAN = "title: Echo\nsteps:\n- {id: echo, kind: python, call: builtin.echo, inputs: {x: 1}}\n"
ELSEWHERE = {"OTHER_API_KEY": "a-secret-of-this-terminal"}
"""A command with another secret than the service calls the operations in its own process."""
BY_SOCKET = """
import json, sys
from pathlib import Path
from soong.orchestrator.client.home_api import ApiProblemError, HomeApi
method, path, body, headers = json.loads(sys.argv[2])
try:
    print(json.dumps(HomeApi(Path(sys.argv[1])).call(method, path, body=body, headers=headers)))
except Exception as error:
    print(json.dumps(error.__cause__.document))
"""
LISTS = {"tasks": ("tasks", "list"), "runs": ("runs", "list"), "approvals?state=all": ("approvals", "list", "--all")}
SHOWS = {"tasks/{task}/result": ("tasks", "show", "{task}"), "runs/{run}": ("runs", "show", "{run}")}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with http_service() as one:
        assert one.cli.run("run", one.cli.plan(PLAN)).returncode == 0
        yield one


def by_socket(service: Service, method: str, path: str, body: object = None, **headers: str) -> Any:
    """Return what an operation answers on the socket of the home, in a process of its own."""
    request = json.dumps([method, path, body, headers])
    program = [sys.executable, "-P", "-c", BY_SOCKET, str(service.cli.home), request]
    done = subprocess.run(program, env=service.cli.env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def printed(service: Service, words: tuple[str, ...], environment: Mapping[str, str] = {}) -> Any:
    """Return the JSON that a command prints."""
    program = [sys.executable, "-P", "-m", "soong.orchestrator.cli", *words, "--json"]
    done = subprocess.run(
        program,
        env={**service.cli.env, **environment},
        cwd=service.cli.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout)


@pytest.mark.spec("OPS-01")
@pytest.mark.parametrize("path", [*LISTS, *SHOWS])
def test_every_interface_reads_the_same(service: Service, path: str) -> None:
    token = service.token("reader", "read")
    ids = {"task": service.cli.task_id(), "run": service.call(token, "/v1/runs")[1]["items"][0]["id"]}
    words = tuple(word.format(**ids) for word in (LISTS.get(path) or SHOWS[path]))

    status, over_http = service.call(token, f"/v1/{path.format(**ids)}")
    document = over_http["items"] if path in LISTS else over_http
    over_socket = by_socket(service, "GET", f"/v1/{path.format(**ids)}")

    assert status == 200
    assert (over_socket["items"] if path in LISTS else over_socket) == document
    assert printed(service, words) == document
    assert printed(service, words, ELSEWHERE) == document
    rows_alone = {"SOONG_DATABASE_URL": f"sqlite:///{service.cli.home / 'soong.db'}"}
    assert printed(service, words, rows_alone) == document


@pytest.mark.spec("OPS-01")
def test_a_wrong_id_is_refused_in_the_same_words(service: Service) -> None:
    wrong = "task_" + "0" * 26
    status, over_http = service.call(service.token("reader", "read"), f"/v1/tasks/{wrong}/result")

    assert (status, over_http["code"]) == (404, "not_found")
    assert by_socket(service, "GET", f"/v1/tasks/{wrong}/result") == over_http
    for environment in ({}, ELSEWHERE):
        told = printed(service, ("tasks", "show", wrong), environment)
        assert (told["error"]["message"], told["exit_code"]) == (over_http["detail"], 2)


@pytest.mark.spec("OPS-01")
def test_too_little_right_is_refused_and_nothing_happens(service: Service) -> None:
    task = service.cli.task_id()
    status, document = service.call(service.token("reader", "read"), f"/v1/tasks/{task}/retry", {"from": "echo"})

    assert (status, document["code"], document["right"]) == (403, "forbidden", "run")
    assert service.cli.task_id() == task
    assert printed(service, ("tasks", "show", task))["status"] == "completed"


@pytest.mark.spec("DAG-01")
def test_a_submission_with_one_key_is_one_task_on_each_way(service: Service) -> None:
    token = service.token("local", "run")
    body = {"plan": PLAN, "project": str(service.cli.folder), "approval_mode": "deny"}
    first = by_socket(service, "POST", "/v1/tasks", body, **{"idempotency-key": "once"})
    again = by_socket(service, "POST", "/v1/tasks", body, **{"idempotency-key": "once"})
    other = by_socket(service, "POST", "/v1/tasks", {**body, "project": "/tmp"}, **{"idempotency-key": "once"})

    assert again["task"]["id"] == first["task"]["id"]
    assert other["code"] == "idempotency_key_reused"
    assert service.call(token, f"/v1/tasks/{first['task']['id']}")[0] == 200
