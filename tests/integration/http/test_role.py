"""The API under a database role of its own: it does all its work, and can neither decide nor make a token."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.storage.sql.engine.engine import parse_url
from soong.shared.storage.sql.roles.role_grants import Roles, grant
from tests.integration.http.scene import HttpHarness, code_of, open_scene
from tests.integration.roles import ORCHESTRATOR, WORKER, with_roles
from tests.servers import PostgresServer, RedisServer

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
        request = await scene.ask()
        body = {"choice": "allow_once", "input_digest": request.input_digest}
        first = await scene.caller.post(f"/v1/approvals/{request.id}/answer", json=body)
        scene.bench.clock.advance(_SECOND)
        second = await scene.caller.post(f"/v1/approvals/{request.id}/answer", json=body)
        seen = await _read_everything(scene, task, request.identity.run_id)

        assert submitted.status_code == 201
        assert [one.status_code for one in (*steered, closed, again, first)] == [200] * 6
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
        "DELETE FROM audit",
        "UPDATE audit SET data = '{}'",
        "CREATE TABLE mine (x int)",
    ],
)
def test_its_role_cannot_do_what_is_not_its_business(urls: tuple[str, str], statement: str) -> None:
    with psycopg.connect(_plain(urls[1])) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement.encode())
