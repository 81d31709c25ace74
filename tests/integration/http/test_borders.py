"""What the API refuses before anything is looked at: bad input 63 of the threat list, each case by itself."""

import asyncio
import json
import socket
from contextlib import ExitStack

import pytest
from structlog.testing import capture_logs

from soong.orchestrator.operations.context import Limits
from tests.integration.http.conftest import OpenScene
from tests.integration.http.scene import BOB, HttpHarness, code_of
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("OPS-04", "PER-13")]


async def sessions(scene: HttpHarness) -> int:
    """Count what a request could have changed."""
    return len(await scene.bench.store.sessions.session_page(include_closed=True)) + len(
        await scene.bench.store.tasks.list_tasks()
    )


def status_of(said: bytes) -> int:
    return int(said.split(b" ", 2)[1]) if said else 0


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.com"}, "host_not_allowed"),
        ({"Host": "127.0.0.1.evil.com"}, "host_not_allowed"),
        ({"Host": "evil.com:80@localhost"}, "host_not_allowed"),
        ({"Host": "2130706433"}, "host_not_allowed"),
        ({"Origin": "http://evil"}, "origin_not_allowed"),
        ({"Origin": "null"}, "origin_not_allowed"),
        ({"Origin": "https://localhost.evil.com"}, "origin_not_allowed"),
        ({"Origin": "http://localhost:1"}, "origin_not_allowed"),
        ({"Sec-Fetch-Site": "cross-site"}, "origin_not_allowed"),
        ({"Sec-Fetch-Site": "same-site"}, "origin_not_allowed"),
        ({"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}, "upgrade_not_allowed"),
    ],
    ids=[
        *("evil host", "our name before another", "host with a user", "loopback as a number", "evil origin"),
        *("null origin", "origin that begins like ours", "another port of this machine", "image of another page"),
        *("page of a sister site", "WebSocket without Origin"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_request_from_elsewhere_changes_nothing(
    scene: HttpHarness, method: str, headers: dict[str, str], code: str
) -> None:
    before = await sessions(scene)

    response = await scene.caller.request(method, "/v1/tasks", headers=headers, json={"plan": {}, "project": "/"})

    assert response.status_code == 403
    assert code_of(response) == code
    assert await sessions(scene) == before


async def test_a_page_of_our_own_origin_may_call(scene: HttpHarness) -> None:
    response = await scene.caller.get("/v1/me", headers={"Origin": scene.address, "Sec-Fetch-Site": "same-origin"})

    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers


async def test_pages_of_an_allowed_origin_may_call_and_no_others(open_http: OpenScene) -> None:
    page = "https://console.example"
    async with open_http(http_origins=(page,)) as scene:
        allowed = await scene.caller.get("/v1/me", headers={"Origin": page})
        asked = {"Origin": page, "Access-Control-Request-Method": "POST"}
        preflight = await scene.with_token("").options("/v1/tasks", headers=asked)
        other = await scene.caller.get("/v1/me", headers={"Origin": "https://evil.example"})
        evil = await scene.with_token("").options("/v1/tasks", headers={**asked, "Origin": "https://evil.example"})

    assert allowed.headers["access-control-allow-origin"] == page
    assert "access-control-allow-credentials" not in allowed.headers
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == page
    assert code_of(other) == code_of(evil) == "origin_not_allowed"


async def test_without_configured_origins_a_preflight_is_a_request_like_others(scene: HttpHarness) -> None:
    asked = {"Origin": scene.address, "Access-Control-Request-Method": "POST"}

    response = await scene.with_token("").options("/v1/tasks", headers=asked)

    assert response.status_code == 401


async def test_another_name_counts_once_it_is_allowed(open_http: OpenScene) -> None:
    async with open_http(http_allow_hosts=("soong.example",)) as scene:
        named = await scene.caller.get("/v1/me", headers={"Host": "SOONG.example:8443"})
        other = await scene.caller.get("/v1/me", headers={"Host": "other.example"})

    assert named.status_code == 200
    assert code_of(other) == "host_not_allowed"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/%2e%2e/v1/tasks",
        "/v1/tasks/../sessions",
        "/v1/./tasks",
        "/v1//tasks",
        "/v1/tasks%2ftask_1",
        "//evil/v1",
        "/v1/tasks/%00",
        "/v1/tasks/%0d%0aX:1",
        "/v1/tasks\\x",
        "/v1/%252e%252e/tasks",
        "/v1/tasks/%5c..",
        "/v1/tasks/",
        "http://evil.com/v1/tasks",
    ],
)
async def test_a_path_in_disguise_is_refused(scene: HttpHarness, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    said = await scene.raw(request.encode())

    assert status_of(said) == 403
    assert b"path_not_allowed" in said


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /v1/me HTTP/1.1\r\n\r\n",
        b"GET /v1/me HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /v1/me HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"POST /v1/tasks HTTP/1.1\r\nHost:localhost\r\nContent-Length:5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["no host", "two hosts", "HTTP/1.0", "TLS", "two lengths"],
)
async def test_what_is_no_request_of_ours_is_refused_and_the_server_goes_on(
    scene: HttpHarness, request_: bytes
) -> None:
    said = await scene.raw(request_)

    assert status_of(said) in {400, 401, 403, 431}
    assert b"Traceback" not in said
    assert (await scene.caller.get("/v1/me")).status_code == 200


@pytest.mark.parametrize("how", ["cookie", "query", "basic"])
async def test_a_token_counts_in_its_header_alone(scene: HttpHarness, how: str) -> None:
    text = await scene.token()
    nobody = scene.with_token("")

    match how:
        case "cookie":
            response = await nobody.get("/v1/me", headers={"Cookie": f"token={text}; Authorization={text}"})
        case "query":
            response = await nobody.get("/v1/me", params={"access_token": text})
        case _:
            response = await nobody.get("/v1/me", headers={"Authorization": f"Basic {text}"})

    assert response.status_code == 401
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize("path", ["/v1/tasks/task_1/cancel", "/v1/sessions/sess_1/close", "/v1/approvals/req_1/answer"])
async def test_no_get_has_an_effect(scene: HttpHarness, path: str) -> None:
    response = await scene.caller.get(path)

    assert response.status_code == 405
    assert code_of(response) == "method_not_allowed"
    assert response.headers["allow"] == "POST"


async def test_a_body_that_does_not_say_its_length_is_cut_off(open_http: OpenScene) -> None:
    async with open_http(limits=Limits(body_bytes=100_000)) as scene:
        head = f"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {await scene.token()}\r\n"
        chunks = b"4000\r\n" + b" " * 16_384 + b"\r\n"

        said = await scene.raw(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks * 7)

    assert status_of(said) == 413
    assert b"body_too_large" in said


async def test_a_body_without_a_token_is_not_read(scene: HttpHarness) -> None:
    head = (
        "POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    )

    said = await scene.raw(head.encode())

    assert status_of(said) == 401


async def test_a_slow_body_is_not_waited_for(open_http: OpenScene) -> None:
    async with open_http(limits=Limits(body_s=0.2)) as scene:
        head = f"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {await scene.token()}\r\n"

        said = await scene.raw(f"{head}Content-Length: 100\r\n\r\n{{".encode())

    assert status_of(said) == 408
    assert b"body_timeout" in said


async def test_slow_headers_are_not_waited_for(open_http: OpenScene) -> None:
    async with open_http(limits=Limits(headers_s=0.2)) as scene:
        first = await scene.raw(b"GET /v1/me HTTP/1.1\r\nHost: loc")
        second = await scene.raw(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/hea")

    assert first == b""
    assert second.count(b"HTTP/1.1 200") == 1


async def test_connections_beyond_the_bound_are_closed_and_the_others_served(open_http: OpenScene) -> None:
    async with open_http(limits=Limits(connections=8)) as scene:
        assert (await scene.caller.get("/v1/health")).status_code == 200
        with ExitStack() as open_:
            for _ in range(40):
                open_.enter_context(socket.create_connection(("127.0.0.1", scene.port)))
            assert (await scene.caller.get("/v1/health")).status_code == 200
            assert not await is_served(scene)
        await until(lambda: is_served(scene))


async def is_served(scene: HttpHarness) -> bool:
    try:
        return bool(await scene.raw(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    except OSError:
        return False


async def test_requests_beyond_the_bound_are_asked_to_come_back(open_http: OpenScene) -> None:
    async with open_http(limits=Limits(requests=2)) as scene:
        polls = [asyncio.create_task(scene.caller.get("/v1/approvals", params={"wait": 20})) for _ in range(2)]
        await until(lambda: scene.api.streams.held.total() == 2)
        refused = await scene.caller.get("/v1/health")
        scene.api.stopping.set()
        answered = await asyncio.gather(*polls)

    assert code_of(refused) == "too_busy"
    assert int(refused.headers["retry-after"]) > 0
    assert {response.status_code for response in answered} == {200}


async def test_one_principal_does_not_take_every_stream(open_http: OpenScene) -> None:
    async with open_http(limits=Limits(streams_each=1)) as scene:
        bob = await scene.someone(BOB)
        held = asyncio.create_task(scene.caller.get("/v1/approvals", params={"wait": 20}))
        await until(lambda: bool(scene.api.streams.held))
        again = await scene.caller.get("/v1/approvals", params={"wait": 20})
        run = await scene.run_with(1)
        stream = await scene.caller.get(f"/v1/runs/{run.identity.run_id}/stream")
        other = asyncio.create_task(bob.get("/v1/approvals", params={"wait": 20}))
        await until(lambda: scene.api.streams.held.total() == 2)
        scene.api.stopping.set()

        assert code_of(again) == code_of(stream) == "too_busy"
        assert (await held).status_code == (await other).status_code == 200
    assert not scene.api.streams.held


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"plan": {}, "plan": {}, "project": "/"}', 400),
        (b'{"plan": {}, "project": "/", "inputs": {"a": NaN}}', 400),
        (b'{"plan": {}, "project": "/", "inputs": {"a": 9007199254740993}}', 400),
        (b'{"plan": ' + b"[" * 500 + b"]" * 500 + b', "project": "/"}', 400),
        (b'{"plan": "\\ud800", "project": "/"}', 400),
        (b"\xff\xfe{}", 400),
        (b"[]", 422),
        (b'{"plan": {}, "project": "/", "hidden": 1}', 422),
        (b'{"plan": {}, "project": "relative"}', 422),
        (b'{"plan": {}, "project": "/nowhere/at/all"}', 422),
        (b'{"plan": {}, "project": "/a\\u0000b"}', 422),
        (b'{"plan": {}, "project": "/tmp"}', 422),
        (b'{"plan": "steps: &a [*a]", "project": "/tmp"}', 422),
    ],
    ids=[
        *("duplicate key", "NaN", "integer that is rounded", "deep", "half a character", "no UTF-8", "no object"),
        *("unknown field", "relative project", "no such project", "NUL in a path"),
        *("empty plan", "plan that contains itself"),
    ],
)
async def test_a_body_that_is_not_what_is_read_writes_nothing(scene: HttpHarness, body: bytes, status: int) -> None:
    before = await sessions(scene)

    response = await scene.caller.post("/v1/tasks", content=body, headers={"Content-Type": "application/json"})

    assert response.status_code == status, response.text
    assert code_of(response) in {"invalid_request", "invalid_input", "invalid_plan"}
    assert await sessions(scene) == before


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_form_of_a_page_is_no_body(scene: HttpHarness, media_type: str) -> None:
    body = json.dumps({"plan": {}, "project": "/"}).encode()

    response = await scene.caller.post("/v1/tasks", content=body, headers={"Content-Type": media_type})

    assert response.status_code == 415
    assert code_of(response) == "unsupported_media_type"


async def test_a_fault_of_ours_tells_no_traceback(scene: HttpHarness) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("postgresql://soong:secret@db/soong")

    scene.api.store = _Broken(scene.bench.store, broken)  # type: ignore[assignment]
    with capture_logs() as logged:
        response = await scene.caller.get("/v1/workers")
    scene.api.store = scene.bench.store

    assert code_of(response) == "internal_error"
    assert [one["incident"] for one in logged] == [response.json()["incident"]]
    assert "secret" not in response.text
    assert "Zero" not in response.text


class _Broken:
    """A store one of whose answers is a fault."""

    def __init__(self, store: object, fault: object) -> None:
        self._store = store
        self.sessions = self
        self.workers = fault

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


async def test_every_answer_carries_the_headers_that_keep_pages_out(scene: HttpHarness) -> None:
    answers = [
        await scene.caller.get("/v1/me"),
        await scene.with_token("").get("/v1/me"),
        await scene.caller.get("/v1/nothing"),
    ]

    for response in answers:
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert response.headers["x-frame-options"] == "DENY"
        assert "server" not in response.headers
