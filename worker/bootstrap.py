"""Builds a worker process out of adapters and runs it to its end; nothing else in this package names one."""

import asyncio
import json
import os
import random
import secrets
import socket
import sys
import threading
from datetime import timedelta
from typing import Final

from soong.shared.agents.pacing import Pacer
from soong.shared.agents.runtime.decision_inbox import DecisionInbox
from soong.shared.agents.runtime.prepared import AgentObserver
from soong.shared.core import timing
from soong.shared.core.clock import SystemClock
from soong.shared.core.config import Config, load_config
from soong.shared.core.configured_settings import with_config
from soong.shared.core.errors import InvalidConfigError, SoongError
from soong.shared.core.log import configure, get_logger
from soong.shared.core.settings import Settings, secret_values
from soong.shared.core.startup import settle_gc
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.sandbox.redact import Redactor, redactor
from soong.shared.storage.artifact_store import open_artifact_store
from soong.shared.storage.redis.client import RedisClients
from soong.shared.storage.redis.notifier import RedisNotifier
from soong.shared.storage.redis.pacing import RedisPacer
from soong.shared.storage.redis.subscriptions import RedisSubscriber
from soong.shared.storage.sql.store import open_store
from soong.shared.storage.store import Store
from soong.shared.toolsets.modules import import_own
from soong.worker.agent_step import AgentStepRunner
from soong.worker.app import ParentPipe, make_worker_celery, run_celery
from soong.worker.flower import FlowerEvents, NoFlower
from soong.worker.function_step import FunctionStepRunner, IsolatedCalls
from soong.worker.heartbeat import Incarnation
from soong.worker.lifetime import EXIT_RETIRED, Pulse, RecycleLimits, Retirement, restart_in_place, unblock_signals
from soong.worker.process import LoopThread, WorkerProcess
from soong.worker.run import StepRunner, TaskLimits
from soong.worker.starter import StatusPipe

log = get_logger(__name__)


HANDOVER_FD: Final = "SOONG_HANDOVER_FD"


def run_worker(settings: Settings, name: str, status: StatusPipe, *, ends_when_idle: bool = False) -> int:
    """Run one worker process until it is stopped; return its exit code. One that recycles does not return.

    With ``ends_when_idle`` it stops by itself when it has had no step for ``SOONG_WORKER_IDLE_S``.
    """
    pulse = Pulse(settings.hang_s)
    config = load_config(settings.home)
    settings = with_config(settings, config)
    clean = redactor(secret_values(settings, config.secret_env, config.secret_files))
    configure(settings.log_level, process="worker", clean=clean.text)
    if (left := Handover.taken()) is not None:
        asyncio.run(_hand_over(settings, left))
        if left.is_last:
            return 0
    unblock_signals()
    # Loop, writer and heartbeat hand each other short work: with CPython's 5 ms a hop waits for the busiest of them.
    sys.setswitchinterval(timing.TICK_S)
    if not settings.redis_url:
        raise InvalidConfigError("SOONG_REDIS_URL is not set: a worker joins a running service")
    for module in dict.fromkeys(settings.functions):
        import_own(module, "SOONG_FUNCTIONS", settings.import_folders)
    node_name = f"{name or f'soong-{os.getpid()}'}@{socket.gethostname()}"
    recycle_limits, parent = RecycleLimits.of(settings, random.SystemRandom()), ParentPipe()
    credential = secrets.token_hex(32)
    recycle_limits.pass_on = lambda: _pass_on(recycle_limits, credential, parent, pulse)
    retirement = Retirement(SystemClock(), settings.worker_idle_s if ends_when_idle else 0.0)
    thread = LoopThread()
    thread.start()
    is_ready = threading.Event()
    app = make_worker_celery(settings.redis_url, settings, lambda: thread.submit(process.slots.hold()).result())
    watcher = FlowerEvents(app, node_name) if settings.flower_events else NoFlower()
    built = _build(
        settings, config, clean, node_name, thread, watcher, recycle_limits, retirement, pulse, is_ready, credential
    )
    process = thread.submit(built).result()
    thread.submit(process.start()).result()
    settle_gc()
    watcher.start()
    try:
        code = run_celery(
            app,
            settings,
            node_name,
            process,
            thread,
            recycle_limits=recycle_limits,
            parent=parent,
            is_ready=is_ready,
            report_ready=status.ready,
        )
    finally:
        thread.submit(_drain(process, settings, recycle_limits)).result()
        watcher.stop()
        thread.submit(process.stop()).result(timeout=timing.PATIENCE_S)
        thread.stop()
    if retirement.is_due and not recycle_limits.is_told_to_stop:
        return EXIT_RETIRED
    if recycle_limits.is_over or recycle_limits.left:
        restart_in_place(recycle_limits)
    return code


