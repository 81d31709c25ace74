"""Questions over HTTP: listed while they wait, shown whole, answered once, by whoever may (PER-13, PER-15)."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.permissions.access.token import Right
from soong.shared.permissions.request import PermissionRequest
from tests.integration.http.conftest import OpenScene
from tests.integration.http.conftest import own_scene as scene
from tests.integration.http.scene import ADA, HttpHarness, code_of
from tests.waiting import until

__all__ = ["scene"]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("OPS-04", "PER-13")]


def answer_to(request: PermissionRequest, choice: str = "allow_once", **more: Any) -> dict[str, Any]:
    return {"choice": choice, "input_digest": request.input_digest, **more}


async def post(client: httpx.AsyncClient, request: PermissionRequest, body: dict[str, Any]) -> httpx.Response:
    return await client.post(f"/v1/approvals/{request.id}/answer", json=body)


async def listed(client: httpx.AsyncClient, **params: Any) -> list[str]:
    response = await client.get("/v1/approvals", params=params)
    assert response.status_code == 200, response.text
    return [item["id"] for item in response.json()["items"]]


# -- the way of an answer
@pytest.mark.spec("PER-03", "PER-16", "PER-13.e", "CARD-3.c")
async def test_an_answer_reaches_the_call_that_asked_and_says_who_gave_it(scene: HttpHarness) -> None:
    """An approval API that a console is built on was missing elsewhere (crewAIInc/crewAI#3034)."""
    request = await scene.ask()

    response = await post(scene.caller, request, answer_to(request, reason="looks right"))
    verdict = await scene.verdict()

    told = response.json()
    assert response.status_code == 200
    assert verdict.is_allowed
    assert verdict.reason == "looks right"
    assert (told["state"], told["decision"]["author"], told["decision"]["principal"]) == ("decided", "person", ADA)
    assert told["answer"]["channel"] == "http"
    assert told["answer"]["metadata"]["token"].startswith("tok_")
    assert told["choices"] == []


async def test_an_answer_to_another_input_than_the_one_shown_or_to_none_is_refused_and_the_question_stays(
    scene: HttpHarness,
) -> None:
    request = await scene.ask()

    changed = await post(scene.caller, request, answer_to(replace(request, input_digest="0" * 64)))
    none = await post(scene.caller, request, {"choice": "allow_once"})

    assert (code_of(changed), code_of(none)) == ("input_changed", "invalid_input")
    assert none.json()["errors"][0]["place"] == "body.input_digest"
    assert await listed(scene.caller) == [request.id]
    assert (await post(scene.caller, request, answer_to(request))).status_code == 200


@pytest.mark.parametrize(
    "wrong",
    [
        {"choice": "allow"},
        {"choice": "ALLOW_ONCE"},
        {"choice": None},
        {"choice": True},
        {"input_digest": "0"},
        {"input_digest": None},
        {"reason": "x" * 2001},
        {"reason": 1},
        {"arguments": {"path": "/etc/passwd"}},
        {"decision": {"signature": "00"}},
        {"principal": "root"},
        {"channel": "terminal"},
    ],
    ids=" ".join,
)
async def test_an_answer_that_is_none_writes_no_row(open_http: OpenScene, wrong: dict[str, Any]) -> None:
    async with open_http() as scene:
        request = await scene.ask()

        response = await post(scene.caller, request, {**answer_to(request), **wrong})

        assert code_of(response) == "invalid_input"
        assert await scene.bench.store.consent.answer_of(request.id) is None


# -- who may


@pytest.mark.spec("PER-12")
@pytest.mark.parametrize("names_session", [True, False], ids=["one session", "whatever asks"])
async def test_who_polls_to_answer_is_waited_for_until_a_lease_after_its_last_poll(
    open_http: OpenScene, *, names_session: bool
) -> None:
    """A question of an attached session ends as permission_no_callback when nobody is there; a poll is somebody."""
    async with open_http(mode=ApprovalMode.PROMPT, responder_lease_s=1.2) as scene:
        bench = scene.bench
        own = await scene.someone("local", Right.READ, Right.APPROVE)
        request = await scene.ask()
        params = {"attend": True, **({"session": bench.session_id} if names_session else {})}

        assert await listed(own, **params) == [request.id]
        await until(lambda: _is_attended(scene, by=["local"]))
        for _ in range(3):  # longer than a question waits for somebody, a beat between any two
            assert await listed(own, **params) == [request.id]
            await asyncio.sleep(0.5)
            bench.clock.advance(timedelta(seconds=bench.settings.responder_wait_s / 2.5))
        assert await listed(own, **params) == [request.id]
        await until(lambda: _is_attended(scene, by=[]))
        await until(lambda: scene.api.attending.present == ())
        answered = await post(own, request, answer_to(request))

        assert answered.status_code == 200
        assert (await scene.verdict()).is_allowed


@pytest.mark.spec("PER-12")
async def test_nobody_is_waited_for_who_only_looks_on_or_may_not_answer(open_http: OpenScene) -> None:
    async with open_http(mode=ApprovalMode.PROMPT) as scene:
        request = await scene.ask()
        own, reader = await scene.someone("local"), await scene.someone("local", Right.READ)

        assert await listed(own) == [request.id]
        assert await listed(scene.caller, attend=True) == [request.id]
        refused = await reader.get("/v1/approvals", params={"attend": True})

        assert code_of(refused) == "forbidden"
        assert scene.api.attending.present == ()
        assert await scene.bench.store.sessions.responders(scene.bench.session_id) == []


async def _is_attended(scene: HttpHarness, *, by: list[str]) -> bool:
    there = await scene.bench.store.sessions.responders(scene.bench.session_id)
    return [one.principal for one in there] == by and all(one.channel == "http" for one in there)


# -- the list


# -- waiting
async def test_a_list_is_waited_for_until_something_is_asked(scene: HttpHarness) -> None:
    """Bounded long polls on durable rows, as wished for in wildware-uk/agent-dashboard#15."""
    waiting = asyncio.create_task(listed(scene.caller, wait=20))
    await until(lambda: bool(scene.api.streams.held))

    request = await scene.ask()

    async with asyncio.timeout(5):
        assert await waiting == [request.id]


async def test_a_list_that_has_not_changed_is_not_sent_again(scene: HttpHarness) -> None:
    first = await scene.ask("c1")
    seen = await scene.caller.get("/v1/approvals")
    same = await scene.caller.get("/v1/approvals?wait=1", headers={"If-None-Match": seen.headers["etag"]})
    waiting = asyncio.create_task(
        scene.caller.get("/v1/approvals?wait=20", headers={"If-None-Match": seen.headers["etag"]})
    )
    await until(lambda: bool(scene.api.streams.held))

    await post(scene.caller, first, answer_to(first))

    assert same.status_code == 304
    async with asyncio.timeout(5):
        changed = await waiting
    assert changed.json()["items"] == []
    assert changed.headers["etag"] != seen.headers["etag"]


async def test_a_wait_is_bounded(scene: HttpHarness) -> None:
    began = time.monotonic()

    empty = await listed(scene.caller, wait=1)
    refused = await scene.caller.get("/v1/approvals?wait=56")

    assert empty == []
    assert 0.9 < time.monotonic() - began < 10
    assert code_of(refused) == "invalid_input"


async def test_one_question_is_waited_for_until_it_is_decided(scene: HttpHarness) -> None:
    request = await scene.ask()
    waiting = asyncio.create_task(scene.caller.get(f"/v1/approvals/{request.id}?wait=20"))
    await until(lambda: bool(scene.api.streams.held))

    await post(scene.caller, request, answer_to(request, "deny", reason="not there"))

    async with asyncio.timeout(5):
        shown = (await waiting).json()
    assert (shown["state"], shown["decision"]["reason"]) == ("decided", "not there")


# -- what is shown


@pytest.mark.spec("PER-12")
async def test_no_proof_no_token_and_no_signature_is_shown(scene: HttpHarness) -> None:
    request = await scene.ask()
    found = await scene.bench.store.consent.open_questions(request.identity.session_id, limit=1)
    assert found is not None
    run_token = found.tokens[request.identity.run_id]
    await post(scene.caller, request, answer_to(request))
    decision = await scene.bench.store.consent.decision_of(request.id)
    assert decision is not None

    told = [
        (await scene.caller.get(path)).text
        for path in (
            f"/v1/approvals/{request.id}",
            "/v1/approvals?state=all",
            f"/v1/runs/{request.identity.run_id}",
            f"/v1/runs/{request.identity.run_id}/events",
            f"/v1/tasks/{request.identity.task_id}",
            f"/v1/sessions/{request.identity.session_id}",
        )
    ]

    for secret in (request.proof, run_token, decision.signature):
        assert secret
        assert not any(secret in text for text in told)
