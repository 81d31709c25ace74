"""Questions over HTTP: seen before anything starts, listed while they wait, answered once, by those that may."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.permissions.access.token import Right
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.request import PermissionRequest
from tests.integration.http.conftest import OpenScene
from tests.integration.http.conftest import own_scene as scene
from tests.integration.http.scene import ADA, HttpHarness, code_of
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

__all__ = ["scene"]


def answer_to(request: PermissionRequest, choice: str = "allow_once", **more: Any) -> dict[str, Any]:
    return {"choice": choice, "input_digest": request.input_digest, **more}


async def post(client: httpx.AsyncClient, request: PermissionRequest, body: dict[str, Any]) -> httpx.Response:
    return await client.post(f"/v1/approvals/{request.id}/answer", json=body)


async def listed(client: httpx.AsyncClient, **params: Any) -> list[str]:
    response = await client.get("/v1/approvals", params=params)
    assert response.status_code == 200, response.text
    return [item["id"] for item in response.json()["items"]]


@pytest.mark.spec("OPS-04", "PER-13")
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


@pytest.mark.spec("OPS-04", "PER-13")
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


@pytest.mark.spec("OPS-04", "PER-13")
@pytest.mark.parametrize(
    "wrong",
    [
        {"choice": "allow"},
        {"choice": None},
        {"input_digest": "0"},
        {"input_digest": None},
        {"reason": "x" * 2001},
        {"arguments": {"path": "/etc/passwd"}},
        {"decision": {"signature": "00"}},
        {"principal": "root"},
    ],
    ids=" ".join,
)
async def test_an_answer_that_is_none_writes_no_row(open_http: OpenScene, wrong: dict[str, Any]) -> None:
    async with open_http() as scene:
        request = await scene.ask()

        response = await post(scene.caller, request, {**answer_to(request), **wrong})

        assert code_of(response) == "invalid_input"
        assert await scene.bench.store.consent.answer_of(request.id) is None


@pytest.mark.spec("OPS-04", "PER-13", "PER-12")
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


@pytest.mark.spec("OPS-04", "PER-13", "PER-12")
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


@pytest.mark.spec("OPS-04", "PER-13")
async def test_a_list_is_waited_for_until_something_is_asked(scene: HttpHarness) -> None:
    """Bounded long polls on durable rows, as wished for in wildware-uk/agent-dashboard#15."""
    waiting = asyncio.create_task(listed(scene.caller, wait=20))
    await until(lambda: bool(scene.api.streams.held))

    request = await scene.ask()

    async with asyncio.timeout(5):
        assert await waiting == [request.id]


@pytest.mark.spec("OPS-04", "PER-13")
async def test_a_list_that_has_not_changed_is_not_sent_again(scene: HttpHarness) -> None:
    first = await scene.ask("c1")
    seen = await scene.caller.get("/v1/approvals")
    same = await scene.caller.get("/v1/approvals?wait=1", headers={"If-None-Match": seen.headers["etag"]})
    refused = await scene.caller.get("/v1/approvals?wait=56")
    waiting = asyncio.create_task(
        scene.caller.get("/v1/approvals?wait=20", headers={"If-None-Match": seen.headers["etag"]})
    )
    await until(lambda: bool(scene.api.streams.held))

    await post(scene.caller, first, answer_to(first))

    assert same.status_code == 304
    assert code_of(refused) == "invalid_input"  # no wait is longer than 55 s
    async with asyncio.timeout(5):
        changed = await waiting
    assert changed.json()["items"] == []
    assert changed.headers["etag"] != seen.headers["etag"]


@pytest.mark.spec("OPS-04", "PER-13")
async def test_one_question_is_waited_for_until_it_is_decided(scene: HttpHarness) -> None:
    request = await scene.ask()
    waiting = asyncio.create_task(scene.caller.get(f"/v1/approvals/{request.id}?wait=20"))
    await until(lambda: bool(scene.api.streams.held))

    await post(scene.caller, request, answer_to(request, "deny", reason="not there"))

    async with asyncio.timeout(5):
        shown = (await waiting).json()
    assert (shown["state"], shown["decision"]["reason"]) == ("decided", "not there")


@pytest.mark.spec("OPS-04", "PER-13", "PER-12")
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


