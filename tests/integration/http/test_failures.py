"""Every failure is a problem document (RFC 9457): bytes that are not HTTP, unknown routes, a server that stops."""

import asyncio
import json

import httpx
import pytest

from soong.orchestrator.embedded.listening import listen
from soong.orchestrator.operations.context import Limits
from soong.shared.core.errors import SoongError
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
