"""Tokens and peers: which count on the wire, and which process holds a connection of this machine (PER-13)."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from soong.orchestrator.http.app import _routes, right_of, routes_of
from soong.orchestrator.operations.authentication import MOST_FAILURES, Peers
from soong.orchestrator.operations.context import Limits
from soong.shared.permissions.access.token import IMPLIED, Right
from soong.shared.sandbox.family import HAS_MARK
from tests.integration.http.conftest import OpenScene
from tests.integration.http.scene import BOB, HttpHarness, code_of
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.spec("OPS-04", "PER-13")
async def test_a_wrong_secret_and_an_unknown_id_are_reported_alike(scene: HttpHarness) -> None:
    text = await scene.token()
    wrong = text[:-1] + ("A" if text[-1] != "A" else "B")
    unknown = "soong_tok_" + "0" * 32 + "_" + "a" * 43

    refused = [await scene.with_token(one).get("/v1/me") for one in (wrong, unknown, "nonsense")]

    assert {response.text for response in refused} == {refused[0].text}
    assert refused[0].status_code == 401
    assert 'error="invalid_token"' in refused[0].headers["www-authenticate"]


@pytest.mark.spec("OPS-04", "PER-13")
async def test_expired_and_revoked_tokens_are_reported_to_who_holds_them(scene: HttpHarness) -> None:
    clock = scene.bench.clock
    expiring = scene.with_token(await scene.token(expires_us=clock.now_us() + 1_000_000))
    text = await scene.token()
    revoked = scene.with_token(text)
    assert (await expiring.get("/v1/me")).status_code == (await revoked.get("/v1/me")).status_code == 200

    clock.advance(timedelta(seconds=2))
    await scene.bench.store.access.revoke_token(text[6:36], now_us=clock.now_us())
    late, gone = await expiring.get("/v1/me"), await revoked.get("/v1/me")

    assert late.status_code == gone.status_code == 401
    assert "expired" in late.json()["detail"]
    assert "revoked" in gone.json()["detail"]


@pytest.mark.spec("OPS-04", "PER-13")
async def test_too_many_wrong_tokens_are_slowed_and_a_good_one_still_passes(open_http: OpenScene) -> None:
    async with open_http() as scene:
        guesser = scene.with_token("soong_tok_" + "0" * 32 + "_" + "a" * 43)

        codes = [code_of(await guesser.get("/v1/me")) for _ in range(MOST_FAILURES + 2)]
        slowed = await guesser.get("/v1/me")
        good = await scene.caller.get("/v1/me")
        scene.bench.clock.advance(timedelta(minutes=2))
        later = await guesser.get("/v1/me")

    assert codes == ["unauthenticated"] * MOST_FAILURES + ["rate_limited"] * 2
    assert slowed.status_code == 429
    assert 0 < int(slowed.headers["retry-after"]) <= 61
    assert good.status_code == 200
    assert code_of(later) == "unauthenticated"


@pytest.mark.spec("OPS-04", "PER-13")
async def test_no_token_is_logged(scene: HttpHarness) -> None:
    text = await scene.token(BOB, [Right.READ])
    wrong = text[:-2] + "zz"

    with capture_logs() as logged:
        await scene.with_token(wrong).get("/v1/me")
        await scene.with_token(text).post("/v1/tasks", json={"plan": {}, "project": "/"})

    said = {one["event"] for one in logged}
    assert {event for event in said if event.startswith("http_")} == {"http_token_refused", "http_forbidden"}
    assert text[-43:] not in str(logged)
    assert wrong[-43:] not in str(logged)


@pytest.mark.spec("OPS-04", "PER-13")
async def test_a_stream_ends_when_its_token_is_revoked(open_http: OpenScene) -> None:
    async with open_http(limits=Limits(keep_alive_s=0.1)) as scene:
        claim = await scene.run_with(2)
        text = await scene.token(BOB, [Right.READ])
        url = f"/v1/runs/{claim.identity.run_id}/stream"
        async with scene.with_token(text).stream("GET", url) as response:
            lines = response.aiter_lines()
            while "keep-alive" not in await anext(lines):
                pass
            await scene.bench.store.access.revoke_token(text[6:36], now_us=scene.bench.clock.now_us())
            async with asyncio.timeout(10):
                async for _ in lines:
                    pass

        assert (await scene.with_token(text).get(url)).status_code == 401


@pytest.mark.spec("OPS-04", "PER-13")
async def test_a_poll_that_waits_is_refused_when_its_token_is_revoked_meanwhile(open_http: OpenScene) -> None:
    async with open_http() as scene:
        text = await scene.token(BOB, [Right.READ])
        waiting = asyncio.create_task(scene.with_token(text).get("/v1/approvals?wait=20"))
        await until(lambda: bool(scene.api.streams.held))

        await scene.bench.store.access.revoke_token(text[6:36], now_us=scene.bench.clock.now_us())
        await scene.ask()

        async with asyncio.timeout(10):
            assert code_of(await waiting) == "unauthenticated"


def _needed() -> list[tuple[str, str, Right]]:
    filled = {
        "session_id": "sess_1",
        "task_id": "task_1",
        "run_id": "run_1",
        "request_id": "req_1",
        "digest": "0" * 64,
        "kind": "task",
    }
    return [
        (method, route.path.format(**filled), right)
        for route in routes_of(_routes())
        for method in route.methods or ()
        if (right := right_of(route)) is not None
    ]


@pytest.mark.spec("OPS-04", "PER-13", "PER-13.g")
@pytest.mark.parametrize(("method", "path", "right"), _needed(), ids=str)
async def test_no_route_lets_in_whom_it_should_not(scene: HttpHarness, method: str, path: str, right: Right) -> None:
    body = {"plan": {}, "project": "/", "choice": "deny", "input_digest": "0" * 64}
    nobody = await scene.with_token("").request(method, path, json=body)
    others = [one for one in Right if right is not one and right not in IMPLIED[one]]

    refused = [await (await scene.someone(BOB, one)).request(method, path, json=body) for one in others]

    assert code_of(nobody) == "unauthenticated"
    assert [code_of(response) for response in refused] == ["forbidden"] * len(refused)


CALLER = """
import json, sys, urllib.error, urllib.request
from soong.shared.sandbox.family import mark_family
if sys.argv[1] == "run":
    mark_family()
