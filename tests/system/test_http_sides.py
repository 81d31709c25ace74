"""Tokens that may run or administer use nobody's consent: exploits over real HTTP against a real service."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scripted import call, calls
from tests.system.cli_scene import until
from tests.system.http_scene import Service, http_service

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.spec("PER-02", "PER-08", "OPS-12.a")


def write(name: str) -> dict[str, Any]:
    writing = call("code.write_file", path=name, content="hello", overwrite=True)
    return {"allowed_tools": ["code.write_file"], **calls(writing, output="written")}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with http_service(SOONG_FUNCTIONS="tests.system.scripts", SOONG_IMPORT_PATH=str(ROOT)) as one:
        yield one


def submitted(service: Service, token: str, project: Path, *steps: dict[str, Any], **more: Any) -> str:
    plan = {"title": "Write", "steps": [{"id": "write", **write("shown.txt")}, *steps]}
    status, told = service.call(token, "/v1/tasks", {"plan": plan, "project": str(project), **more})
    assert status == 201, told
    return str(told["task"]["id"])


def status_of(service: Service, token: str, task: str, step: str) -> str:
    found = {one["id"]: one["status"] for one in service.call(token, f"/v1/tasks/{task}")[1]["steps"]}
    return str(found.get(step, ""))


def answered(service: Service, token: str, choice: str) -> dict[str, Any]:
    """Answer the one question that waits."""
    (question,) = service.call(token, "/v1/approvals?wait=55")[1]["items"]
    answer = {"choice": choice, "input_digest": question["input_digest"]}
    assert service.call(token, f"/v1/approvals/{question['id']}/answer", answer)[0] == 200
    found: dict[str, Any] = question
    return found


def test_a_grant_is_used_by_no_dispatch_of_a_token_that_may_not_give_it(service: Service) -> None:
    project = service.project("granted")
    ada, approver = service.token("ada", "run"), service.token("bob", "approve")
    admin, both = service.token("root", "admin"), service.token("root", "admin", "approve")
    task = submitted(service, ada, project, {"id": "open", "claim": "pull", "instructions": "wait"})
    answered(service, approver, "allow_for_session")
    until(lambda: status_of(service, ada, task, "write") == "completed", "the grant is given", service.cli.logs)
    path = f"/v1/tasks/{task}/dispatch"
    works = {"script": "tests.write_own", "allowed_tools": ["code.write_file"]}

    refused = {
        (name, field): service.call(token, path, {"model": "script", field: value})
        for name, token in (("ada", ada), ("root", admin), ("root, who may approve", both))
        for field, value in {**works, "instructions": "write", "agent": "default_worker_agent"}.items()
    }
    whole = [service.call(token, path, {"model": "script", **works}) for token in (ada, admin, both)]
    steps = service.call(ada, f"/v1/tasks/{task}")[1]["steps"]

    assert {name: (status, told["code"]) for (name, _), (status, told) in refused.items()} == {
        "ada": (403, "forbidden"),
        "root": (403, "forbidden"),
        "root, who may approve": (403, "not_yours"),
    }
    assert [told["code"] for _, told in whole] == ["forbidden", "forbidden", "not_yours"]
    assert [step["id"] for step in steps] == ["write", "open"]
    assert not (project / "own.txt").exists()

    may_approve = service.token("ada", "run", "approve")
    assert service.call(may_approve, path, {"model": "script", **works})[0] == 200
    until((project / "own.txt").exists, "its own side uses the grant", service.cli.logs)
    assert service.call(approver, "/v1/approvals")[1]["items"] == []
    assert service.call(ada, f"/v1/tasks/{task}/cancel", {})[0] == 200


def test_a_rule_answers_for_nothing_that_an_administrator_runs_again(service: Service) -> None:
    project = service.project("ruled")
    ada, approver = service.token("ada", "run", "approve"), service.token("bob", "approve")
    admin = service.token("root", "admin")
    task = submitted(service, ada, project, allow=[f"code.write_file:{project}"])
    until(lambda: service.call(ada, f"/v1/tasks/{task}")[1]["status"] == "completed", "the rule allowed it")
    (project / "shown.txt").unlink()

    assert service.call(admin, f"/v1/tasks/{task}/retry", {"from": "write"})[0] == 200
    question = answered(service, approver, "deny")
    until(lambda: service.call(ada, f"/v1/tasks/{task}")[1]["status"] == "completed", "it was run again")
    run = service.call(ada, f"/v1/runs/{question['identity']['run_id']}")[1]

    assert not (project / "shown.txt").exists()
    assert "allow_for_session" not in question["choices"]
    assert (run["dispatched_by"], run["is_foreign"]) == ("root", True)

    assert service.call(ada, f"/v1/tasks/{task}/retry", {"from": "write"})[0] == 200
    until((project / "shown.txt").exists, "its own side uses its rule", service.cli.logs)


def test_the_command_line_of_another_principal_says_no_more_than_a_token(service: Service) -> None:
    project = service.project("another")
    ada = service.token("ada", "run")
    task = submitted(service, ada, project, {"id": "open", "claim": "pull", "instructions": "wait"})
    done = service.cli.run("tasks", "add-workers", task, "--model", "script", "--script", "builtin.echo")

    assert done.returncode == 1
    assert "the session is 'ada''s; nobody else decides what its runs do and with what" in done.stderr
    assert service.call(ada, f"/v1/tasks/{task}/cancel", {})[0] == 200
