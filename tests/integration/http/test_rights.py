"""What a token's rights and the API's database role allow and do not: the rows of docs/security.md."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from httpx import AsyncClient
from sqlalchemy import make_url

from soong.orchestrator.http.app import description
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.permissions.access.token import Right
from soong.shared.permissions.request import PermissionRequest
from soong.shared.storage.artifacts import FolderArtifacts
from soong.shared.storage.sql.engine.engine import parse_url
from soong.shared.storage.sql.roles.role_grants import Roles, grant
from tests.integration.http.conftest import own_scene as scene
from tests.integration.http.scene import BOB, HttpHarness, code_of, open_scene
from tests.integration.roles import ORCHESTRATOR, WORKER, with_roles
from tests.servers import PostgresServer, RedisServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

__all__ = ["scene"]
PLAN = {"title": "Of ada", "steps": [{"id": "only", "script": "builtin.echo"}]}
STEERED = ("pause", "resume", "cancel", "retry")
RAISES: tuple[dict[str, object], ...] = ({"budget": "9usd"}, {"limits": {"max_turns": 9}})
SAYS_WHAT = ({"agent": "default_worker_agent"}, {"instructions": "write"}, {"allowed_tools": ["code.write_file"]})
"""What a dispatch says when it decides what its runs do."""


async def submitted(client: AsyncClient, project: Path, **more: Any) -> tuple[str, str]:
    """Submit a plan; return the addresses of its task and its session."""
    told = (await client.post("/v1/tasks", json={"plan": PLAN, "project": str(project), **more})).json()
    return f"/v1/tasks/{told['task']['id']}", f"/v1/sessions/{told['session']['id']}"


async def posted(client: AsyncClient, *requests: tuple[str, object]) -> list[str]:
    """Return the code of each refusal."""
    return [code_of(await client.post(path, json=body)) for path, body in requests]


def answer_to(request: PermissionRequest) -> tuple[str, object]:
    return f"/v1/approvals/{request.id}/answer", {"choice": "allow_once", "input_digest": request.input_digest}


@pytest.mark.spec("OPS-04", "OPS-12.a", "PER-13.g")
async def test_with_read_everything_of_everybody_is_seen_and_nothing_is_changed(
    scene: HttpHarness, tmp_path: Path
) -> None:
    task, session = await submitted(scene.caller, tmp_path)
    request = await scene.ask()
    reader = await scene.someone(BOB, Right.READ)
    ids = {"task_id": task[10:], "session_id": session[13:], "run_id": request.identity.run_id, "kind": "task"}
    ids["request_id"] = request.id
    assert isinstance(scene.api.artifacts, FolderArtifacts)
    ids["digest"] = (await scene.api.artifacts.put(b"kept")).digest
    operations = [
        (method, path.format(**ids), described["x-right"])
        for path, methods in description()["paths"].items()
        for method, described in methods.items()
        if described["x-right"] is not None and not path.endswith(("/stream", "/ids/{kind}", "/fork"))
    ]

    step = {"id": request.identity.step_key.partition("/")[2]}
    of_step = f"/v1/tasks/{request.identity.task_id}/step"
    reads = [path for method, path, _ in operations if method == "get" and not path.endswith("/step")]
    seen = [(await reader.get(path)).status_code for path in reads]
    seen.append((await reader.get(of_step, params=step)).status_code)
    seen.append((await reader.get("/v1/ids/run", params={"text": request.identity.run_id})).status_code)
    changing = [path for method, path, _ in operations if method != "get" and not path.endswith("/validate")]
    refused = await posted(reader, *((path, {}) for path in changing))
    beforehand = await scene.caller.get(task)

    assert len(seen) >= 14
    assert set(seen) == {200}
    assert len(changing) >= 9
    assert set(refused) == {"forbidden"}
    assert (await scene.caller.get(task)).json() == beforehand.json()
    assert await scene.bench.store.consent.answer_of(request.id) is None


@pytest.mark.spec("OPS-04", "OPS-12.a", "PER-13.g")
async def test_with_run_ones_own_is_started_and_steered_and_nothing_is_allowed(
    scene: HttpHarness, tmp_path: Path
) -> None:
    foreign, session = await submitted(scene.caller, tmp_path)
    request = await scene.ask()
    runner = await scene.someone(BOB, Right.RUN)
    own, _ = await submitted(runner, tmp_path)

    steered = [(await runner.post(f"{own}/{word}")).status_code for word in ("pause", "resume", "cancel")]
    others = await posted(runner, *((f"{foreign}/{word}", {}) for word in STEERED), (f"{session}/close", {}))
    submission = {"plan": PLAN, "project": str(tmp_path)}
    consent = await posted(
        runner,
        ("/v1/tasks", {**submission, "allow": [f"code.write_file:{tmp_path}"]}),
        ("/v1/tasks", {**submission, "step_grants": [{"step": "only", "grant_digest": "0" * 64}]}),
        answer_to(request),
        *((f"{own}/dispatch", says) for says in SAYS_WHAT),
        *((f"{own}/resume", more) for more in RAISES),
    )

    assert steered == [200, 200, 200]
    assert set(others) == {"not_yours"}
    assert set(consent) == {"forbidden"}
    assert await scene.bench.store.consent.answer_of(request.id) is None


@pytest.mark.spec("OPS-04", "OPS-12.a", "PER-13.g")
async def test_with_approve_any_question_of_an_inbox_is_answered_and_nothing_is_started(
    scene: HttpHarness, tmp_path: Path
) -> None:
    foreign, session = await submitted(scene.caller, tmp_path)
    request = await scene.ask()  # of a session of the principal `local`
    approver = await scene.someone(BOB, Right.APPROVE)
    path, body = answer_to(request)

    refused = await posted(
        approver,
        ("/v1/tasks", {"plan": PLAN, "project": str(tmp_path)}),
        ("/v1/tasks/preview", {"plan": PLAN, "project": str(tmp_path)}),
        *((f"{foreign}/{word}", {}) for word in (*STEERED, "dispatch")),
        (f"{session}/close", {}),
    )
    answered = await approver.post(path, json=body)

    assert set(refused) == {"forbidden"}
    assert answered.json()["answer"]["principal"] == BOB
    assert (await scene.verdict()).is_allowed


@pytest.mark.spec("OPS-04", "OPS-12.a", "PER-13.g")
async def test_with_admin_what_is_others_is_steered_and_nothing_is_answered_or_allowed(
    scene: HttpHarness, tmp_path: Path
) -> None:
    foreign, session = await submitted(scene.caller, tmp_path)
    request = await scene.ask()
    administrator = await scene.someone(BOB, Right.ADMIN)

    consent = await posted(
        administrator,
        answer_to(request),
        ("/v1/tasks", {"plan": PLAN, "project": str(tmp_path), "allow": [f"code.write_file:{tmp_path}"]}),
        *((f"{foreign}/dispatch", says) for says in SAYS_WHAT),
        *((f"{foreign}/resume", more) for more in RAISES),
    )
    others = await posted(await scene.someone(BOB), *((f"{foreign}/resume", more) for more in RAISES))
    steered = [(await administrator.post(f"{foreign}/{word}")).status_code for word in ("pause", "resume", "cancel")]
    closed = await administrator.post(f"{session}/close")
    scope = {"scope": "pool:default"}
    paused = [
        await one.post("/v1/limits/pause", json=scope) for one in (await scene.someone(BOB, Right.RUN), administrator)
    ]

    assert set(consent) == {"forbidden"}
    assert code_of(paused[0]) == "forbidden"
    assert paused[1].json()["limits"] == [{**scope, "limit": 0, "used": 1, "is_paused": True}]
    assert set(others) == {"not_yours"}
    assert steered == [200, 200, 200]
    assert closed.json()["is_closed"]
    assert await scene.bench.store.consent.answer_of(request.id) is None


@pytest.mark.spec("OPS-04", "OPS-12.a", "PER-13.g")
@pytest.mark.parametrize("rights", [tuple(Right), (Right.ADMIN,)], ids=["every right", "admin"])
async def test_with_no_right_a_token_or_a_key_is_made_or_revoked(scene: HttpHarness, rights: tuple[Right, ...]) -> None:
    client = await scene.someone(BOB, *rights)
    before = await scene.bench.store.access.tokens()
    named = [f"/v1/{what}{below}" for what in ("tokens", "keys") for below in ("", "/tok_1", "/tok_1/revoke")]

    answers = [code_of(await client.request(how, path)) for path in named for how in ("GET", "POST", "PUT", "DELETE")]

    assert set(answers) == {"not_found"}
    assert [path for path in description()["paths"] if "token" in path or "key" in path] == []
    assert await scene.bench.store.access.tokens() == before


@pytest.mark.spec("OPS-04", "OPS-12.a", "PER-13.g")
@pytest.mark.parametrize("more", [(), (Right.APPROVE,)], ids=["run", "run and approve"])
async def test_no_operation_changes_what_is_of_another_principal(
    scene: HttpHarness, tmp_path: Path, more: tuple[Right, ...]
) -> None:
    task, session = await submitted(scene.caller, tmp_path)
    request = await scene.ask()
    ids = {"task_id": task[10:], "session_id": session[13:], "run_id": request.identity.run_id, "kind": "task"}
    bodies: dict[str, object] = {
        "answer": answer_to(request)[1],
        "asks": {"goal": "write"},
        "priority": {"priority": 1},
    }
    changing = [
        path
        for path, methods in description()["paths"].items()
        for method, described in methods.items()
        if method != "get" and described["x-right"] is not None and "{" in path
        # Every approver answers every question of an inbox.
        if not (more and described["x-right"] == Right.APPROVE)
    ]
    bob = await scene.someone(BOB, Right.RUN, *more)
    before = [(await scene.caller.get(path)).json() for path in (task, session)]

    answers = {
        path: await bob.post(path.format(**ids, request_id=request.id), json=bodies.get(path.rpartition("/")[2], {}))
        for path in changing
    }

    assert len(changing) >= 8
    assert {path: answer.text for path, answer in answers.items() if answer.status_code not in (403, 404)} == {}
    assert [(await scene.caller.get(path)).json() for path in (task, session)] == before
    assert await scene.bench.store.consent.answer_of(request.id) is None


CLIENT = "soong_client"
_SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def urls(postgres_session_server: PostgresServer) -> Iterator[tuple[str, str]]:
    """Return the deployment's URL for its orchestrator and for the API."""
    with postgres_session_server.fresh_database("soong_http_role") as url:
        urls = with_roles(url)
        with psycopg.connect(_plain(url), autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (CLIENT,)).fetchone() is None:
                connection.execute(f"CREATE ROLE {CLIENT} LOGIN".encode())
        grant(parse_url(urls.owner), Roles(worker=WORKER, orchestrator=ORCHESTRATOR, client=CLIENT))
        yield url, url.replace("//postgres@", f"//{CLIENT}@")