address, token, body = sys.argv[2:]
request = urllib.request.Request(address, headers={"Authorization": "Bearer " + token})
if body:
    request.data = body.encode()
    request.add_header("Content-Type", "application/json")
try:
    with urllib.request.urlopen(request, timeout=30) as response:
        print(json.dumps([response.status, json.loads(response.read())]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, json.loads(error.read())]))
"""
LOOKING = """
import ctypes, encodings.ascii, encodings.idna, os, socket, sys, time
from soong.orchestrator.operations.authentication import _look
from soong.shared.sandbox.family import mark_family
user = 100_000 + os.getpid()  # nobody else's, whatever runs beside us
os.setgid(user); os.setuid(user)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # a change of user hides us; we are to be seen
listener = socket.create_server(("127.0.0.1", 0))
server = listener.getsockname()
ready, told = os.pipe()
if (child := os.fork()) == 0:
    if "run" in sys.argv:
        mark_family()
    if "hidden" in sys.argv:
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    connection = socket.create_connection(server)
    name = connection.getsockname()
    if "under way" in sys.argv:
        left, right = socket.socketpair()
        socket.send_fds(left, [b"x"], [connection.fileno()])
        connection.close()
    os.write(told, f"{name[0]} {name[1]}".encode())
    time.sleep(60)
host, port = os.read(ready, 100).decode().split()
try:
    print(_look((host, int(port)), server, ()).problem or "a person")
finally:
    os.kill(child, 9); os.waitpid(child, 0)
