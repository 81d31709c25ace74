"""Hostile plans and requests: bombs, and files that a token may not read."""

import json
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.scripted import call, calls
from tests.scripted import calls as made
from tests.security.plan_bombs import SHAPES
from tests.system.cli_scene import CliHarness, scene
from tests.system.http_scene import Service, http_service

pytestmark = pytest.mark.timeout(300)

FUNCTIONS = """
from pathlib import Path

from soong import step


@step(name="ours.write")
def write(**inputs):
    Path(inputs["path"]).write_text(inputs["text"])
"""


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        (one.folder / "ours.py").write_text(FUNCTIONS)
        yield one


def plan_of(cli: CliHarness, *steps: dict[str, Any], **more: Any) -> str:
    return cli.plan(json.dumps({"title": "Hostile", "steps": list(steps), **more}), "plan.json")


ECHO = {"id": "echo", "kind": "python", "call": "builtin.echo"}


@pytest.mark.spec("OPS-12.a")
def test_it_calls_every_function_of_the_deployment_with_any_inputs_and_nobody_is_asked(cli: CliHarness) -> None:
    written = cli.folder / "by-a-function.txt"
    inputs = {"path": str(written), "text": "chosen by the plan"}
    cli.environment["SOONG_FUNCTIONS"] = "ours"

    done = cli.json("run", plan_of(cli, {**ECHO, "call": "ours.write", "inputs": inputs}), "--approvals", "deny")

    assert (done["exit_code"], done["denials"]) == (0, [])
    assert written.read_text() == "chosen by the plan"


@pytest.mark.spec("PER-02", "PER-17", "OPS-12.a")
def test_what_it_says_that_it_asks_for_is_no_consent(cli: CliHarness) -> None:
    out = cli.folder / "out"
    out.mkdir()
    step = {
        "id": "write",
        "allowed_tools": ["code.write_file"],
        **calls(call("code.write_file", path=str(out / "evil.txt"), content="x")),
    }

    done = cli.json("run", plan_of(cli, {**step, "permissions": {"write": [str(out)]}}), "--approvals", "deny")

    assert done["exit_code"] == 3
    assert [denial["step"] for denial in done["denials"]] == ["write"]
    assert list(out.iterdir()) == []


@pytest.mark.spec("OPS-12.a")
@pytest.mark.parametrize("call", ["os.system", "ours.write"])
def test_it_calls_nothing_that_the_deployment_does_not_name(cli: CliHarness, call: str) -> None:
    written = cli.folder / "written"
    inputs = {"command": f"touch {written}", "path": str(written), "text": "x"}

    done = cli.run("run", plan_of(cli, {**ECHO, "call": call, "inputs": inputs}), "--approvals", "deny")

    assert done.returncode == 1
    assert call in done.stderr
    assert "the task is paused" in done.stderr
    assert cli.step_statuses() == {"echo": "ready"}
    assert not written.exists()


@pytest.mark.spec("OPS-12.a")
@pytest.mark.parametrize("place", ["plan", "step"])
def test_it_brings_no_rule_no_hook_no_folder_and_no_setting(cli: CliHarness, place: str) -> None:
    names = ("allow", "policy", "hooks", "project", "cwd", "env", "functions", "roots")
    fields = {key: ["code.write_file:/"] for key in names}
    plan = plan_of(cli, {**ECHO, **fields}) if place == "step" else plan_of(cli, ECHO, **fields)

    done = cli.run("run", plan)

    assert done.returncode == 2
    refused = [line for line in done.stderr.splitlines() if "unknown field" in line or "no such field" in line]
    assert [name for name in names if not any(name in line for line in refused)] == []


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


@pytest.mark.spec("OPS-12")
@pytest.mark.parametrize("is_text", [True, False], ids=["text", "object"])
def test_a_reader_of_plans_is_answered_and_the_api_lives_on_whatever_it_sends(
    service: Service, api: psutil.Process, is_text: bool
) -> None:
    reader, before = service.token("eve", "read"), peak(api)
    shapes = ("empty objects", "unknown dependencies", "unknown references")
    bodies = [body_of(shape, is_text=is_text) for shape in shapes]

    with ThreadPoolExecutor(len(bodies)) as senders:
        answers = list(senders.map(lambda body: validate(service, reader, body), bodies))

    assert [status for status, _ in answers] == [422] * len(answers)
    assert all(len(json.dumps(document)) < 64 * 1024 for _, document in answers)
    assert all(1 <= len(document["errors"]) <= 50 for _, document in answers)
    assert api.is_running()
    assert api.pid == service.api().pid
    assert peak(api) - before < HELD