def _plain(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.mark.spec("OPS-04", "PER-13")
async def test_the_api_works_under_its_own_role(urls: tuple[str, str], redis_live: RedisServer, tmp_path: Path) -> None:
    admin, client = urls
    plan = {"title": "x", "steps": [{"id": "a", "script": "builtin.echo"}]}
    async with open_scene(admin, redis_live.socket_url, tmp_path, ApprovalMode.INBOX, server_url=client) as scene:
        submitted = await scene.caller.post("/v1/tasks", json={"plan": plan, "project": str(tmp_path)})
        task = f"/v1/tasks/{submitted.json()['task']['id']}"
        steered = [await scene.caller.post(f"{task}/{word}") for word in ("pause", "resume", "cancel")]
        closed = await scene.caller.post(f"/v1/sessions/{submitted.json()['session']['id']}/close")
        again = await scene.caller.post(f"{task}/retry")
        scope = {"scope": f"session:{submitted.json()['session']['id']}"}
        limits = [await scene.caller.post(f"/v1/limits/{word}", json=scope) for word in ("pause", "pause", "resume")]
        request = await scene.ask()
        body = {"choice": "allow_once", "input_digest": request.input_digest}
        first = await scene.caller.post(f"/v1/approvals/{request.id}/answer", json=body)
        scene.bench.clock.advance(_SECOND)
        second = await scene.caller.post(f"/v1/approvals/{request.id}/answer", json=body)
        seen = await _read_everything(scene, task, request.identity.run_id)

        assert submitted.status_code == 201
        assert [one.status_code for one in (*steered, closed, again, *limits, first)] == [200] * 9
        assert [[one["is_paused"] for one in done.json()["limits"]] for done in limits] == [[True], [True], []]
        assert code_of(second) == "already_decided"
        assert set(seen) == {200}


async def _read_everything(scene: HttpHarness, task: str, run_id: str) -> list[int]:
    paths = ["/v1/ready", "/v1/workers", "/v1/metrics", "/v1/sessions", "/v1/tasks"]
    paths += [task, f"{task}/result", f"{task}/graph"]
    runs = (f"/v1/runs/{run_id}", f"/v1/runs/{run_id}/events", f"/v1/runs/{run_id}/nodes", "/v1/approvals?state=all")
    return [(await scene.caller.get(path)).status_code for path in (*paths, *runs)]


@pytest.mark.spec("PER-12", "PER-13")
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO decisions (request_id, id, body) VALUES ('r', 'd', '{}')",
        "INSERT INTO signing_keys (id, public_key) VALUES ('k', '')",
        "INSERT INTO consumptions (decision_id, run_id, tool_call_id) VALUES ('d', 'r', 'c')",
        "INSERT INTO api_tokens (id, principal, rights, digest) VALUES ('t', 'root', '[]', '')",
        "UPDATE api_tokens SET rights = '[\"approve\"]'",
        "UPDATE api_tokens SET revoked_us = NULL",
        "UPDATE answers SET choice = 'allow_once'",
        "DELETE FROM answers",
        "UPDATE permission_requests SET state = 'decided'",
        "UPDATE sessions SET policy = '{}'",
        "UPDATE runs SET role = 'main'",
        "UPDATE steps SET status = 'completed'",
        "INSERT INTO nodes (run_id, number, parent, kind, created_us) VALUES ('r', 1, 0, 'user', 0)",
        "UPDATE concurrency_limits SET slots = 1000",
        "DELETE FROM concurrency_limits",
        "DELETE FROM audit",
        "UPDATE audit SET data = '{}'",
        "CREATE TABLE mine (x int)",
    ],
)
async def test_its_role_cannot_do_what_is_not_its_business(urls: tuple[str, str], statement: str) -> None:
    with psycopg.connect(_plain(urls[1])) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement.encode())