"""


async def called(scene: HttpHarness, who: str, token: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """Call from a process of its own, a person's or a run's; return status and document."""
    text = "" if body is None else json.dumps(body)
    argv = [sys.executable, "-c", CALLER, who, f"{scene.address}{path}", token, text]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.spec("PER-13.h")
@pytest.mark.skipif(not HAS_MARK, reason="this system does not say who holds a connection")
async def test_a_token_in_a_runs_hands_approves_nothing_and_reads_as_before(open_http: OpenScene) -> None:
    async with open_http() as scene:
        request, token = await scene.ask(), await scene.token()
        path = f"/v1/approvals/{request.id}"
        answer = {"choice": "allow_once", "input_digest": request.input_digest}

        status, seen = await called(scene, "run", token, path)
        refused, problem = await called(scene, "run", token, f"{path}/answer", answer)
        attending, _ = await called(scene, "run", token, "/v1/approvals?attend=true")
        nobody = await scene.bench.store.consent.answer_of(request.id)
        allowed, _ = await called(scene, "person", token, f"{path}/answer", answer)

        assert (status, seen["may_answer"]) == (200, False)
        assert "belongs to a run" in seen["may_not_because"]
        assert (refused, problem["code"], attending) == (403, "forbidden", 403)
        assert problem["detail"].startswith("the right 'approve' needs a person: process ")
        assert nobody is None
        assert allowed == 200
        assert (await scene.verdict()).is_allowed
        given = await scene.bench.store.consent.answer_of(request.id)
        assert given is not None
        assert given.provenance.processes[1].pid == os.getpid()


@pytest.mark.spec("PER-13.h")
@pytest.mark.skipif(not HAS_MARK, reason="this system does not say who holds a connection")
async def test_a_connection_that_was_let_go_is_nobodys(open_http: OpenScene) -> None:
    """A request that is sent whole and whose sender is gone would otherwise come from nowhere."""
    async with open_http() as scene:
        for host in ("127.0.0.1", "::1"):
            with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
                server = listener.getsockname()[:2]
                with socket.create_connection(server) as connection:
                    client = connection.getsockname()[:2]
                    held = await Peers(scene.bench.store.sessions).peer(client, server)
                gone = await Peers(scene.bench.store.sessions).peer(client, server)

            assert held.problem == ""
            assert held.provenance.processes[0].pid == os.getpid()
            assert gone.problem == "the process that sent the request has let the connection go"


@pytest.mark.spec("PER-13.h")
@pytest.mark.skipif(not HAS_MARK, reason="this system does not say who holds a connection")
async def test_a_connection_to_a_socket_of_both_families_is_found(open_http: OpenScene) -> None:
    async with open_http() as scene:
        with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
            port = listener.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port)):
                accepted, _ = listener.accept()
                with accepted:
                    peer = await Peers(scene.bench.store.sessions).peer(
                        accepted.getpeername()[:2], accepted.getsockname()[:2]
                    )

    assert peer.provenance.processes[0].pid == os.getpid()


@pytest.mark.spec("PER-13.h")
@pytest.mark.skipif(not HAS_MARK, reason="this system does not say who holds a connection")
async def test_another_machine_is_an_address(open_http: OpenScene) -> None:
    async with open_http() as scene:
        peer = await Peers(scene.bench.store.sessions).peer(("192.0.2.7", 40_000), ("192.0.2.1", 443))

    assert (peer.problem, peer.provenance.as_json()) == ("", {"address": "192.0.2.7"})


@pytest.mark.spec("PER-13.h")
@pytest.mark.skipif(not HAS_MARK, reason="this system does not say who holds a connection")
@pytest.mark.skipif(os.geteuid() != 0, reason="root sees all; another user is looked at")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["person"], "a person"),
        (["run"], "belongs to a run, and runs do not answer for people"),
        (["run", "hidden"], "the process that holds the connection cannot be determined"),
        (["person", "hidden"], "a person"),
        (["run", "under way"], "the process that holds the connection cannot be determined"),
    ],
    ids=["seen", "of a run", "a run that hides", "another that hides, as sshd does", "held by nobody just now"],
)
async def test_a_holder_that_hides_is_refused_where_it_may_be_a_run(words: list[str], said: str) -> None:
    command = [sys.executable, "-c", LOOKING, *words]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)

    assert said in done.stdout, done.stderr
