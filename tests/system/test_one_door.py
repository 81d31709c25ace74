"""Every interface calls the same operations: over HTTP, over the socket of the home, and in a command's own process."""

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from soong import Soong
from soong.shared.core.errors import NotFoundError
from tests.architecture.document_examples import agrees, perform, sittings
from tests.extra import missing
from tests.integration.http.mcp_clients import mcp_client, text_of
from tests.scripted import call, calls
from tests.spec_document import ROOT
from tests.system.cli_scene import LIMIT_S, scene, until, writes
from tests.system.http_scene import Service, http_service
from tests.warm import called

PLAN: dict[str, Any] = {
    "title": "Asks",
    "tags": ["nightly"],
    "steps": [
        {"id": "echo", "kind": "python", "call": "builtin.echo", "inputs": {"x": 1}},
        {
            "id": "ask",
            "allowed_tools": ["code.write_file"],
            **calls(call("code.write_file", path="n.txt", content="x")),
        },
    ],
}
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
WAITS = {"title": "W", "steps": [{"id": "a", "kind": "python", "call": "builtin.echo", "needs": ["nobody-has-it"]}]}
MOVING = frozenset({"beats", "now"})
"""What moves between two readings; a caller with a token is not shown what the target of a question is now."""
WRONG = {"task": "task_" + "0" * 26, "run": "run_" + "0" * 26, "question": "perm_" + "0" * 26}


@dataclass(frozen=True)
class Read:
    """One operation that reads, by the names that the interfaces have for it; "": it has none there."""

    path: str
    words: tuple[str, ...] = ()
    tool: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    is_list: bool = False

    def of(self, ids: Mapping[str, str]) -> "Read":
        """Return it with these ids in the place of their names."""
        words = tuple(word.format(**ids) for word in self.words)
        given = {name: one.format(**ids) if isinstance(one, str) else one for name, one in self.given.items()}
        return replace(self, path=f"/v1/{self.path.format(**ids)}", words=words, given=given)


READS = {
    "tasks": Read("tasks", ("tasks", "list"), "list_tasks", is_list=True),
    "some tasks": Read(
        "tasks?title=ASKS&status=running&tag=nightly&since=1h",
        ("tasks", "list", "--title", "ASKS", "--status", "running", "--tag", "nightly", "--since", "1h"),
        "list_tasks",
        {"title": "ASKS", "status": ["running"], "tag": "nightly", "since": "1h"},
        is_list=True,
    ),
    "some runs": Read(
        "runs?status=parked&tag=nightly",
        ("runs", "list", "--status", "parked", "--tag", "nightly"),
        "list_runs",
        {"status": ["parked"], "tag": "nightly"},
        is_list=True,
    ),
    "runs": Read("runs", ("runs", "list"), "list_runs", is_list=True),
    "questions": Read("approvals", ("approvals", "list"), "list_approvals", is_list=True),
    "result": Read("tasks/{task}/result", ("tasks", "show", "{task}"), "task_result", {"task": "{task}"}),
    "run": Read("runs/{run}", ("runs", "show", "{run}")),
    "task": Read("tasks/{task}", (), "show_task", {"task": "{task}"}),
    "question": Read(
        "approvals/{question}", ("approvals", "show", "{question}"), "show_approval", {"approval": "{question}"}
    ),
    "workers": Read("workers", ("workers", "list"), "list_workers"),
}
ACTS = {"pause": "paused", "resume": "running", "cancel": "cancelled"}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with http_service() as one:
        yield one


@pytest.fixture(scope="module")
def ids(service: Service) -> dict[str, str]:
    """A task of which one step has ended and one asks, its run and its question."""
    token = service.token("local", "read", "run")
    task = service.submit(token, PLAN, approval_mode="inbox").rpartition("/")[2]
    until(lambda: service.call(token, "/v1/approvals")[1]["items"], "the question", service.cli.logs)
    (question,) = service.call(token, "/v1/approvals")[1]["items"]
    path = f"/v1/tasks/{task}"
    until(lambda: service.read(token, path)["step_counts"].get("completed") == 1, "echo ends", service.cli.logs)
    run = service.read(token, path)["steps"]["ask"]["run"]
    until(lambda: service.call(token, f"/v1/runs/{run}")[1]["status"] == "parked", "it is parked", service.cli.logs)
    return {"task": task, "run": run, "question": question["id"]}