class Handover(Value):
    """The incarnation that still holds steps. ``is_last``: its successor only hands them back, and ends."""

    worker_id: str
    credential: str
    is_last: bool

    @classmethod
    def taken(cls) -> "Handover | None":
        """Return what the former program of this process has left."""
        text = os.environ.pop(HANDOVER_FD, "")
        if not text.isdigit():
            return None
        with os.fdopen(int(text), encoding="utf-8") as pipe:
            return cls(*json.load(pipe))

    def pass_on(self) -> None:
        """Leave it to the next program, in a pipe that no other process has."""
        reading, writing = os.pipe()
        os.write(writing, json.dumps([self.worker_id, self.credential, self.is_last]).encode())
        os.close(writing)
        os.set_inheritable(reading, True)
        os.environ[HANDOVER_FD] = str(reading)

    async def complete(self, store: Store) -> None:
        """Hand the steps back. Raises: SoongError; what the database does not take is freed when the lease ends."""
        leases, now_us = await store.claims.leases(self.worker_id), SystemClock().now_us()
        await store.claims.release(self.worker_id, leases, reason="the worker stops", now_us=now_us)
        await store.sessions.set_worker_state(self.worker_id, ProcessState.GONE)


async def _hand_over(settings: Settings, left: Handover) -> None:
    try:
        store = await open_store(settings.effective_database_url, migrate=False, credential=left.credential)
        try:
            await left.complete(store)
        finally:
            await store.close()
    except SoongError as error:
        log.warning("hand_over_unanswered", error=str(error))


async def _build(
    settings: Settings,
    config: Config,
    clean: Redactor,
    node_name: str,
    thread: LoopThread,
    watcher: FlowerEvents | NoFlower,
    recycle_limits: RecycleLimits,
    retirement: Retirement,
    pulse: Pulse,
    is_ready: threading.Event,
    credential: str,
) -> WorkerProcess:
    clock = SystemClock()
    store = await open_store(settings.effective_database_url, migrate=False, credential=credential)
    clients = RedisClients.of(settings.redis_url, name="soong-worker")
    notifier = RedisNotifier(clients.commands)
    subscriber = RedisSubscriber(clients.blocking)
    incarnation = Incarnation(store.sessions, clock, node_name, settings.slots, settings.pools, settings.labels)
    inbox = DecisionInbox(store.consent, subscriber, "")
    agents = _agents(settings, config, store, notifier, inbox, incarnation, watcher, RedisPacer(clients.commands))
    isolated = IsolatedCalls(
        tuple(settings.functions), tuple(settings.import_folders), config.commands.env, config.secret_env
    )
    runner = StepRunner(FunctionStepRunner(settings.runs, isolated), agents, clean, TaskLimits(store.budgets, clock))
    return WorkerProcess(
        store=store,
        notifier=notifier,
        subscriber=subscriber,
        clock=clock,
        settings=settings,
        incarnation=incarnation,
        runner=runner,
        watcher=watcher,
        thread=thread,
        closers=(agents.close, inbox.close),
        wires=(notifier.close, clients.close),
        recycle_limits=recycle_limits,
        retirement=retirement,
        on_drain=agents.lot.hurry,
        additional=agents.additional,
        lent=agents.lent,
        pulse=pulse,
        is_ready=is_ready.is_set,
    )


def _pass_on(recycle_limits: RecycleLimits, credential: str, parent: ParentPipe, pulse: Pulse) -> None:
    if recycle_limits.left:
        Handover(recycle_limits.left, credential, recycle_limits.is_told_to_stop).pass_on()
    parent.pass_on()
    pulse.pass_on()


def _agents(
    settings: Settings,
    config: Config,
    store: Store,
    notifier: RedisNotifier,
    inbox: DecisionInbox,
    incarnation: Incarnation,
    watcher: AgentObserver,
    pacer: Pacer,
) -> AgentStepRunner:
    return AgentStepRunner(
        store=store,
        notifier=notifier,
        inbox=inbox,
        incarnation=incarnation,
        artifacts=open_artifact_store(settings),
        clock=SystemClock(),
        settings=settings,
        config=config,
        watcher=watcher,
        pacer=pacer,
    )


async def _drain(process: WorkerProcess, settings: Settings, recycle_limits: RecycleLimits) -> None:
    is_patient = recycle_limits.is_over and not recycle_limits.is_told_to_stop
    await process.drain(None if is_patient else timedelta(seconds=settings.drain_s))
