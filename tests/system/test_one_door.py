"""Every interface calls the same operations: over HTTP, over the socket of the home, and in a command's own process."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.system.cli_scene import LIMIT_S
from tests.system.http_scene import Service, http_service
from tests.warm import called

PLAN = "title: Echo\nsteps:\n- {id: echo, kind: python, call: builtin.echo, inputs: {x: 1}}\n"
ELSEWHERE = {"OTHER_API_KEY": "a-secret-of-this-terminal"}
"""A command with another secret than the service calls the operations in its own process."""
BY_SOCKET = """
import asyncio, json, sys
from pathlib import Path
from soong.orchestrator.client.home_api import ApiProblemError, HomeApi
method, path, body, headers = json.loads(sys.argv[2])
try:
    reply = HomeApi(Path(sys.argv[1])).reply(method, path, body=body, headers=headers)
    print(json.dumps(asyncio.run(reply).document))
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
    cli = service.cli
    words = (*words, "--json")
    done = called("soong.orchestrator.cli", words, env={**cli.env, **environment}, cwd=cli.folder, limit_s=LIMIT_S)
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
