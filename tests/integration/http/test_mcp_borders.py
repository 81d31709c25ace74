import asyncio
import json
import subprocess
import sys
from typing import Any

import httpx
import pytest

from soong.shared.permissions.access.token import Right
from soong.shared.sandbox.family import HAS_MARK
from tests.integration.http.conftest import OpenScene
from tests.integration.http.conftest import own_scene as scene
from tests.integration.http.mcp_clients import done, mcp_client
from tests.integration.http.scene import ADA, BOB, HttpHarness, code_of

__all__ = ["scene"]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("MCP-02", "OPS-04.e", "PER-13.h")]

INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
LIST: dict[str, Any] = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
SPEAKS = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}

FROM_A_PROCESS = """
import json, sys, urllib.error, urllib.request
from soong.shared.sandbox.family import mark_family
if sys.argv[1] == "run":
    mark_family()
request = urllib.request.Request(sys.argv[2] + "/mcp", sys.argv[4].encode(), headers={
    "Authorization": "Bearer " + sys.argv[3], "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream"})
try:
    with urllib.request.urlopen(request, timeout=30) as response:
        print(response.status)
except urllib.error.HTTPError as error:
    print(error.code, json.loads(error.read())["code"])
"""


async def opened_session(client: httpx.AsyncClient) -> dict[str, str]:
    """Shake hands; return the headers of the session."""
    response = await client.post("/mcp", json=INITIALIZE, headers=SPEAKS)
    assert response.status_code == 200, response.text
    return {**SPEAKS, "Mcp-Session-Id": response.headers["mcp-session-id"]}


async def test_the_edge_refuses_what_it_refuses_everywhere(scene: HttpHarness) -> None:
    token = await scene.token()

    nobody = await scene.with_token("").post("/mcp", json=INITIALIZE, headers=SPEAKS)
    page = await scene.with_token(token, Origin="https://evil.example").post("/mcp", json=INITIALIZE, headers=SPEAKS)
    name = await scene.with_token(token, Host="evil.example").post("/mcp", json=INITIALIZE, headers=SPEAKS)
    large = await scene.caller.post("/mcp", content=b"x" * (scene.api.limits.body_bytes + 1), headers=SPEAKS)
    broken = await scene.caller.post("/mcp", content=b"{", headers={**SPEAKS, "Content-Type": "application/json"})
    elsewhere = await scene.caller.post("/mcp/", json=INITIALIZE, headers=SPEAKS)

    assert [code_of(one) for one in (nobody, page, name, large)] == [
        "unauthenticated",
        "origin_not_allowed",
        "host_not_allowed",
        "body_too_large",
    ]
    assert nobody.headers["www-authenticate"].startswith("Bearer")
    assert broken.status_code == 400
    assert elsewhere.status_code in {403, 404}


async def test_a_session_belongs_to_the_token_that_opened_it(scene: HttpHarness) -> None:
    session = await opened_session(scene.caller)
    other = await scene.someone(BOB)
    same_principal = await scene.someone(ADA)

    foreign = [(await one.post("/mcp", json=LIST, headers=session)).status_code for one in (other, same_principal)]
    deleted = (await other.delete("/mcp", headers=session)).status_code
    own = await scene.caller.post("/mcp", json=LIST, headers=session)

    assert foreign == [404, 404]
    assert deleted == 404
    assert own.status_code == 200
    assert "wait_for_task" in own.text


async def test_a_session_has_the_rights_of_each_request_and_not_of_its_first(scene: HttpHarness) -> None:
    """A token that is revoked while its session is open is refused with the next request."""
    text = await scene.token(BOB, (Right.READ,))
    client = scene.with_token(text)
    session = await opened_session(client)
    before = (await client.post("/mcp", json=LIST, headers=session)).status_code
    await scene.bench.store.access.revoke_token(text[6:36], now_us=scene.bench.clock.now_us())

    after = await client.post("/mcp", json=LIST, headers=session)

    assert (before, code_of(after)) == (200, "unauthenticated")


@pytest.mark.spec("MCP-02.d")
@pytest.mark.skipif(not HAS_MARK, reason="this system does not say who holds a connection")
async def test_a_program_of_a_run_speaks_no_mcp_whatever_its_token_may_do(scene: HttpHarness) -> None:

    said = {}
    for right in (Right.READ, Right.APPROVE):
        token = await scene.token(ADA, (right,))
        for who in ("run", "person"):
            argv = [sys.executable, "-c", FROM_A_PROCESS, who, scene.address, token, json.dumps(INITIALIZE)]
            ended = await asyncio.to_thread(
                subprocess.run, argv, capture_output=True, text=True, timeout=60, check=False
            )
            said[(right, who)] = ended.stdout.strip() or ended.stderr

    assert said == {
        (Right.READ, "run"): "403 forbidden",
        (Right.READ, "person"): "200",
        (Right.APPROVE, "run"): "403 forbidden",
        (Right.APPROVE, "person"): "200",
    }


async def test_a_stopped_server_lets_a_wait_end_with_an_answer(open_http: OpenScene) -> None:
    async with open_http() as scene:
        request = await scene.ask()
        async with mcp_client(scene, await scene.token(ADA)) as client:
            first = await done(client, "wait_for_task", task=request.identity.task_id)
            waiting = asyncio.ensure_future(
                done(client, "wait_for_task", task=request.identity.task_id, seconds=45, after=first["state"])
            )
            await asyncio.wait({waiting}, timeout=1)
            scene.stop.set()
            async with asyncio.timeout(20):
                ended = await waiting

    assert ended["status"] == "running"
