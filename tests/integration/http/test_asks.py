"""Goals over HTTP: submitted once, refused with what to do, never allowed more than their submitter may allow."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from soong.orchestrator.operations.authentication import Caller
from soong.orchestrator.operations.problems import ProblemError
from soong.orchestrator.operations.submissions import check_follow_up
from soong.shared.core.identity import Role
from soong.shared.engine.tasks.spec import TaskKind
from soong.shared.permissions.access.token import Right, make_token
from tests.contract.scene import completed
from tests.integration.http.conftest import OpenScene
from tests.integration.http.conftest import own_scene as scene
from tests.integration.http.scene import ADA, BOB, HttpHarness, code_of

__all__ = ["scene"]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("DIS-01", "OPS-04")]

MODEL = "openai-chat:gpt-5"


def body(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"goal": "Find the bug.", "model": MODEL, "project": str(tmp_path), **more}


async def test_a_goal_becomes_an_ask_of_the_callers(scene: HttpHarness, tmp_path: Path) -> None:
    response = await scene.caller.post("/v1/asks", json=body(tmp_path, agent="reviewer"))

    assert response.status_code == 201, response.text
    told = response.json()
    task = await scene.bench.store.tasks.task(told["task"]["id"])
    root = (await scene.bench.store.runs.run(task.root_run_id)).identity
    assert (task.kind, task.title, told["session"]["principal"]) == (TaskKind.ASK, "Find the bug.", ADA)
    assert (root.role, root.definition, root.model) == (Role.MAIN, "reviewer", MODEL)
    result = (await scene.caller.get(f"/v1/tasks/{task.id}/result")).json()
    assert (result["answer"], result["status"], result["exit_code"]) == (None, "running", 130)


async def test_a_goal_with_a_name_is_submitted_once(scene: HttpHarness, tmp_path: Path) -> None:
    key = {"Idempotency-Key": "one-goal"}

    first = await scene.caller.post("/v1/asks", json=body(tmp_path), headers=key)
    again = await scene.caller.post("/v1/asks", json=body(tmp_path), headers=key)
    other = await scene.caller.post("/v1/asks", json=body(tmp_path, goal="Find another."), headers=key)

    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 422)
    assert again.json()["task"]["id"] == first.json()["task"]["id"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"model": ""}, "has no model; choose one with --model provider:name"),
        ({"goal": " \n"}, "the goal is empty"),
        ({"agent": "nobody"}, "nobody"),
        ({"project": "relative"}, "is not an absolute path"),
        ({"allow": ["nonsense"]}, "write a rule as `tool:scope`"),
    ],
)
async def test_a_goal_that_cannot_be_followed_is_refused(
    scene: HttpHarness, tmp_path: Path, wrong: dict[str, Any], says: str
) -> None:
    response = await scene.caller.post("/v1/asks", json=body(tmp_path, **wrong))

    assert response.status_code in (400, 404, 422), response.text
    assert says in response.text


async def test_only_an_approver_allows_beforehand(scene: HttpHarness, tmp_path: Path) -> None:
    allowed = body(tmp_path, allow=[f"code.write_file:{tmp_path}"])

    runner = await scene.someone(BOB, Right.RUN)

    response = await runner.post("/v1/asks", json=allowed)

    assert (response.status_code, code_of(response)) == (403, "forbidden")


async def ended(scene: HttpHarness, told: dict[str, Any]) -> None:
    """Let the ask that was submitted complete, as its owner does."""
    store, now_us = scene.bench.store, scene.bench.clock.now_us()
    await store.sessions.adopt_sessions(scene.bench.ownership.owner_id)
    own = (await store.sessions.session(told["session"]["id"])).ownership
    claim = await store.asks.take_up(own, told["task"]["id"], now_us=now_us)
    assert claim is not None
    await store.asks.end_ask(own, told["task"]["id"], completed(claim), now_us=now_us)


async def test_a_session_is_given_another_goal_by_its_principal_alone(scene: HttpHarness, tmp_path: Path) -> None:
    first = (await scene.caller.post("/v1/asks", json=body(tmp_path, agent="reviewer"))).json()
    path = f"/v1/sessions/{first['session']['id']}/asks"
    early = await scene.caller.post(path, json={"goal": "And now?"})
    await ended(scene, first)
    other = await scene.someone(BOB)

    foreign = await other.post(path, json={"goal": "Delete it."})
    empty = await scene.caller.post(path, json={"goal": " "})
    goal = {"goal": "Fix\n it.", "max_concurrent": 3}
    made = await scene.caller.post(path, json=goal, headers={"Idempotency-Key": "k"})
    again = await scene.caller.post(path, json=goal, headers={"Idempotency-Key": "k"})
    reused = await scene.caller.post(path, json={"goal": "Break it."}, headers={"Idempotency-Key": "k"})

    assert "the last ask of session" in early.text
    assert (early.status_code, foreign.status_code, empty.status_code) == (422, 403, 422)
    assert (made.status_code, again.status_code, code_of(reused)) == (201, 200, "idempotency_key_reused")
    assert made.json()["session"]["id"] == first["session"]["id"]
    assert again.json()["task"]["id"] == made.json()["task"]["id"]
    task = await scene.bench.store.tasks.task(made.json()["task"]["id"])
    root = (await scene.bench.store.runs.run(task.root_run_id)).identity
    assert (task.title, root.definition, root.model) == ("Fix it.", "reviewer", MODEL)
    limits = (await scene.caller.get("/v1/workers")).json()["limits"]
    assert [(one["scope"], one["limit"]) for one in limits] == [(f"session:{first['session']['id']}", 3)]


async def test_a_goal_uses_what_its_session_allows_only_in_the_hands_of_an_approver(
    scene: HttpHarness, tmp_path: Path
) -> None:
    runner, paths = await scene.someone(ADA, Right.RUN), []
    for allow in ([], [f"code.write_file:{tmp_path}"]):
        first = (await scene.caller.post("/v1/asks", json=body(tmp_path, allow=allow))).json()
        await ended(scene, first)
        paths.append(f"/v1/sessions/{first['session']['id']}/asks")
    goal = {"goal": "Go on."}
    codes = [(await runner.post(path, json=goal)).status_code for path in paths]
    codes.append((await scene.caller.post(paths[1], json=goal)).status_code)

    assert codes == [201, 403, 201]


async def test_a_goal_is_given_in_the_folders_of_the_server_alone(open_http: OpenScene, tmp_path: Path) -> None:
    async with open_http() as opened:
        first = (await opened.caller.post("/v1/asks", json=body(tmp_path))).json()
        await ended(opened, first)
        opened.api.client.settings = opened.api.client.settings.model_copy(
            update={"http_projects": (str(tmp_path / "other"),)}
        )
        response = await opened.caller.post(f"/v1/sessions/{first['session']['id']}/asks", json={"goal": "Go on."})

    assert (response.status_code, code_of(response)) == (403, "forbidden")


async def test_a_goal_opens_a_closed_session_again_and_needs_an_ask_to_follow(
    scene: HttpHarness, tmp_path: Path
) -> None:
    plan = {"title": "t", "steps": [{"id": "a", "kind": "python", "call": "builtin.echo"}]}
    planned = (await scene.caller.post("/v1/tasks", json={"plan": plan, "project": str(tmp_path)})).json()
    asked = (await scene.caller.post("/v1/asks", json=body(tmp_path))).json()
    await ended(scene, asked)
    own = (await scene.bench.store.sessions.session(asked["session"]["id"])).ownership
    await scene.bench.store.sessions.close_session(own)

    without = await scene.caller.post(f"/v1/sessions/{planned['session']['id']}/asks", json={"goal": "And?"})
    closed = await scene.caller.post(f"/v1/sessions/{asked['session']['id']}/asks", json={"goal": "And?"})

    assert (without.status_code, code_of(without)) == (404, "not_found")
    assert (closed.status_code, closed.json()["session"]["is_closed"]) == (201, False)


async def test_what_a_person_has_granted_a_session_is_not_for_another_goal_of_a_runner(open_http: OpenScene) -> None:
    async with open_http() as opened:
        store, catalogue = opened.bench.store, await opened.api.catalogue()
        request = await opened.ask()
        session = replace(
            await store.sessions.session(request.identity.session_id),
            policy=replace(catalogue.policy, read_roots=()).as_json(),
        )
        token, _ = make_token(session.principal, [Right.RUN], now_us=0)
        caller = Caller(token, None)
        await check_follow_up(caller, session, store.consent, catalogue, opened.api.client.settings)
        answer = {"choice": "allow_for_session", "input_digest": request.input_digest}
        await opened.caller.post(f"/v1/approvals/{request.id}/answer", json=answer)
        await opened.verdict()

        with pytest.raises(ProblemError, match="needs the right 'approve'"):
            await check_follow_up(caller, session, store.consent, catalogue, opened.api.client.settings)
