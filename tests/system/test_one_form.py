"""One form per thing: the HTTP API, ``--json`` and the SDK say the same of the same task, run, question and worker."""

from collections.abc import Iterator
from typing import Any

import pytest

from soong import Soong, TaskResult
from tests.scripted import call, calls
from tests.system.cli_scene import until
from tests.system.http_scene import Service, http_service

pytestmark = pytest.mark.spec("OPS-04")

PLAN: dict[str, Any] = {
    "title": "Write",
    "steps": [
        {
            "id": "write",
            "allowed_tools": ["code.write_file"],
            **calls(call("code.write_file", path="note.txt", content="x")),
        },
        {"id": "end", "kind": "python", "call": "builtin.echo", "depends_on": ["write"], "inputs": {"a": 1}},
    ],
}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with http_service() as one:
        yield one


@pytest.fixture(scope="module")
def token(service: Service) -> str:
    return service.token("local", "read", "run", "approve")


@pytest.fixture(scope="module")
def task(service: Service, token: str) -> dict[str, Any]:
    """A task of which one call waits for an answer."""
    body = {"plan": PLAN, "project": str(service.project()), "approval_mode": "inbox"}
    status, submitted = service.call(token, "/v1/tasks", body)
    assert status == 201, submitted
    until(lambda: service.cli.json("approvals", "list"), "the question", service.cli.logs)
    return dict(submitted["task"])


def got(service: Service, token: str, path: str) -> Any:
    status, document = service.call(token, path)
    assert status == 200, document
    return document


async def test_a_task_that_has_ended_is_the_same_for_all(service: Service, token: str, task: dict[str, Any]) -> None:
    for question in service.cli.json("approvals", "list"):
        assert service.cli.run("approvals", "allow", question["id"]).returncode == 0
    path = f"/v1/tasks/{task['id']}"
    until(lambda: got(service, token, path)["status"] == "completed", "the task ends", service.cli.logs)

    shown = service.cli.json("tasks", "show", task["id"])
    (listed,) = service.cli.json("tasks", "list")
    async with Soong.embedded(agent_home=service.cli.home) as soong:  # of the service that runs
        result = await soong.result(task["id"])

    assert isinstance(result, TaskResult)
    assert result.model_dump(mode="json") == shown == got(service, token, f"{path}/result")
    assert listed == got(service, token, "/v1/tasks")["items"][0]
    assert {name: shown[name] for name in listed} == listed
    assert task.keys() == listed.keys()
    assert result.outputs["end"] == {"a": 1}
    assert shown["step_counts"] == {"completed": 2}
    steps = got(service, token, path)["steps"]
    assert [{name: step[name] for name in steps[0]} for step in shown["steps"]] == steps
    assert [one["path"].rpartition("/")[2] for one in shown["deliverables"]] == ["note.txt"]
