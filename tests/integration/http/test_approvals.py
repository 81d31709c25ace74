"""Questions over HTTP: listed while they wait, shown whole, answered once, by whoever may (PER-13, PER-15)."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
import pytest_asyncio
from msgspec.structs import replace

from soong.shared.engine.runs.events import EventType
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.permissions.access.token import Right
from soong.shared.permissions.audit_log.entry import AuditKind
from soong.shared.permissions.request import Choice, PermissionRequest
from soong.shared.tools.result import ErrorType
from tests.integration.http.conftest import OpenScene
from tests.integration.http.scene import ADA, BOB, HttpHarness, code_of
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("OPS-04", "PER-13")]


@pytest_asyncio.fixture(loop_scope="module")
async def scene(open_http: OpenScene) -> AsyncIterator[HttpHarness]:
    """A server of the test's own: its questions are all there are."""
    async with open_http() as opened:
        yield opened


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


@pytest.mark.spec("PER-03.a", "PER-13.e")
@pytest.mark.parametrize("choice", list(Choice))
async def test_each_of_the_three_answers_is_one(scene: HttpHarness, choice: Choice) -> None:
    request = await scene.ask()

    response = await post(scene.caller, request, answer_to(request, choice, reason="because"))
    verdict = await scene.verdict()

    assert response.json()["decision"]["choice"] == choice
    assert verdict.is_allowed is (choice is not Choice.DENY)
    assert verdict.error is (ErrorType.PERMISSION_DENIED if choice is Choice.DENY else None)


@pytest.mark.spec("PER-04", "PER-07")
async def test_a_session_grant_answers_its_like_and_no_other(scene: HttpHarness) -> None:
    first, like, other = await scene.ask("c1"), await scene.ask("c2"), await scene.ask("c3", "/work/elsewhere")

    await post(scene.caller, first, answer_to(first, "allow_for_session"))

    assert (await scene.verdict(0)).is_allowed
    assert (await scene.verdict(1)).author == "grant"
    await until(lambda: _is_listed(scene, [other.id]))
    shown = (await scene.caller.get(f"/v1/approvals/{like.id}")).json()
    assert shown["decision"]["author"] == "grant"


async def _is_listed(scene: HttpHarness, ids: list[str]) -> bool:
    return await listed(scene.caller) == ids


@pytest.mark.spec("PER-15.b")
async def test_the_second_answer_learns_who_was_first_and_when(scene: HttpHarness) -> None:
    request = await scene.ask()
    people = [await scene.someone(f"person{number}", Right.APPROVE) for number in range(4)]

    answers = await asyncio.gather(*(post(client, request, answer_to(request)) for client in people))

    codes = sorted(response.status_code for response in answers)
    assert codes == [200, 409, 409, 409]
    winner = next(response for response in answers if response.status_code == 200).json()["answer"]
    for response in answers:
        if response.status_code == 409:
            told = response.json()
            assert code_of(response) == "already_decided"
            assert (told["by"], told["channel"], told["at"]) == (winner["principal"], "http", winner["answered"])
            assert told["choice"] == "allow_once"
    late = [e for e in await scene.bench.store.audit.audit_entries() if e.kind == AuditKind.SECURITY]
    assert len(late) == 3


async def test_an_answer_to_another_input_than_the_one_shown_is_refused_and_the_question_stays(
    scene: HttpHarness,
) -> None:
    request = await scene.ask()

    changed = await post(scene.caller, request, answer_to(replace(request, input_digest="0" * 64)))

    assert code_of(changed) == "input_changed"
    assert await listed(scene.caller) == [request.id]
    assert (await post(scene.caller, request, answer_to(request))).status_code == 200


@pytest.mark.spec("PER-08")
async def test_what_is_not_offered_is_not_taken_and_the_question_stays(scene: HttpHarness) -> None:
    request = await scene.ask(folder="/")

    refused = await post(scene.caller, request, answer_to(request, "allow_for_session"))

    assert code_of(refused) == "choice_not_offered"
    assert refused.json()["choices"] == ["allow_once", "deny"]
    assert await listed(scene.caller) == [request.id]


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


async def test_no_digest_is_no_answer(scene: HttpHarness) -> None:
    request = await scene.ask()

    response = await post(scene.caller, request, {"choice": "allow_once"})

    assert code_of(response) == "invalid_input"
    assert response.json()["errors"][0]["place"] == "body.input_digest"


# -- who may
@pytest.mark.spec("PER-12")
async def test_in_an_attached_session_only_its_own_principal_answers(open_http: OpenScene) -> None:
    async with open_http(mode=ApprovalMode.PROMPT) as scene:
        own = await scene.someone("local", Right.APPROVE)
        request = await scene.ask()

        foreign = await post(scene.caller, request, answer_to(request))
        seen = (await scene.caller.get(f"/v1/approvals/{request.id}")).json()
        mine = await post(own, request, answer_to(request))

        assert code_of(foreign) == "not_yours"
        assert (seen["may_answer"], seen["choices"]) == (False, ["allow_once", "allow_for_session", "deny"])
        assert "local" in seen["may_not_because"]
        assert mine.status_code == 200
        assert (await scene.verdict()).is_allowed


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


@pytest.mark.spec("PER-13.g")
async def test_who_may_only_read_sees_the_question_and_does_not_answer(scene: HttpHarness) -> None:
    request = await scene.ask()
    reader = await scene.someone(BOB, Right.READ)

    seen = (await reader.get("/v1/approvals")).json()["items"][0]
    refused = await post(reader, request, answer_to(request))

    assert (seen["id"], seen["may_answer"]) == (request.id, False)
    assert code_of(refused) == "forbidden"
    assert await scene.bench.store.consent.answer_of(request.id) is None