@pytest.mark.spec("OPS-12")
def test_a_small_plan_does_not_wait_for_large_ones(service: Service, api: psutil.Process) -> None:
    reader = service.token("eve", "read")
    large, small = body_of("deep numbers", is_text=True), {"plan": {"title": "t", "steps": []}}

    with ThreadPoolExecutor(2) as senders:
        waiting = [senders.submit(validate, service, reader, large) for _ in range(2)]
        status, _ = validate(service, reader, small)
        were_waiting = [one for one in waiting if not one.done()]

    assert status == 422
    assert were_waiting
    assert api.is_running()


# -- plans that are run
GOOD: dict[str, Any] = {"title": "good", "steps": [{"id": "e", "kind": "python", "call": "builtin.echo"}]}


@pytest.mark.spec("OPS-12")
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


PRIVATE = "another project's private text"


def reads(*calls: dict[str, Any]) -> dict[str, Any]:
    """Return a plan whose steps make one call each."""
    steps = [
        {"id": f"s{number}", "allowed_tools": [call["call"]], **made(call, output="done")}
        for number, call in enumerate(calls)
    ]
    return {"title": "Reads", "steps": steps}


def file_call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"call": f"code.{tool}", "with": arguments}


def ended(service: Service, token: str, plan: dict[str, Any], project: Path) -> tuple[str, dict[str, Any]]:
    """Submit a plan that nobody answers for; return all that its runs were told, and its result."""
    path = service.submit(token, plan, project=project, approval_mode="deny")
    runs = [step["run"] for step in service.ended(token, path)["steps"].values()]
    nodes = [service.call(token, f"/v1/runs/{run}/{what}")[1] for run in runs for what in ("nodes", "events")]
    return json.dumps(nodes), service.call(token, f"{path}/result")[1]


@pytest.fixture(scope="module")
def other(service: Service) -> Path:
    """A project that the token has nothing to do with."""
    folder = service.project("other")
    (folder / "private.txt").write_text(PRIVATE)
    return folder


@pytest.mark.spec("FS-06", "PER-02", "OPS-12.a")
def test_a_run_token_reads_its_project_and_nothing_else_of_the_workers_user(service: Service, other: Path) -> None:
    project = service.project("mine")
    (project / "mine.txt").write_text("what it may read")
    (project / "link.txt").symlink_to(other / "private.txt")
    (project / "folder").symlink_to(other)
    outside = [
        file_call("read_file", path=str(other / "private.txt")),
        file_call("read_file", path="../other/private.txt"),
        file_call("read_file", path="link.txt"),
        file_call("read_file", path="folder/private.txt"),
        file_call("read_file", path="/etc/shadow"),
        file_call("read_file", path="/etc/passwd"),
        file_call("read_file", path=str(service.cli.home / "logs" / "redis.log")),
        file_call("list_dir", path=str(other)),
        file_call("list_dir", path="/", recursive=True),
        file_call("search", query="private", path=str(other)),
        file_call("search", query="private", path=str(service.cli.folder)),
    ]
    inside = [
        file_call("read_file", path="mine.txt"),
        file_call("list_dir", path=".", recursive=True),
        file_call("search", query="may read", path="."),
    ]

    told, result = ended(service, service.token("eve", "run"), reads(*outside, *inside), project)

    assert PRIVATE not in told
    assert "root:" not in told
    assert told.count("what it may read") >= 2
    refused = {denial["step"]: denial["error"] for denial in result["denials"]}
    assert refused == {f"s{number}": "permission_no_callback" for number in range(len(outside))}


@pytest.mark.spec("FS-06", "PER-02", "OPS-12.a")
def test_a_person_reads_what_lies_below_the_folder_of_their_command(service: Service, other: Path) -> None:
    plan = service.cli.plan(json.dumps(reads(file_call("read_file", path=str(other / "private.txt")))), "reads.json")

    done = service.cli.json("run", plan, "--project", str(service.project("own")))

    assert (done["exit_code"], done["denials"]) == (0, [])


@pytest.mark.spec("FS-06", "PER-02", "OPS-12.a")
def test_configured_read_roots_are_open_within_the_projects_that_are_named(tmp_path: Path) -> None:
    shared, away, project = (tmp_path / name for name in ("shared", "away", "project"))
    for folder in (shared, away, project):
        folder.mkdir()
        (folder / "text.txt").write_text(f"text of {folder.name}")
    config = f'[paths]\nread_roots = ["{shared}", "{away}"]\n'
    plan = reads(*(file_call("read_file", path=str(folder / "text.txt")) for folder in (shared, away)))

    with http_service(config, SOONG_HTTP_PROJECTS=f"{project},{shared}") as one:
        told, result = ended(one, one.token("eve", "run"), plan, project)
        own = one.cli.json("run", one.cli.plan(json.dumps(plan), "reads.json"), "--project", str(project))
    with http_service(config) as one:
        everywhere, _ = ended(one, one.token("eve", "run"), plan, project)

    assert "text of shared" in told
    assert "text of away" not in told
    assert [denial["step"] for denial in result["denials"]] == ["s1"]
    assert own["denials"] == []  # the person who configured both roots reads both
    assert "text of away" in everywhere
