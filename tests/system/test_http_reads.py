"""What the tasks of a token read: its project and what the operator names, over real HTTP against a real service."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scripted import calls as made
from tests.system.http_scene import Service, http_service

pytestmark = pytest.mark.spec("FS-06", "PER-02", "OPS-12.a")

PRIVATE = "another project's private text"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with http_service() as one:
        yield one


def reads(*calls: dict[str, Any]) -> dict[str, Any]:
    """Return a plan whose steps make one call each."""
    steps = [
        {"id": f"s{number}", "allowed_tools": [call["call"]], **made(call, output="done")}
        for number, call in enumerate(calls)
    ]
    return {"title": "Reads", "steps": steps}


def call(tool: str, **arguments: Any) -> dict[str, Any]:
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


def test_a_run_token_reads_its_project_and_nothing_else_of_the_workers_user(service: Service, other: Path) -> None:
    project = service.project("mine")
    (project / "mine.txt").write_text("what it may read")
    (project / "link.txt").symlink_to(other / "private.txt")
    (project / "folder").symlink_to(other)
    outside = [
        call("read_file", path=str(other / "private.txt")),
        call("read_file", path="../other/private.txt"),
        call("read_file", path="link.txt"),
        call("read_file", path="folder/private.txt"),
        call("read_file", path="/etc/shadow"),
        call("read_file", path="/etc/passwd"),
        call("read_file", path=str(service.cli.home / "logs" / "redis.log")),
        call("list_dir", path=str(other)),
        call("list_dir", path="/", recursive=True),
        call("search", query="private", path=str(other)),
        call("search", query="private", path=str(service.cli.folder)),
    ]
    inside = [
        call("read_file", path="mine.txt"),
        call("list_dir", path=".", recursive=True),
        call("search", query="may read", path="."),
    ]

    told, result = ended(service, service.token("eve", "run"), reads(*outside, *inside), project)

    assert PRIVATE not in told
    assert "root:" not in told
    assert told.count("what it may read") >= 2
    refused = {denial["step"]: denial["error"] for denial in result["denials"]}
    assert refused == {f"s{number}": "permission_no_callback" for number in range(len(outside))}


def test_a_person_reads_what_lies_below_the_folder_of_their_command(service: Service, other: Path) -> None:
    plan = service.cli.plan(json.dumps(reads(call("read_file", path=str(other / "private.txt")))), "reads.json")

    done = service.cli.json("run", plan, "--project", str(service.project("own")))

    assert (done["exit_code"], done["denials"]) == (0, [])


def test_configured_read_roots_are_open_within_the_projects_that_are_named(tmp_path: Path) -> None:
    shared, away, project = (tmp_path / name for name in ("shared", "away", "project"))
    for folder in (shared, away, project):
        folder.mkdir()
        (folder / "text.txt").write_text(f"text of {folder.name}")
    config = f'[paths]\nread_roots = ["{shared}", "{away}"]\n'
    plan = reads(*(call("read_file", path=str(folder / "text.txt")) for folder in (shared, away)))

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
