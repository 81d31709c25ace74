"""Builds an orchestrator out of adapters; nothing else in this package names one."""

import asyncio
import sys
from dataclasses import dataclass
from functools import partial

import redis as redis_sync

from orchestrator.automatic_retention import AutomaticRetention, RetentionSettings
from orchestrator.catalogue import Catalogue
from orchestrator.client_bootstrap import open_collector
from orchestrator.commands import Commands
from orchestrator.deployment_key import open_key
from orchestrator.desk import Desk
from orchestrator.dispatcher import Dispatcher
from orchestrator.expander import Expander
from orchestrator.record import RunFolders
from orchestrator.scheduler import Scheduler
from orchestrator.service import Orchestrator, Parts
from shared.adapters.artifacts import FolderArtifacts
from shared.adapters.celery_app import make_celery
from shared.adapters.celery_broker import CeleryBroker
from shared.adapters.celery_events import CeleryRunEvents
from shared.adapters.redis.client import RedisClients
from shared.adapters.redis.ring import RedisRing
from shared.adapters.redis.switchboard import RedisSwitchboard
from shared.adapters.sql.store import open_store
from shared.clock import SystemClock
from shared.errors import InvalidConfigError
from shared.sandbox.redact import redactor
from shared.sandbox.rooted import RootedFolder
from shared.settings import ARTIFACTS, RUNS, Settings, secret_values

BROKER_TIMEOUT_S = 5.0
SWITCH_INTERVAL_S = 0.001


@dataclass(slots=True)
class _OwnerId:
    """The orchestrator's id, known to the desk before the orchestrator has registered."""

    orchestrator: Orchestrator | None = None

    def __call__(self) -> str:
        return self.orchestrator.owner_id if self.orchestrator is not None else ""


async def build(settings: Settings) -> Orchestrator:
    """Open the store (migrating it), Redis and the broker, and put an orchestrator together, not started yet.

    Raises:
        InvalidConfigError: no Redis is named, or the signing key is not one of this deployment.
        UnavailableError: a server does not answer.
    """
    if not settings.redis_url:
        raise InvalidConfigError("SOONG_REDIS_URL is not set; start an embedded service with `soong up` instead")
    # Loop, writer and dispatcher hand each other short work: with CPython's 5 ms a look waits for the busiest of them.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    clock = SystemClock()
    retention = AutomaticRetention(RetentionSettings.of(settings), partial(open_collector, settings, clock), clock)
    planner = Catalogue.of(settings).planner(settings.model, settings.max_children_per_run)
    secrets = redactor(secret_values(settings))
    store = await open_store(settings.effective_database_url, migrate=True, redactor=secrets)
    try:
        key = await open_key(store, settings.key_file, clock)
    except BaseException:
        await store.close()
        raise
    clients = RedisClients.of(settings.redis_url, name="soong-owner")
    ring = RedisRing(clients.commands)
    switchboard = RedisSwitchboard(clients.blocking)
    artifacts = FolderArtifacts(RootedFolder(settings.data, ARTIFACTS))
    folders = RunFolders(store, artifacts, RootedFolder(settings.data, RUNS), clock)
    client = redis_sync.Redis.from_url(settings.redis_url, socket_timeout=BROKER_TIMEOUT_S)
    broker = CeleryBroker(make_celery(settings.redis_url), client)
    events = CeleryRunEvents(make_celery(settings.redis_url)) if settings.flower_events else None
    owner_id = _OwnerId()
    parts = Parts(
        store=store,
        ring=ring,
        switchboard=switchboard,
        clock=clock,
        scheduler=Scheduler(
            store, store, Expander(store, store, clock, settings.max_children_per_run, asyncio.to_thread), clock
        ),
        commands=Commands(store, store, store, ring, clock, planner),
        dispatcher=Dispatcher(store, store, broker),
        desk=Desk(store, ring, key, clock, settings, owner_id=owner_id, redactor=secrets, events=events),
        recorder=folders,
        closers=(folders.close, ring.close, clients.close),
        background=(retention.run,) if retention.wanted.is_on else (),
    )
    owner_id.orchestrator = Orchestrator(parts, settings)
    return owner_id.orchestrator