# -- the list
@pytest.mark.spec("PER-15.c")
async def test_what_is_decided_or_withdrawn_has_left_the_list(scene: HttpHarness) -> None:
    """Elsewhere what has expired stays listed (Agenta-AI/agenta#6823, librefang/librefang#1797)."""
    decided, withdrawn, waiting = await scene.ask("c1"), await scene.ask("c2"), await scene.ask("c3")
    await post(scene.caller, decided, answer_to(decided))
    scene.asking[1].cancel()
    await until(lambda: _is_listed(scene, [waiting.id]))

    everything = (await scene.caller.get("/v1/approvals", params={"state": "all"})).json()["items"]
    late = await post(scene.caller, withdrawn, answer_to(withdrawn))
    shown = (await scene.caller.get(f"/v1/approvals/{withdrawn.id}")).json()

    assert [(item["id"], item["state"]) for item in everything] == [
        (waiting.id, "pending"),
        (withdrawn.id, "withdrawn"),
        (decided.id, "decided"),
    ]
    assert late.status_code == 410
    assert code_of(late) == "gone"
    assert shown["withdrawn"] == "its call was cancelled"


@pytest.mark.spec("PER-15")
async def test_what_an_ended_run_asked_is_gone_though_no_orchestrator_runs(scene: HttpHarness) -> None:
    request, store = await scene.ask(), scene.bench.store
    await scene.bench.broker.close()
    (worker,) = await store.sessions.workers()
    await store.claims.expire_worker(worker.id, worker.beat, max_lost_leases=1, now_us=scene.bench.clock.now_us())

    late = await post(scene.caller, request, answer_to(request))

    assert (late.status_code, code_of(late)) == (410, "gone")
    assert await listed(scene.caller) == []


async def test_the_list_is_read_page_by_page_and_by_session(scene: HttpHarness) -> None:
    asked = [(await scene.ask(f"c{number}")).id for number in range(5)]

    for state, expected in (("pending", asked), ("all", asked[::-1])):
        found: list[str] = []
        cursor = ""
        while True:
            params: dict[str, str | int] = {"state": state, "limit": 2, "cursor": cursor}
            page = (await scene.caller.get("/v1/approvals", params=params)).json()
            found += [item["id"] for item in page["items"]]
            if not page["next"]:
                break
            cursor = page["next"]
        assert found == expected
    assert await listed(scene.caller, session=scene.bench.session_id) == asked
    assert await listed(scene.caller, session="sess_other") == []


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


@pytest.mark.spec("PER-13.a")
async def test_a_question_outlives_the_server_and_its_owner(open_http: OpenScene) -> None:
    """A request is a row: whoever serves, it is there (MoonshotAI/kimi-cli#1823, mcp_agent_mail#151)."""
    async with open_http() as scene:
        request = await scene.ask()
        await scene.bench.pass_time(timedelta(days=3).total_seconds())
        scene.asking[0].cancel()
        await asyncio.gather(*scene.asking, return_exceptions=True)
        withdrawn = (await scene.caller.get(f"/v1/approvals/{request.id}")).json()["state"]
        again = await scene.ask("c2")

        waiting = await listed(scene.caller)

    assert withdrawn == "withdrawn"
    assert waiting == [again.id]


# -- what is shown
@pytest.mark.spec("PER-06")
async def test_a_question_shows_all_that_a_person_needs(scene: HttpHarness) -> None:
    """Who asks, for what, and the input itself (QwenLM/qwen-code#3960, anomalyco/opencode#15332)."""
    request = await scene.ask()

    shown = (await scene.caller.get(f"/v1/approvals/{request.id}")).json()

    identity = shown["identity"]
    assert identity == request.identity.as_json()
    assert (shown["tool"], shown["risk"], shown["permission"]) == ("code.write_file", "write", "write")
    assert shown["arguments"] == {"path": "/work/out/report.md", "content": "words"}
    assert shown["input_digest"] == request.input_digest
    assert shown["target"]["shown"] == "/work/out/report.md"
    assert shown["session_grant"] == "/work/out"
    assert shown["precondition"] == "absent"
    assert shown["full_input"]["is_exact"] is True
    assert shown["parents"][0]["run_id"] == identity["parent_run_id"]
    assert shown["session"]["approval_mode"] == "inbox"
    assert shown["may_answer"] is True


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


async def test_the_answer_is_in_the_runs_log(scene: HttpHarness) -> None:
    request = await scene.ask()
    await post(scene.caller, request, answer_to(request, reason="fine"))

    page = (await scene.caller.get(f"/v1/runs/{request.identity.run_id}/events?limit=200")).json()["items"]

    (decided,) = [one["data"] for one in page if one["type"] == f"soong.{EventType.PERMISSION_DECIDED}"]
    assert (decided["principal"], decided["channel"], decided["reason"]) == (ADA, "http", "fine")


async def test_an_unknown_question_is_not_found(scene: HttpHarness) -> None:
    body = {"choice": "deny", "input_digest": "0" * 64}

    shown = await scene.caller.get(f"/v1/approvals/req_{'0' * 32}")
    answered = await scene.caller.post(f"/v1/approvals/req_{'0' * 32}/answer", json=body)

    assert code_of(shown) == code_of(answered) == "not_found"
