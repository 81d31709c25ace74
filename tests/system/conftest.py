"""System tests run over both deployments that users have: the embedded store and Redis, and servers over TCP."""

import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from llmock.testing import LLMockServer

from tests.system.cli_scene import CliHarness, scene
from tests.system.deployment import Deployment
from tests.system.faults.servers import MortalPostgres, MortalRedis, mortal_postgres, mortal_redis
from tests.wires.wire import Wires


@pytest.fixture(params=["sqlite", "postgres"])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Deployment]:
    """SQLite and Redis on a unix socket, then PostgreSQL and Redis over TCP; workers are started by the tests.

    ``EXTRA`` of a module are more settings.
    """
    if request.param == "sqlite":
        urls = (f"sqlite:///{tmp_path / 'soong.db'}", request.getfixturevalue("redis_url"))
    else:
        urls = (request.getfixturevalue("postgres_url"), request.getfixturevalue("redis_tcp_url"))
    async with Deployment(*urls, tmp_path, extra=getattr(request.module, "EXTRA", {})) as deployment:
        yield deployment


@pytest.fixture
def cli(request: pytest.FixtureRequest) -> Iterator[CliHarness]:
    """A home and the folder that commands are called in; ``SCENE`` of a module says how they are made."""
    with scene(**getattr(request.module, "SCENE", {})) as one:
        yield one


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="soong-test-") as path:
        yield Path(path).resolve()


@pytest.fixture
def wires(cli: CliHarness) -> Iterator[Wires]:
    """A server of models on every provider's wire, which the processes of the scene find."""
    with LLMockServer() as server:
        wires = Wires(server)
        cli.environment |= wires.environment
        yield wires


@pytest.fixture
def redis(request: pytest.FixtureRequest) -> Iterator[MortalRedis]:
    """A Redis of the test's own, to be killed; a parameter is its further options."""
    with mortal_redis(*getattr(request, "param", ())) as server:
        yield server


@pytest.fixture(scope="module")
def mortal_postgres_server() -> Iterator[MortalPostgres]:
    with mortal_postgres() as server:
        yield server


@pytest.fixture
def postgres(mortal_postgres_server: MortalPostgres) -> MortalPostgres:
    """An empty database on a PostgreSQL that may be killed."""
    mortal_postgres_server.make_database(f"soong_{uuid.uuid4().hex[:16]}")
    return mortal_postgres_server


@pytest.fixture
def no_owner(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Deployment:
    """A deployment whose owners are processes that the test starts."""
    kind = getattr(request, "param", "sqlite")
    url = f"sqlite:///{tmp_path / 'soong.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    return Deployment(url, redis_url, tmp_path, has_own_owner=False)