def still(document: Any) -> Any:
    """Return a document without what moves."""
    if isinstance(document, Mapping):
        return {name: still(value) for name, value in document.items() if name not in MOVING}
    return [still(one) for one in document] if isinstance(document, list) else document


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


async def by_tool(service: Service, token: str, tool: str, **given: Any) -> Any:
    """Return what an MCP tool answers over HTTP: its document, or its words when it refuses."""
    async with mcp_client(service, token) as client:
        result = await client.call_tool(tool, given)
        return text_of(result) if result.is_error else result.structured_content


@pytest.mark.spec("OPS-01")
@pytest.mark.parametrize("name", READS)
async def test_every_interface_reads_the_same(service: Service, ids: Mapping[str, str], name: str) -> None:
    read, token = READS[name].of(ids), service.token("local", "read", "approve")
    status, document = service.call(token, read.path)
    assert status == 200

    assert still(by_socket(service, "GET", read.path)) == still(document)
    if read.tool:
        assert still(await by_tool(service, token, read.tool, **read.given)) == still(document)
    listed = document["items"] if read.is_list else document
    rows_alone = {"SOONG_DATABASE_URL": f"sqlite:///{service.cli.home / 'soong.db'}"}
    for environment in ({}, ELSEWHERE, rows_alone) if read.words else ():
        assert still(printed(service, read.words, environment)) == still(listed)
    if name == "result":
        async with Soong.embedded(agent_home=service.cli.home) as soong:
            assert (await soong.task(ids["task"]).details()).model_dump(mode="json") == document


@pytest.mark.spec("OPS-01")
@pytest.mark.parametrize("name", [name for name in READS if "{" in READS[name].path])
async def test_a_wrong_id_is_refused_in_the_same_words(service: Service, name: str) -> None:
    read, token = READS[name].of(WRONG), service.token("reader", "read")
    status, refusal = service.call(token, read.path)
    assert (status, refusal["code"]) == (404, "not_found")

    assert by_socket(service, "GET", read.path) == refusal
    if read.tool:
        assert refusal["detail"] in await by_tool(service, token, read.tool, **read.given)
    for environment in ({}, ELSEWHERE) if read.words else ():
        told = printed(service, read.words, environment)
        assert (told["error"]["message"], told["exit_code"]) == (refusal["detail"], 2)
    if name == "result":
        async with Soong.embedded(agent_home=service.cli.home) as soong:
            with pytest.raises(NotFoundError, match=re.escape(refusal["detail"])):
                await soong.task(WRONG["task"]).details()


@pytest.mark.spec("OPS-01", "OPS-04")
@pytest.mark.parametrize("by", ["http", "socket", "tool", "command", "sdk"])
async def test_every_interface_acts_alike(service: Service, by: str) -> None:
    token = service.token("local", "read", "run")
    body = {"plan": WAITS, "project": str(service.cli.folder)}
    task = service.call(token, "/v1/tasks", body)[1]["task"]["id"]

    for act, status in ACTS.items():
        path, answer = f"/v1/tasks/{task}/{act}", None
        if by == "http":
            answer = service.call(token, path, {})[1]
        elif by == "socket":
            answer = by_socket(service, "POST", path, {})
        elif by == "tool":
            answer = await by_tool(service, token, f"{act}_task", task=task)
        elif by == "command":
            words = ("resume", task, "--detach") if act == "resume" else ("tasks", act, task)
            assert service.cli.run(*words).returncode == 0
        else:
            async with Soong.embedded(agent_home=service.cli.home) as soong:
                await getattr(soong.task(task), act)()
        shown = service.call(token, f"/v1/tasks/{task}")[1]
        assert shown["status"] == status
        if answer is not None:
            assert answer == {name: shown[name] for name in answer}
    again = service.call(token, f"/v1/tasks/{task}/pause", {})[1]
    assert again["code"] == "conflict"
    assert by_socket(service, "POST", f"/v1/tasks/{task}/pause", {}) == again
    assert again["detail"] in await by_tool(service, token, "pause_task", task=task)
    assert again["detail"] in service.cli.run("tasks", "pause", task).stderr


