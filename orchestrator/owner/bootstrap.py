"""Builds an orchestrator out of adapters; nothing else in this package names one."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import redis as redis_sync
from msgspec.structs import replace

from soong.orchestrator.approvals.broker import ApprovalBroker, ApprovalContext
from soong.orchestrator.approvals.deployment_key import DeploymentKey, open_key
from soong.orchestrator.client.bootstrap import open_collector
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.tool_registry import owner_registry
from soong.orchestrator.event_log.follower import Followers
from soong.orchestrator.owner.asks import AskRunner
from soong.orchestrator.owner.commands import Commands
from soong.orchestrator.owner.parts import Parts
from soong.orchestrator.owner.run_archive import RunArchive
from soong.orchestrator.owner.scheduler import Expander, Scheduler
from soong.orchestrator.owner.service import Orchestrator
from soong.orchestrator.owner.workers import Broker, Dispatcher
from soong.shared.agents.definition import MEMORY_EXTRACTOR
from soong.shared.agents.run_models import LocalPacer, Pacer
from soong.shared.agents.runtime.assembly import AgentRuntime
from soong.shared.agents.runtime.permission_gate import DecisionInbox
from soong.shared.core import timing
from soong.shared.core.config import CONFIG_FILE, Config, with_config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.installation import DISTRIBUTION, OptionalPart
from soong.shared.core.log import load_telemetry
from soong.shared.core.secret_values import secret_values
from soong.shared.core.settings import RUNS, Settings
from soong.shared.core.timing import Clock, SystemClock
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import DAY, configured_budget
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.wire.notifier import Notifier, Subscriber
from soong.shared.sandbox.redact import Redactor, redactor
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifact_store import open_artifact_store
from soong.shared.storage.celery.app import CeleryBroker, CeleryRunEvents, make_celery
from soong.shared.storage.redis.client import RedisClients, RedisNotifier
from soong.shared.storage.redis.pacing import RedisPacer
from soong.shared.storage.redis.subscriptions import RedisSubscriber
from soong.shared.storage.sql.store import open_store
from soong.shared.storage.store import Store, retry_until_confirmed
from soong.shared.tools.definition import Permission, ToolDefinition
from soong.shared.tools.ports import ArtifactStore
from soong.shared.toolsets.agents.looking import DefinitionsOf
from soong.shared.toolsets.sources import ToolEnvironment, all_hooks

if TYPE_CHECKING:
    from soong.orchestrator.memory.job import MemoryJob
    from soong.shared.toolsets.memory.provider import MemoryProvider

AGENT_CONNECTIONS = 512
"""With more calls waiting than this, some read the rows every second and get no notification in between."""

OWNER_SOURCE: Final = f"the orchestrator's {CONFIG_FILE}"

_OWN_NAMESPACES: Final = ("agent.", "internal.")


class Wires(Value):
    """The channels of an orchestrator. ``waiting`` subscribes for the calls of its agents."""

    notifier: Notifier
    subscriber: Subscriber
    waiting: Subscriber
    broker: Broker
    pacer: Pacer
    show_cancelled: Callable[[str, str], None] | None = None
    closers: tuple[Callable[[], Awaitable[None]], ...] = ()


async def build(settings: Settings) -> Orchestrator:
    """Open the store (migrating it), Redis and the broker, and put an orchestrator together, not started yet.
    Raises: InvalidConfigError, no Redis is named, or the signing key is not one of this deployment; UnavailableError, a
    server does not answer.
    """
    if not settings.redis_url:
        raise InvalidConfigError("SOONG_REDIS_URL is not set; start an embedded service with `soong up` instead")
    # Loop, writer and dispatcher hand each other short work: with CPython's 5 ms a look waits for the busiest of them.
    sys.setswitchinterval(timing.TICK_S)
    return await assemble(settings, SystemClock(), _redis_wires)


async def assemble(settings: Settings, clock: Clock, open_wires: Callable[[Settings], Wires]) -> Orchestrator:
    """Open the store (migrating it), then the wires, and put an orchestrator together, not started yet.
    Raises: InvalidConfigError, the signing key is not one of this deployment; UnavailableError, no database.
    """
    catalogue = Catalogue.of(settings, starts_servers=settings.is_embedded)
    config, settings = catalogue.config, with_config(settings, catalogue.config)
    secrets = redactor(secret_values(settings, config.secret_env, config.secret_files))
    store, key = await _opened(settings, config, clock, secrets)
    return _orchestrator(settings, catalogue, store, key, clock, secrets, open_wires(settings))


def _redis_wires(settings: Settings) -> Wires:
    clients = RedisClients.of(settings.redis_url, name="soong-owner")
    # Each call of an agent that waits listens to its session: what it needs is taken from nobody else here.
    agent_clients = RedisClients.of(settings.redis_url, name="soong-agents", blocking=AGENT_CONNECTIONS)
    notifier = RedisNotifier(clients.commands)
    queues = redis_sync.Redis.from_url(settings.redis_url, socket_timeout=timing.COMMAND_LIMIT_S)  # of the workers
    return Wires(
        notifier,
        RedisSubscriber(clients.blocking),
        RedisSubscriber(agent_clients.blocking),
        CeleryBroker(make_celery(settings.redis_url), queues),
        RedisPacer(clients.commands),
        CeleryRunEvents(make_celery(settings.redis_url)).cancelled if settings.flower_events else None,
        (notifier.close, agent_clients.close, clients.close),
    )


def _orchestrator(
    settings: Settings,
    catalogue: Catalogue,
    store: Store,
    key: DeploymentKey,
    clock: Clock,
    secrets: Redactor,
    wires: Wires,
) -> Orchestrator:
    planner = catalogue.live_planner(settings.model, settings.max_children_per_run, reads_projects=settings.is_embedded)
    notifier, subscriber = wires.notifier, wires.subscriber
    artifacts = open_artifact_store(settings)
    memory, job = _memory(settings, catalogue, store, clock)
    built: list[Orchestrator] = []

    def owner_id() -> str:  # known to the broker before the orchestrator has registered
        return built[0].owner_id if built else ""

    show = wires.show_cancelled
    folders = RunArchive(store, artifacts, RootedFolder(settings.data, RUNS), clock, job)
    followers = _followers(settings, catalogue.config, store, clock, owner_id, secrets)
    inbox = DecisionInbox(store.consent, subscriber, "")
    expander = Expander(store.tasks, store.runs, clock, settings.max_children_per_run, asyncio.to_thread)
    approvals = ApprovalContext(store, notifier, key, clock, settings, owner_id, redactor=secrets, show_cancelled=show)
    parts = Parts(
        store=store,
        notifier=notifier,
        subscriber=subscriber,
        clock=clock,
        scheduler=Scheduler(store.tasks, store.runs, expander, clock),
        commands=Commands(store.sessions, store.tasks, store.runs, notifier, clock, planner, job),
        dispatcher=Dispatcher(store.claims, store.sessions, wires.broker, notifier),
        broker=ApprovalBroker(approvals),
        recorder=folders,
        agents=owner_agents(
            settings,
            catalogue.config,
            store,
            inbox,
            artifacts,
            TaskService(store, notifier, wires.waiting, clock, planner),
            lambda project: catalogue.at(project if settings.is_embedded else None).definitions,
            wires.pacer,
            memory,
        ),
        memory=job,
        closers=(*followers.closers, inbox.close, folders.close, *wires.closers),
        background=followers.background,
    )
    built.append(Orchestrator(parts, settings))
    return built[0]


def _followers(
    settings: Settings, config: Config, store: Store, clock: Clock, owner_id: Callable[[], str], secrets: Redactor
) -> Followers:
    """Return what this process does besides owning: traces, counters, notifications, garbage collection."""
    parts: list[Followers] = []
    with OptionalPart("soong.orchestrator.telemetry"):
        from soong.orchestrator.telemetry.consumers import count_events, open_telemetry

        parts.append(open_telemetry(load_telemetry(), store, clock, owner_id, version(DISTRIBUTION)))
        if settings.metrics_port:
            parts.append(count_events(store, clock, owner_id))
    with OptionalPart("soong.orchestrator.notifications"):
        from soong.orchestrator.notifications.sender import open_notifications

        known = config.notifications
        parts.append(open_notifications(known, store, clock, owner_id, secrets, is_local=settings.is_embedded))
    with OptionalPart("soong.orchestrator.retention"):
        from soong.orchestrator.retention.collector import AutomaticRetention, RetentionSettings

        retention = AutomaticRetention(RetentionSettings.of(settings), partial(open_collector, settings, clock), clock)
        if retention.wanted.is_on:
            parts.append(Followers((retention.run,)))
    background = tuple(begin for part in parts for begin in part.background)
    return Followers(background, tuple(close for part in parts for close in part.closers))


async def _opened(settings: Settings, config: Config, clock: Clock, secrets: Redactor) -> tuple[Store, DeploymentKey]:
    """Open the store, with the budget of the day in it, and the key of the deployment."""
    store = await open_store(settings.effective_database_url, migrate=True, redactor=secrets)
    try:
        budget = configured_budget(config.budgets.day, "day")
        await retry_until_confirmed(lambda: store.budgets.set_budget(DAY, budget), what="the budget of the day")
        return store, await open_key(store, settings.key_file, clock)
    except BaseException:
        await store.close()
        raise


def _memory(
    settings: Settings, catalogue: Catalogue, store: Store, clock: Clock
) -> "tuple[MemoryProvider | None, MemoryJob | None]":
    """Return where memories are, and what remembers sessions that end.
    Raises: InvalidConfigError, the provider or the extractor cannot be used.
    """
    with OptionalPart("soong.orchestrator.memory"):
        from soong.orchestrator.memory.job import MemoryJob
        from soong.shared.storage.memory.files import open_memory
        from soong.shared.toolsets.memory.provider import import_extractor

        config, folders = catalogue.config.memory, settings.import_folders
        memory = open_memory(settings, catalogue.config)
        script = import_extractor(config.extractor, folders) if config.enabled and config.extractor else ""
        runs, definition = RootedFolder(settings.data, RUNS), catalogue.definitions.get(MEMORY_EXTRACTOR)
        return memory, MemoryJob(store, config, definition, memory, runs, clock, script)
    return None, None


def owner_agents(
    settings: Settings,
    config: Config,
    store: Store,
    inbox: DecisionInbox,
    artifacts: ArtifactStore,
    service: TaskService,
    definitions_of: DefinitionsOf,
    pacer: Pacer | None = None,
    memory: "MemoryProvider | None" = None,
) -> AskRunner:
    """Return what runs the agents of asks in this process.

    ``definitions_of`` returns the definitions that may be named in a project now.
    Raises: InvalidConfigError, InvalidToolError, the configuration of the home or a module of tools cannot be used.
    """
    environment = ToolEnvironment.of(settings, config, starts_servers=settings.is_embedded)
    # In a deployment this process has the signing key: it reads no file and no module of a project (docs/security.md).
    if not settings.is_embedded:
        environment = replace(environment, modules=())
    clean = environment.redactor
    runtime = AgentRuntime(
        store=store,
        notifier=service.notifier,
        inbox=inbox,
        artifacts=artifacts,
        clock=service.clock,
        settings=settings,
        config=config,
        registry=owner_registry(
            environment, service, service.clock, definitions_of, memory=memory, patience_s=settings.no_worker_s
        ),
        hooks=all_hooks(environment),
        redactor=clean,
        source=OWNER_SOURCE,
        pacer=pacer or LocalPacer(),
        offers=any_tool if settings.is_embedded else is_harmless,
    )
    return AskRunner(store.asks, store.sessions, runtime, service.notifier, service.clock, clean, settings.max_asks)


def any_tool(_tool: ToolDefinition) -> bool:
    """Offer every tool: orchestrator, worker and client are one user's processes on one machine."""
    return True


def is_harmless(tool: ToolDefinition) -> bool:
    """Say whether a tool may run in the process that holds the signing key."""
    return tool.permission is Permission.READONLY and tool.name.startswith(_OWN_NAMESPACES)