WRITES = {"allowed_tools": ["code.write_file"], "script": "builtin.echo"}
PLAN = {
    "title": "Three steps",
    "inputs": {"folder": {"type": "string", "default": "out"}},
    "steps": [
        {"id": "first", **WRITES, "permissions": {"write": ["${inputs.folder}/"], "run": [["git", "status"]]}},
        {"id": "second", **WRITES, "permissions": {"write": ["${inputs.folder}/"]}},
        {"id": "third", **WRITES},
    ],
}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project beside the agent's home, whose `out` is a link: what a path means can change."""
    project = tmp_path_factory.mktemp("project").resolve()
    (project / "one").mkdir(parents=True)
    (project / "two").mkdir()
    (project / "out").symlink_to("one")
    return project


def body_of(folder: Path, **more: Any) -> dict[str, Any]:
    return {"plan": PLAN, "project": str(folder), **more}


async def preview(scene: HttpHarness, folder: Path, **more: Any) -> dict[str, Any]:
    response = await scene.caller.post("/v1/tasks/preview", json=body_of(folder, **more))
    assert response.status_code == 200, response.text
    told: dict[str, Any] = response.json()
    return told


def yes_to(told: dict[str, Any], *steps: str) -> list[dict[str, str]]:
    digests = {step["id"]: step["grant_digest"] for step in told["steps"]}
    return [{"step": step, "grant_digest": digests[step]} for step in steps]


@pytest.mark.spec("PER-17", "PER-17.a")
async def test_a_preview_shows_every_scope_as_it_is_and_writes_nothing(scene: HttpHarness, folder: Path) -> None:
    told = await preview(scene, folder)

    (union,) = told["union"]["write"]
    assert (union["shown"], union["effect"], union["grantable"]) == (f"{folder}/one", "ask", ["code.write_file"])
    assert [step["is_grantable"] for step in told["steps"]] == [True, True, False]
    assert [bool(step["grant_digest"]) for step in told["steps"]] == [True, True, False]
    assert told["steps"][2]["may_ask"] == ["code.write_file"]
    assert await scene.bench.store.tasks.list_tasks() == []


@pytest.mark.spec("PER-17")
async def test_a_preview_judges_with_the_inputs_and_rules_of_the_submission(scene: HttpHarness, folder: Path) -> None:
    allowed = await preview(scene, folder, inputs={"folder": "two"}, allow=[f"code.write_file:{folder}/two"])

    (union,) = allowed["union"]["write"]
    assert (union["shown"], union["effect"]) == (f"{folder}/two", "allow")
    assert allowed["steps"][1]["grant_digest"] is None


@pytest.mark.spec("PER-17")
async def test_a_yes_is_a_rule_of_its_step_alone(scene: HttpHarness, folder: Path) -> None:
    told = await preview(scene, folder)

    sent = await scene.caller.post("/v1/tasks", json=body_of(folder, step_grants=yes_to(told, "first")))

    session = await scene.bench.store.sessions.session(sent.json()["session"]["id"])
    (rule,) = Policy.from_json(session.policy).rules
    assert (rule.pattern, str(rule.scope), rule.step) == (
        "code.write_file",
        f"{folder}/one",
        f"{sent.json()['task']['id']}/first",
    )
    assert rule.source.startswith(f"step consent by {ADA} at ")


@pytest.mark.spec("PER-17")
async def test_what_means_another_thing_by_then_is_refused_and_not_started(scene: HttpHarness, folder: Path) -> None:
    told = await preview(scene, folder)
    (folder / "out").unlink()
    (folder / "out").symlink_to("two")

    refused = await scene.caller.post("/v1/tasks", json=body_of(folder, step_grants=yes_to(told, "second")))

    assert code_of(refused) == "input_changed"
    assert refused.json()["step"] == "second"
    assert await scene.bench.store.tasks.list_tasks() == []


@pytest.mark.spec("PER-17")
@pytest.mark.parametrize(
    ("step", "code"), [("second", "input_changed"), ("third", "invalid_input"), ("frist", "invalid_input")]
)
async def test_no_step_is_granted_by_the_digest_of_another(
    scene: HttpHarness, folder: Path, step: str, code: str
) -> None:
    (grant,) = yes_to(await preview(scene, folder), "first")

    refused = await scene.caller.post("/v1/tasks", json=body_of(folder, step_grants=[{**grant, "step": step}]))

    assert code_of(refused) == code
    assert await scene.bench.store.tasks.list_tasks() == []


@pytest.mark.spec("PER-17")
async def test_a_preview_looks_into_no_folder_that_is_no_project(open_http: OpenScene, folder: Path) -> None:
    async with open_http(http_projects=(str(folder / "one"),)) as scene:
        response = await scene.caller.post("/v1/tasks/preview", json=body_of(folder))

    assert code_of(response) == "forbidden"
