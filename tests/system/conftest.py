"""System tests run over both deployments that users have: the embedded store and Redis, and servers over TCP."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.system.deployment import Deployment


@pytest.fixture(params=["sqlite", "postgres"])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Deployment]:
    """SQLite and Redis on a unix socket, then PostgreSQL and Redis over TCP; workers are started by the tests."""
    if request.param == "sqlite":
        urls = (f"sqlite:///{tmp_path / 'soong.db'}", request.getfixturevalue("redis_url"))
    else:
        urls = (request.getfixturevalue("postgres_url"), request.getfixturevalue("redis_tcp_url"))
    async with Deployment(*urls, tmp_path) as deployment:
        yield deployment
