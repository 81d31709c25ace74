"""Tokens on the wire: which count, what wrong ones lead to, how soon a revoked one ends."""

import asyncio
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from soong.orchestrator.http.app import _routes, right_of, routes_of
from soong.orchestrator.operations.authentication import MOST_FAILURES
from soong.orchestrator.operations.context import Limits
from soong.shared.permissions.access.token import IMPLIED, Right
from tests.integration.http.conftest import OpenScene
from tests.integration.http.scene import BOB, HttpHarness, code_of
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("OPS-04", "PER-13")]


async def test_a_token_speaks_for_its_principal_with_its_rights(scene: HttpHarness) -> None:
    bob = await scene.someone(BOB, Right.APPROVE)

    told = (await bob.get("/v1/me")).json()

    assert told["principal"] == BOB
    assert told["rights"] == ["read", "approve"]
    assert told["expires"] is None


async def test_a_wrong_secret_and_an_unknown_id_are_reported_alike(scene: HttpHarness) -> None:
    text = await scene.token()
    wrong = text[:-1] + ("A" if text[-1] != "A" else "B")
    unknown = "soong_tok_" + "0" * 32 + "_" + "a" * 43

    refused = [await scene.with_token(one).get("/v1/me") for one in (wrong, unknown, "nonsense")]

    assert {response.text for response in refused} == {refused[0].text}
    assert refused[0].status_code == 401
    assert 'error="invalid_token"' in refused[0].headers["www-authenticate"]


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


@pytest.mark.spec("PER-13.g")
@pytest.mark.parametrize(("method", "path", "right"), _needed(), ids=str)
async def test_no_route_lets_in_whom_it_should_not(scene: HttpHarness, method: str, path: str, right: Right) -> None:
    body = {"plan": {}, "project": "/", "choice": "deny", "input_digest": "0" * 64}
    nobody = await scene.with_token("").request(method, path, json=body)
    others = [one for one in Right if right is not one and right not in IMPLIED[one]]

    refused = [await (await scene.someone(BOB, one)).request(method, path, json=body) for one in others]

    assert code_of(nobody) == "unauthenticated"
    assert [code_of(response) for response in refused] == ["forbidden"] * len(refused)
