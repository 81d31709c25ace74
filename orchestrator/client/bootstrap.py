"""Builds the parts of a client: the store, the notifier and the subscriber. No Celery: clients send no jobs.

Parts that only some commands need (metrics, garbage collection, roles, artifacts) are imported by their builders.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from soong.orchestrator.client.client import Client
from soong.shared.agents.run_models import Pauses
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.secret_values import secret_values
from soong.shared.core.settings import RUNS, Settings
from soong.shared.core.timing import Clock, SystemClock
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.sandbox.redact import redactor
from soong.shared.storage.redis.client import RedisClients, RedisNotifier
from soong.shared.storage.redis.pacing import RedisPacer
from soong.shared.storage.redis.subscriptions import RedisSubscriber
from soong.shared.storage.sql.store import open_store
from soong.shared.storage.store import Store

if TYPE_CHECKING:
    from soong.orchestrator.retention.collector import GarbageCollector
    from soong.shared.engine.tasks.metrics import MetricsSource
    from soong.shared.engine.tasks.retention import Retention
    from soong.shared.permissions.access.token import DatabaseRights
    from soong.shared.storage.artifacts import ArtifactFiles


async def open_client(settings: Settings, *, is_reading: bool = False) -> Client:
    """Connect to the deployment that the settings name. One that ``is_reading`` needs no Redis.
    Raises: InvalidConfigError, no Redis is named; UnavailableError, SchemaVersionError, the database cannot be used.
    """
    if not (settings.redis_url or is_reading):
        raise InvalidConfigError(
            "SOONG_REDIS_URL is not set; name the Redis of the service, or unset SOONG_DATABASE_URL"
        )
    secrets = redactor(secret_values(settings))
    store = await open_store(settings.effective_database_url, migrate=False, redactor=secrets)
    if not settings.redis_url:
        bus = MemoryBus()  # no service runs that could hear it
        return Client(store, bus, bus, SystemClock(), settings, closers=(store.close,))
    clients = RedisClients.of(settings.redis_url, name="soong-client")
    notifier = RedisNotifier(clients.commands)
    subscriber = RedisSubscriber(clients.blocking)
    return Client(
        store, notifier, subscriber, SystemClock(), settings, closers=(notifier.close, clients.close, store.close)
    )


@asynccontextmanager
async def opened_pauses(settings: Settings) -> AsyncIterator[Pauses]:
    """Open the pauses of models, for a person who looks at them or ends them; their Redis may be away."""
    clients = RedisClients.of(settings.redis_url, name="soong-models")
    try:
        yield RedisPacer(clients.commands)
    finally:
        await clients.close()


@asynccontextmanager
async def opened_rows(settings: Settings) -> AsyncIterator[Store]:
    """Open the store alone: what is only read needs no Redis. Raises: UnavailableError, SchemaVersionError."""
    async with await open_client(settings.model_copy(update={"redis_url": ""}), is_reading=True) as client:
        yield client.store


def open_metrics(settings: Settings) -> "MetricsSource":
    """Return what reads metrics from the rows; nothing is connected yet."""
    from soong.shared.storage.sql.engine.engine import parse_url
    from soong.shared.storage.sql.tasks.metrics import SqlMetrics

    return SqlMetrics(parse_url(settings.effective_database_url))


@asynccontextmanager
async def opened_metrics(settings: Settings) -> "AsyncIterator[MetricsSource]":
    """Open what reads metrics from the rows."""
    metrics = open_metrics(settings)
    try:
        yield metrics
    finally:
        await metrics.close()


async def open_retention(settings: Settings) -> "Retention":
    """Open what removes rows of what has ended. Raises: UnavailableError, SchemaVersionError."""
    from soong.shared.storage.sql.engine.database import Database
    from soong.shared.storage.sql.engine.engine import parse_url
    from soong.shared.storage.sql.engine.schema import prepare
    from soong.shared.storage.sql.tasks.retention import SqlRetention

    url = parse_url(settings.effective_database_url)
    await asyncio.to_thread(prepare, url, migrate=False)
    return SqlRetention(Database(url))


@asynccontextmanager
async def open_collector(settings: Settings, clock: Clock) -> "AsyncIterator[GarbageCollector]":
    """Open the garbage collector of the deployment. Raises: UnavailableError, SchemaVersionError."""
    from soong.orchestrator.retention.collector import GarbageCollector
    from soong.orchestrator.retention.files import StoredFolders
    from soong.shared.sandbox.rooted import RootedFolder

    rows = await open_retention(settings)
    folders = StoredFolders(RootedFolder(settings.data, RUNS))
    try:
        yield GarbageCollector(rows, open_artifacts(settings), folders, clock)
    finally:
        await rows.close()


def standing_of(settings: Settings) -> "DatabaseRights | None":
    """Return what the database's role may do; None where there are no roles. Raises: UnavailableError."""
    from soong.shared.storage.sql.engine.engine import parse_url
    from soong.shared.storage.sql.roles.role_grants import standing

    return standing(parse_url(settings.effective_database_url))


async def migrate(
    settings: Settings, *, worker: str = "", orchestrator: str = "", client: str = "", scaler: str = ""
) -> None:
    """Bring the database to this program's schema, and give the named roles their rights on it.
    Raises: UnavailableError, SchemaVersionError, the database cannot be used; InvalidConfigError, rights cannot be
    given: see :func:`soong.shared.storage.sql.roles.role_grants.grant`.
    """
    from soong.shared.storage.sql.engine.engine import parse_url
    from soong.shared.storage.sql.roles.role_grants import Roles, grant

    store = await open_store(settings.effective_database_url, migrate=True)
    await store.close()
    roles = Roles(worker, orchestrator, client, scaler)
    if roles.named:
        await asyncio.to_thread(grant, parse_url(settings.effective_database_url), roles)


def copy_embedded_database(settings: Settings, target: Path) -> None:
    """Copy the home's database as it is at one moment. Raises: UnavailableError, OSError."""
    from soong.shared.storage.sql.snapshot import copy_database

    copy_database(settings.home / "soong.db", target)


def check_embedded_database(path: Path) -> str:
    """Return the schema of a copy that can be used. Raises: ForgedError, SchemaVersionError."""
    from soong.shared.storage.sql.snapshot import check_database

    return check_database(path)


def open_artifacts(settings: Settings) -> "ArtifactFiles":
    """Return the artifact store. Raises: InvalidConfigError."""
    from soong.shared.storage.artifact_store import open_artifact_store

    return open_artifact_store(settings)


def open_broker(settings: Settings) -> object:
    """Return the Celery app by which Flower reads the queues and events of a deployment."""
    from soong.shared.engine.wire.notifier import queue_of
    from soong.shared.storage.celery.app import make_celery

    app = make_celery(settings.redis_url, pools=settings.pools)
    # Flower lists it beside the others: Celery's own default is a queue that nothing here uses or may read.
    app.conf.task_default_queue = queue_of(settings.pools[0])
    return app
