"""A real PgBouncer before the database: refused where it shares server processes, used in session mode."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from soong.shared.core.jsontext import JsonObject
from tests.contract.databases import migrate
from tests.extra import pgbouncer
from tests.servers import pgbouncer_server
from tests.system.deployment import Deployment

SOONG = str(Path(sys.executable).parent / "soong")
PLAN: JsonObject = {
    "title": "pooled",
    "steps": [{"id": "only", "kind": "python", "call": "builtin.echo", "inputs": {"value": 1}}],
}

SHARING = {
    "transaction": ["pool_mode = transaction"],
    "transaction, one server connection": ["pool_mode = transaction", "default_pool_size = 1"],
    "transaction, round robin": ["pool_mode = transaction", "server_round_robin = 1"],
    "transaction, options dropped": ["pool_mode = transaction", "ignore_startup_parameters = options"],
    "statement": ["pool_mode = statement"],
}
SESSION = {
    "options refused": ["pool_mode = session", "default_pool_size = 60"],
    "options dropped": ["pool_mode = session", "default_pool_size = 60", "ignore_startup_parameters = options"],
}


@pytest.mark.parametrize("settings", SHARING.values(), ids=SHARING.keys())
def test_a_pgbouncer_that_shares_server_processes_is_refused(
    tmp_path: Path, postgres_url: str, settings: list[str]
) -> None:
    program = pgbouncer()
    migrate(postgres_url)
    with pgbouncer_server(program, postgres_url, *settings) as url:
        environment = {**os.environ, "SOONG_AGENT_HOME": str(tmp_path), "SOONG_DATABASE_URL": url}
        told, looked = (
            subprocess.run([SOONG, command], env=environment, capture_output=True, text=True, check=False, timeout=90)
            for command in ("migrate", "doctor")
        )

    assert told.returncode == 2, told.stdout + told.stderr
    assert "pool_mode = session" in told.stderr
    assert looked.returncode == 1
    assert "FAIL  database" in looked.stdout
    assert "pool_mode = session" in looked.stdout


@pytest.mark.parametrize("settings", SESSION.values(), ids=SESSION.keys())
async def test_a_deployment_works_by_a_pgbouncer_in_session_mode(
    tmp_path: Path, postgres_url: str, redis_url: str, settings: list[str]
) -> None:
    with pgbouncer_server(pgbouncer(), postgres_url, *settings) as url:
        async with Deployment(url, redis_url, tmp_path) as service:
            await service.start_workers(1)
            ended = await service.finished(await service.submit(PLAN))

    assert str(ended.status) == "completed"
