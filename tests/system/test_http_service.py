import json
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.document_examples import agrees, perform, sittings
from tests.extra import missing
from tests.spec_document import ROOT
from tests.system.cli_scene import scene, until
from tests.system.http_scene import Service, http_service

WRITE = """
title: A note
steps:
  - id: write
    allowed_tools: [code.write_file]
    script: builtin.calls
    inputs: {calls: [{call: code.write_file, with: {path: %s, content: hello}}]}
"""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """A service that stays, with the API beside it, for all tests here."""
    with http_service() as one:
        yield one


@pytest.mark.spec("OPS-04.c", "PER-13", "CARD-3")
def test_a_write_is_asked_and_answered_over_http_and_the_task_is_done(service: Service) -> None:
    """Human in the loop had no endpoint elsewhere (crewAIInc/crewAI#330, #1774, #3034)."""
    project = service.cli.folder / "project"
    project.mkdir()
    runner, approver = service.token("ada", "run"), service.token("bob", "approve")
    submission = {"plan": WRITE % "note.txt", "project": str(project)}

    status, submitted = service.call(runner, "/v1/tasks", submission)
    _, waiting = service.call(approver, "/v1/approvals?wait=55")
    (question,) = waiting["items"]
    answer = {"choice": "allow_once", "input_digest": question["input_digest"], "reason": "go on"}
    path = f"/v1/approvals/{question['id']}/answer"
    refused = service.call(runner, path, answer)
    answered = service.call(approver, path, answer)
    again = service.call(approver, path, answer)
    task = f"/v1/tasks/{submitted['task']['id']}"
    until(lambda: service.call(runner, task)[1]["status"] == "completed", "the task is done", service.cli.logs)

    assert status == 201
    assert question["target"]["shown"] == str(project / "note.txt")
    assert (refused[0], refused[1]["code"]) == (403, "forbidden")
    assert (answered[0], answered[1]["decision"]["principal"]) == (200, "bob")
    assert (again[0], again[1]["code"], again[1]["by"]) == (409, "already_decided", "bob")
    assert (project / "note.txt").read_text() == "hello"
    assert service.call(runner, f"{task}/result")[1]["denials"] == []


@pytest.mark.spec("PER-13", "EVT-05")
def test_no_process_of_the_service_knows_a_token(service: Service) -> None:
    text = service.token("ada", "approve")
    assert service.call(text, "/v1/me")[0] == 200

    secret = text[-43:]
    told = [
        word
        for process in service.cli.processes()
        for word in (*process.cmdline(), *process.environ().values())
        if secret in word
    ]
    files = [path for path in service.cli.home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]

    assert not told
    assert not files


def test_the_api_is_started_again_on_the_same_socket(service: Service) -> None:
    api = service.api()

    api.kill()

    until(lambda: not api.is_running(), "it is gone")
    until(service.is_answering, "another answers on the same port", service.cli.logs)
    assert service.api().pid != api.pid


def test_a_taken_port_is_said_before_anything_is_started(service: Service) -> None:
    with scene(home="other") as other:
        done = other.run("up", "--http", str(service.port))

        assert done.returncode == 1  # not a wrong use: what supervises the service tries again
        assert f"cannot listen on 127.0.0.1 port {service.port}: another program listens there" in done.stderr
        assert not (other.home / "soong.db").exists()


def test_the_api_serves_a_running_service_from_a_process_of_its_own(service: Service) -> None:
    serve = service.cli.start("serve", "--port", "0")
    assert serve.stderr is not None
    url = serve.stderr.readline().split()[2]

    with urllib.request.urlopen(f"{url}health", timeout=30) as response:
        told = json.loads(response.read())
    serve.send_signal(signal.SIGTERM)
    serve.communicate(timeout=30)

    assert told == {"status": "ok"}
    assert serve.returncode == 0


@pytest.mark.spec("OPS-04")
def test_the_examples_of_the_document_are_what_happens(service: Service, tmp_path: Path) -> None:
    for program in ("curl", "jq"):
        if shutil.which(program) is None:
            missing(f"there is no {program}")
    text = (ROOT / "docs" / "reference" / "api.md").read_text().replace("127.0.0.1:8437", f"127.0.0.1:{service.port}")
    (sitting,) = sittings(text)
    folder = tmp_path / "project"
    folder.mkdir()
    header = folder / "header"
    header.write_text(f"Authorization: Bearer {service.token('ada', 'run', 'approve')}\n")
    header.chmod(0o600)

    done = perform(sitting, tmp_path)

    assert len(done) == len(sitting.commands)
    wrong = [(command.line, said) for command, said in done if not agrees(command.expected, said)]
    assert not wrong