@pytest.fixture(scope="module")
def http() -> Iterator[Service]:
    """A service that stays, with the API beside it, for all tests here."""
    with http_service() as one:
        yield one


@pytest.mark.spec("OPS-04.c", "PER-13", "CARD-3")
def test_a_write_is_asked_and_answered_over_http_and_the_task_is_done(http: Service) -> None:
    """Human in the loop had no endpoint elsewhere (crewAIInc/crewAI#330, #1774, #3034)."""
    project = http.cli.folder / "project"
    project.mkdir()
    runner, approver = http.token("ada", "run"), http.token("bob", "approve")
    submission = {"plan": writes("note.txt"), "project": str(project)}

    status, submitted = http.call(runner, "/v1/tasks", submission)
    _, waiting = http.call(approver, "/v1/approvals?wait=55")
    (question,) = waiting["items"]
    answer = {"choice": "allow_once", "input_digest": question["input_digest"], "reason": "go on"}
    path = f"/v1/approvals/{question['id']}/answer"
    refused = http.call(runner, path, answer)
    answered = http.call(approver, path, answer)
    again = http.call(approver, path, answer)
    task = f"/v1/tasks/{submitted['task']['id']}"
    until(lambda: http.call(runner, task)[1]["status"] == "completed", "the task is done", http.cli.logs)

    assert status == 201
    assert question["target"]["shown"] == str(project / "note.txt")
    assert (refused[0], refused[1]["code"]) == (403, "forbidden")
    assert (answered[0], answered[1]["decision"]["principal"]) == (200, "bob")
    assert (again[0], again[1]["code"], again[1]["by"]) == (409, "already_decided", "bob")
    assert (project / "note.txt").read_text() == "hello"
    assert http.call(runner, f"{task}/result")[1]["denials"] == []


@pytest.mark.spec("PER-13", "EVT-05")
def test_no_process_of_the_service_knows_a_token(http: Service) -> None:
    text = http.token("ada", "approve")
    assert http.call(text, "/v1/me")[0] == 200

    secret = text[-43:]
    told = [
        word
        for process in http.cli.processes()
        for word in (*process.cmdline(), *process.environ().values())
        if secret in word
    ]
    files = [path for path in http.cli.home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]

    assert not told
    assert not files


def test_the_api_is_started_again_on_the_same_socket(http: Service) -> None:
    api = http.api()

    api.kill()

    until(lambda: not api.is_running(), "it is gone")
    until(http.is_answering, "another answers on the same port", http.cli.logs)
    assert http.api().pid != api.pid


def test_a_taken_port_is_said_before_anything_is_started(http: Service) -> None:
    with scene(home="other") as other:
        done = other.run("up", "--http", str(http.port))

        assert done.returncode == 1  # not a wrong use: what supervises the service tries again
        assert f"cannot listen on 127.0.0.1 port {http.port}: another program listens there" in done.stderr
        assert not (other.home / "soong.db").exists()


def test_the_api_serves_a_running_service_from_a_process_of_its_own(http: Service) -> None:
    serve = http.cli.start_forked("serve", "--port", "0")
    until(lambda: "\n" in serve.streams[1].read_text(), "its address is said")
    url = serve.streams[1].read_text().split()[2]

    with urllib.request.urlopen(f"{url}health", timeout=30) as response:
        told = json.loads(response.read())
    serve.terminate()
    serve.wait(30)

    assert told == {"status": "ok"}
    assert serve.returncode == 0


@pytest.mark.spec("OPS-04")
def test_the_examples_of_the_document_are_what_happens(http: Service, tmp_path: Path) -> None:
    for program in ("curl", "jq"):
        if shutil.which(program) is None:
            missing(f"there is no {program}")
    text = (ROOT / "docs" / "reference" / "api.md").read_text().replace("127.0.0.1:8437", f"127.0.0.1:{http.port}")
    (sitting,) = sittings(text)
    folder = tmp_path / "project"
    folder.mkdir()
    header = folder / "header"
    header.write_text(f"Authorization: Bearer {http.token('ada', 'run', 'approve')}\n")
    header.chmod(0o600)

    done = perform(sitting, tmp_path)

    assert len(done) == len(sitting.commands)
    wrong = [(command.line, said) for command, said in done if not agrees(command.expected, said)]
    assert not wrong
