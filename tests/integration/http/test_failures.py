"""Failures and first steps: every mistake is a problem document (RFC 9457), and pages say how to start."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from soong.orchestrator.embedded.listening import listen
from soong.orchestrator.operations.context import Limits
from soong.orchestrator.operations.problems import problem_of
from soong.shared.core.errors import SoongError, UnavailableError
from tests.integration.http.conftest import OpenScene
from tests.integration.http.scene import HttpHarness, code_of
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("OPS-04")]

PROBLEM = "application/problem+json"


def parsed(said: bytes) -> tuple[int, str, str]:
    """Return status, media type and problem code of the last response on a connection."""
    head, _, body = said.rpartition(b"\r\n\r\n")
    lines = head.rpartition(b"HTTP/1.1 ")[2].decode().split("\r\n")
    status = int(lines[0][:3])
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    document = json.loads(body)
    assert document["status"] == status
    assert headers["x-content-type-options"] == "nosniff"
    return status, headers["content-type"], document["code"]


async def head(scene: HttpHarness, start: str) -> bytes:
    """Return a request line and the headers of a caller with every right, without their end."""
    token = await scene.token()
    lines = (start, "Host: localhost", f"Authorization: Bearer {token}", "Content-Type: application/json", "")
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize(
    ("start", "rest", "status", "code"),
    [
        ("GET /v1/nothing HTTP/1.1", b"Connection: close\r\n\r\n", 404, "not_found"),
        ("BREW /v1/tasks HTTP/1.1", b"Connection: close\r\n\r\n", 405, "method_not_allowed"),
        ("PATCH /v1/me HTTP/1.1", b"Connection: close\r\n\r\n", 405, "method_not_allowed"),
        ("OPTIONS /v1/tasks HTTP/1.1", b"Connection: close\r\n\r\n", 405, "method_not_allowed"),
        ("GET /v1/me", b"\r\n", 400, "invalid_request"),
        ("GET /v1/me HTTP/1.1", b"X: " + b"a" * 70_000, 400, "invalid_request"),
        ("GET /v1/me HTTP/1.1", b"X Y: 1\r\n\r\n", 400, "invalid_request"),
        ("POST /v1/tasks HTTP/1.1", b"Content-Length: -5\r\n\r\n", 400, "invalid_request"),
        ("POST /v1/tasks HTTP/1.1", b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\n", 400, "invalid_request"),
        ("POST /v1/tasks HTTP/1.1", b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "invalid_request"),
        ("POST /v1/tasks HTTP/1.1", b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "invalid_request"),
        ("POST /v1/tasks HTTP/1.1", b"Content-Length: 99999999999\r\n\r\n", 413, "body_too_large"),
    ],
    ids=[
        *("unknown route", "unknown method", "method of no route", "OPTIONS", "no version"),
        *("long header", "header with a space", "negative length", "length of 5000 digits", "two lengths"),
        *("broken chunk", "large body"),
    ],
)
async def test_what_cannot_be_taken_is_answered_by_a_problem(
    scene: HttpHarness, start: str, rest: bytes, status: int, code: str
) -> None:
    said = await scene.raw(await head(scene, start) + rest)

    assert parsed(said) == (status, PROBLEM, code)


async def test_bytes_that_are_not_http_are_answered_by_a_problem_after_an_answer_too(scene: HttpHarness) -> None:
    said = await scene.raw(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n\x16\x03\x01\r\n\r\n")

    assert said.count(b"HTTP/1.1 200") == 1
    assert parsed(said) == (400, PROBLEM, "invalid_request")


async def test_a_preflight_that_asks_for_too_much_is_refused_by_a_problem(open_http: OpenScene) -> None:
    page = "https://console.example"
    async with open_http(http_origins=(page,)) as scene:
        asked = {"Origin": page, "Access-Control-Request-Method": "PUT"}
        refused = await scene.with_token("").options("/v1/tasks", headers=asked)

    assert code_of(refused) == "origin_not_allowed"


async def asked_for_nothing(scene: HttpHarness) -> "asyncio.Task[httpx.Response]":
    """Return a request that waits for an owner who never comes, once what it asks for is written."""
    ((claim, _),) = await scene.bench.claim()
    scene.owner.cancel()
    asked = asyncio.create_task(scene.caller.post(f"/v1/tasks/{claim.identity.task_id}/cancel"))

    async def is_written() -> bool:
        return len(await scene.bench.store.sessions.take_commands(scene.bench.ownership)) == 1

    await until(is_written)
    return asked


async def test_a_request_that_is_under_way_when_the_server_stops_is_asked_to_come_back(open_http: OpenScene) -> None:
    async with open_http(limits=Limits(stop_s=0.2)) as scene:
        asked = await asked_for_nothing(scene)
        unread = await head(scene, "POST /v1/tasks HTTP/1.1") + b"Content-Length: 100\r\n\r\n{"
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.port)
        writer.write(unread)
        await until(lambda: scene.api.requests.held.total() == 2)

        scene.stop.set()
        cut_off, half = await asked, await reader.read()
        writer.close()

        assert code_of(cut_off) == "unavailable"
        assert int(cut_off.headers["retry-after"]) > 0
        assert parsed(half) == (503, PROBLEM, "unavailable")
        assert len(await scene.bench.store.sessions.take_commands(scene.bench.ownership)) == 1


async def test_a_server_that_stops_leaves_its_port_while_it_still_answers(open_http: OpenScene) -> None:
    async with open_http(limits=Limits(stop_s=20.0)) as scene:
        asked = await asked_for_nothing(scene)

        scene.stop.set()

        async def is_free() -> bool:
            try:
                listen("127.0.0.1", scene.port, ()).close()
            except SoongError:
                return False
            return True

        await until(is_free)
        (command,) = await scene.bench.store.sessions.take_commands(scene.bench.ownership)
        await scene.bench.store.sessions.end_command(command.id)

        assert (await asked).status_code == 200


async def test_a_full_disk_is_named_and_no_host_of_a_database_is() -> None:
    full = problem_of(UnavailableError("the database did not answer: database or disk is full, at db.internal"))
    other = problem_of(UnavailableError("the database did not answer: db.internal refused"))

    assert (full.status_code, "database or disk is full" in full.detail) == (503, True)
    assert "db.internal" not in full.detail + other.detail


TYPO = {"title": "A typo", "steps": [{"id": "only", "scrpt": [{"finish": "x"}]}]}


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/tasks/task_0", "/v1/tasks/task_UPPER", "/v1/tasks/nonsense", f"/v1/tasks/task_{'0' * 65}"),
        *("/v1/tasks/task_%F0%9F%98%80", "/v1/tasks/%ED%A0%80", "/v1/tasks/x/stream", "/v1/tasks/x/result"),
        *("/v1/sessions/sess_0", "/v1/sessions/task_0", "/v1/sessions/x/stream", "/v1/runs/run_0", "/v1/runs/x"),
        *("/v1/runs/x/nodes", "/v1/runs/x/events", "/v1/runs/x/stream", "/v1/approvals/req_0", "/v1/approvals/x"),
    ],
)
async def test_what_no_row_has_as_its_id_is_not_found_whatever_its_form(scene: HttpHarness, path: str) -> None:
    response = await scene.caller.get(path)

    assert (response.status_code, code_of(response)) == (404, "not_found")


@pytest.mark.parametrize("path", ["/v1/tasks/x/cancel", "/v1/tasks/x/dispatch", "/v1/sessions/x/close"])
async def test_steering_what_is_not_there_is_not_found(scene: HttpHarness, path: str) -> None:
    response = await scene.caller.post(path, json={})

    assert (response.status_code, code_of(response)) == (404, "not_found")


def by_place(problem: dict[str, Any]) -> dict[str, str]:
    """Return the hints of a problem by place; every error has both and says what is wrong."""
    errors = problem["errors"]
    assert all(error["place"] and error["problem"] and error["hint"] for error in errors), errors
    assert len({error["place"] for error in errors}) == len(errors), errors
    return {error["place"]: error["hint"] for error in errors}


async def test_a_mistake_in_the_plan_is_reported_together_with_a_missing_field(scene: HttpHarness) -> None:
    response = await scene.caller.post("/v1/tasks", json={"plan": TYPO, "projct": "/tmp"})

    hints = by_place(response.json())
    assert code_of(response) == "invalid_input"
    assert hints["body.project"].startswith("add `project`: Absolute path")
    assert "did you mean 'project'?" in hints["body.projct"]
    assert any("did you mean 'script'?" in hint for place, hint in hints.items() if place.startswith("plan"))


async def test_fields_plan_inputs_rules_and_project_are_reported_together(scene: HttpHarness, tmp_path: Path) -> None:
    plan = {"title": "T", "inputs": {"name": {"type": "string"}}, "steps": [{"id": "a", "script": "builtin.echo"}]}
    wrong = {"plan": plan, "inputs": {"nme": "Ada"}, "project": str(tmp_path / "no"), "allow": ["code.*:/", "x"]}

    for path in ("/v1/tasks", "/v1/tasks/preview"):
        response = await scene.caller.post(path, json=wrong)

        places = by_place(response.json())
        assert code_of(response) == "invalid_input"
        assert places.keys() == {"body.project", "body.allow.0", "body.allow.1", "input 'nme'", "input 'name'"}


async def test_a_wrong_plan_alone_is_an_invalid_plan(scene: HttpHarness, tmp_path: Path) -> None:
    for path, more in (("/v1/tasks", {"project": str(tmp_path)}), ("/v1/tasks/validate", {})):
        response = await scene.caller.post(path, json={"plan": TYPO, **more})

        assert code_of(response) == "invalid_plan"
        assert by_place(response.json())


@pytest.mark.parametrize(
    ("body", "hints"),
    [
        ({"plan": 1, "project": "/"}, {"body.plan": "send an object, or send a string"}),
        ({"plan": TYPO, "project": 1}, {"body.project": "send a string"}),
        ({"plan": TYPO, "project": "/" * 5_000}, {"body.project": "send at most 4096 characters"}),
        ({"plan": TYPO, "project": "/" + "a" * 300}, {"body.project": "write the absolute path of a folder"}),
        ({"plan": TYPO, "project": "/", "allow": "x"}, {"body.allow": "send an array"}),
        ({"plan": TYPO, "project": "/", "allow": ["x"] * 101}, {"body.allow": "send at most 100 entries"}),
        (
            {"plan": TYPO, "project": "/", "approval_mode": "me"},
            {"body.approval_mode": "write 'inbox', 'prompt' or 'deny'"},
        ),
        (
            {"plan": TYPO, "project": "/", "step_grants": [{"step": "a", "grant_digst": "x"}]},
            {
                "body.step_grants.0.grant_digst": "remove it; did you mean 'grant_digest'?",
                "body.step_grants.0.grant_digest": "add `grant_digest`: `grant_digest` of the step as it was shown.",
            },
        ),
    ],
    ids=["plan", "type", "long", "long name", "no list", "long list", "mode", "nested"],
)
async def test_every_wrong_field_says_what_to_do(
    scene: HttpHarness, body: dict[str, Any], hints: dict[str, str]
) -> None:
    response = await scene.caller.post("/v1/tasks", json=body)

    told = by_place(response.json())
    assert response.status_code == 422
    assert {place: told[place][: len(hint)] for place, hint in hints.items()} == hints


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("limit=100000", "send a number that is at most 200"),
        ("limit=0", "send a number that is at least 1"),
        ("limit=many", "send an integer"),
        ("limit=1&limit=2", "give it once"),
        ("sesion=x", "remove it; this path takes cursor, limit, session, since, status, tag, title"),
    ],
)
async def test_every_wrong_parameter_says_what_to_do(scene: HttpHarness, query: str, hint: str) -> None:
    response = await scene.caller.get(f"/v1/tasks?{query}")

    assert list(by_place(response.json()).values()) == [hint]


async def test_the_root_leads_somewhere_without_a_token_and_loads_nothing_from_elsewhere(scene: HttpHarness) -> None:
    browser = scene.with_token("", **{"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"})

    moved = await browser.get("/docs")
    page = await browser.get(moved.headers["location"])
    (link,) = re.findall(r'href="([^"]+)"', page.text)

    assert (moved.status_code, page.status_code) == (307, 200)
    assert page.headers["content-type"].startswith("text/html")
    assert "soong tokens create --principal NAME --right read &gt; token\ncurl -H" in page.text
    assert f"{scene.address}/v1/me" in page.text
    assert "POST /v1/tasks/{task_id}/cancel" in page.text
    assert not re.search(r"<script|<link|<img|src=|url\(|https?://(?!127)", page.text)
    assert (await browser.get(link, headers={"Sec-Fetch-Site": "same-origin"})).json()["openapi"].startswith("3.1")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "sandbox allow-same-origin" in policy  # without it the browser would name the link's origin as another's
    assert "allow-scripts" not in policy
