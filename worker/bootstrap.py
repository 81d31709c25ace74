"""Builds a worker process out of adapters and runs it to its end; nothing else in this package names one."""

import asyncio
import json
import os
import random
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from celery import Celery, signals
from celery._state import _set_task_join_will_block
from celery.exceptions import InvalidTaskError
from celery.worker.strategy import default

from soong.shared.agents.run_models import Pacer
from soong.shared.agents.runtime.call_log import WORKER_STOPS
from soong.shared.agents.runtime.permission_gate import DecisionInbox
from soong.shared.core import timing
from soong.shared.core.config import Config, load_config, with_config
from soong.shared.core.errors import InvalidConfigError, SoongError
from soong.shared.core.log import configure, get_logger
from soong.shared.core.log_lines import install, install_handler
from soong.shared.core.secret_values import secret_values
from soong.shared.core.settings import Settings
from soong.shared.core.startup import settle_gc
from soong.shared.core.timing import SystemClock
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.wire.notifier import DISPATCH_TASK, queue_of
from soong.shared.sandbox.own_folder import can_move_thread, install_temporary_folder
from soong.shared.sandbox.redact import Redactor, redactor
from soong.shared.storage.artifact_store import open_artifact_store
from soong.shared.storage.celery.app import make_celery
from soong.shared.storage.redis.client import RedisClients, RedisNotifier
from soong.shared.storage.redis.pacing import RedisPacer
from soong.shared.storage.redis.subscriptions import RedisSubscriber
from soong.shared.storage.sql.store import open_store
from soong.shared.storage.store import Store
from soong.shared.toolsets.modules import import_own
from soong.worker.agent_step import AgentStepRunner
from soong.worker.celery_step import CeleryStepRunner, celery_app, end_waits_with_steps
from soong.worker.flower import FlowerEvents, NoFlower
from soong.worker.heartbeat import Incarnation
from soong.worker.isolated_calls import IsolatedCalls
from soong.worker.lifetime import (
    EXIT_RETIRED,
    InheritedPipe,
    Lifetime,
    Pulse,
    RecycleLimits,
    Retirement,
    StatusPipe,
    restart_in_place,
    unblock_signals,
)
from soong.worker.log_lines import LineKeeper
from soong.worker.process import Connections, LoopThread, RunParts, WorkerProcess
from soong.worker.run import FunctionStepRunner, StepRunner, TaskLimits

log = get_logger(__name__)

PARENT_FD = "SOONG_PARENT_FD"

UNREADABLE = (ValueError, TypeError, LookupError, RecursionError)
"""The errors of the transport for queue content that no Celery has sent."""


def make_worker_celery(redis_url: str, settings: Settings, hold_slot: Callable[[], int]) -> Celery:
    app = make_celery(redis_url, pools=settings.pools)

    @app.task(name=DISPATCH_TASK, Strategy=staticmethod(receive_dispatches))
    def dispatch(_dispatch_id: str) -> int:
        return hold_slot()

    return app


def receive_dispatches(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Return how the consumer takes a message of our task: as Celery does, if it is one that we send.

    Celery trusts what it reads: a body of another form raises out of the consumer, which connects again, takes the
    same message again, and so on for ever; a time or a callback in it would be obeyed.
    """
    accept = default(task, app, consumer, **options)

    def receive(message: Any, body: Any, *given: Any, **named: Any) -> Any:
        if not is_dispatch(message.headers, message.payload):
            raise InvalidTaskError("not a message of ours")
        return accept(message, body, *given, **named)

    return receive


def is_dispatch(headers: Mapping[str, object], payload: object) -> bool:
    """Say whether a message is a plain dispatch: one id, to be done now, with nothing to follow."""
    match payload:
        case [[str()], {}, Mapping() as more] if not payload[1]:
            return not any(more.values()) and not any(headers.get(name) for name in ("eta", "expires"))
        case _:
            return False


class ParentPipe(InheritedPipe):
    """The pipe whose end means that the process that started us has ended."""

    def __init__(self) -> None:
        super().__init__(PARENT_FD)

    def watch(self, orphaned: Callable[[], None]) -> None:
        """Call ``orphaned`` when our starter has ended."""

        def wait() -> None:
            while os.read(self._descriptor, 64):
                pass
            orphaned()

        if self._descriptor >= 0:
            threading.Thread(target=wait, name="soong-parent", daemon=True).start()


def make_worker(app: Celery, settings: Settings, node_name: str) -> Any:
    """Return Celery's worker. A message on the queue that is none is dropped with its connection; it would end it."""
    worker = app.Worker(
        hostname=node_name,
        pool="threads",
        concurrency=settings.slots,
        queues=[queue_of(pool) for pool in settings.pools],
        without_gossip=True,
        without_mingle=True,
        task_events=False,
        quiet=True,
        loglevel=settings.log_level.upper(),
    )
    worker.consumer.connection_errors += UNREADABLE
    # Celery forbids `result.get()` in a worker: a task that waits for a task can take the last process of its pool.
    # This worker has only our own dispatches. A step waits on a thread of its own, for tasks of other workers.
    _set_task_join_will_block(False)
    end_waits_with_steps()
    if settings.celery_app:  # Celery has made ours the default, to which `@shared_task` of a step's module would send
        celery_app(settings.celery_app, settings).set_default()
    return worker


def run_celery(
    worker: Any,
    grace: timedelta,
    process: WorkerProcess,
    thread: LoopThread,
    *,
    recycle_limits: RecycleLimits,
    parent: ParentPipe,
    is_ready: threading.Event,
    report_ready: Callable[[], None],
) -> int:
    """Consume until stopped, then drain; return the exit code.

    Once messages are taken, ``is_ready`` is set and ``report_ready`` called.
    """

    def begin_drain(**_: object) -> None:
        recycle_limits.is_told_to_stop = True
        thread.call(lambda: process.drain(grace))

    def orphaned() -> None:
        log.warning("parent_gone")
        if not is_ready.is_set():
            os._exit(1)  # it holds nothing, and Celery, which would answer a signal in order, is still starting
        thread.call(lambda: process.drain(timedelta(0)))
        threading.Timer(timing.GRACE_S, os._exit, (1,)).start()
        os.kill(os.getpid(), signal.SIGTERM)

    def begin_work(**_: object) -> None:
        is_ready.set()
        report_ready()

    signals.worker_ready.connect(begin_work, weak=False)
    signals.worker_shutting_down.connect(begin_drain, weak=False)
    parent.watch(orphaned)
    try:
        worker.start()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    return worker.exitcode or 0


HANDOVER_FD: Final = "SOONG_HANDOVER_FD"


def run_worker(settings: Settings, name: str, status: StatusPipe, *, ends_when_idle: bool = False) -> int:
    """Run one worker process until it is stopped; return its exit code. One that recycles does not return.

    With ``ends_when_idle`` it stops by itself when it has had no step for ``SOONG_WORKER_IDLE_S``.
    """
    pulse = Pulse(settings.hang_s)
    settings, config, clean = _configured(settings)
    if (left := Handover.taken()) is not None:
        asyncio.run(_hand_over(settings, left))
        if left.is_last:
            return 0
    unblock_signals()
    # Loop, writer and heartbeat hand each other short work: with CPython's 5 ms a hop waits for the busiest of them.
    sys.setswitchinterval(timing.TICK_S)
    _give_to_runs()
    for module in dict.fromkeys(settings.functions):
        import_own(module, "SOONG_FUNCTIONS", settings.import_folders)
    node_name = f"{name or f'soong-{os.getpid()}'}@{socket.gethostname()}"
    credential, parent, is_ready = secrets.token_hex(32), ParentPipe(), threading.Event()
    recycle_limits = RecycleLimits.of(settings, random.SystemRandom(), partial(_pass_on, credential, parent, pulse))
    retirement = Retirement(SystemClock(), settings.worker_idle_s if ends_when_idle else 0.0)
    lifetime = Lifetime(recycle_limits, retirement, pulse, is_ready.is_set)
    thread = LoopThread()
    thread.start()
    app = make_worker_celery(settings.redis_url, settings, lambda: thread.submit(process.slots.hold()).result())
    watcher = FlowerEvents(app, node_name) if settings.flower_events else NoFlower()
    process = thread.submit(_build(settings, config, clean, node_name, thread, watcher, lifetime, credential)).result()
    thread.submit(process.start()).result()
    settle_gc()
    watcher.start()
    try:
        code = run_celery(
            make_worker(app, settings, node_name),
            timedelta(seconds=settings.drain_s),
            process,
            thread,
            recycle_limits=recycle_limits,
            parent=parent,
            is_ready=is_ready,
            report_ready=partial(status.ready, _ready_words(settings, node_name)),
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


def _give_to_runs() -> None:
    """Let what this process writes, and its temporary files, be those of its runs."""
    install()
    install_temporary_folder()
    signals.after_setup_logger.connect(lambda **_: install_handler(), weak=False)
    if not can_move_thread():
        os.chdir(tempfile.mkdtemp(prefix="soong-worker-"))
        log.warning("functions_share_folder", folder=str(Path.cwd()), reason="unshare(CLONE_FS) is refused")


def _ready_words(settings: Settings, node_name: str) -> str:
    pools, functions = ", ".join(settings.pools), ", ".join(settings.functions) or "none"
    served = f"{settings.slots} slots, pools {pools}, modules of SOONG_FUNCTIONS {functions}"
    return f"soong worker {node_name} is ready: {served}"


def _configured(settings: Settings) -> tuple[Settings, Config, Redactor]:
    """Read the configuration and set up the log. Raises: InvalidConfigError."""
    config = load_config(settings.home)
    settings = with_config(settings, config)
    clean = redactor(secret_values(settings, config.secret_env, config.secret_files))
    configure(settings.log_level, process="worker", clean=clean.text)
    if not settings.redis_url:
        raise InvalidConfigError("SOONG_REDIS_URL is not set: a worker joins a running service")
    return settings, config, clean


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
        await store.claims.release(self.worker_id, leases, reason=WORKER_STOPS, now_us=now_us)
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
    lifetime: Lifetime,
    credential: str,
) -> WorkerProcess:
    store = await open_store(settings.effective_database_url, migrate=False, credential=credential)
    clients = RedisClients.of(settings.redis_url, name="soong-worker")
    notifier, clock = RedisNotifier(clients.commands), SystemClock()
    incarnation = Incarnation(store.sessions, clock, node_name, settings.slots, settings.pools, settings.labels)
    wires = (notifier.close, clients.close)
    connections = Connections(store, notifier, RedisSubscriber(clients.blocking), wires=wires)
    pacer = RedisPacer(clients.commands)
    return assemble(settings, config, clean, connections, pacer, incarnation, thread.call, watcher, lifetime)


def assemble(
    settings: Settings,
    config: Config,
    clean: Redactor,
    connections: Connections,
    pacer: Pacer,
    incarnation: Incarnation,
    call_soon: Callable[[Callable[[], object]], None],
    watcher: FlowerEvents | NoFlower,
    lifetime: Lifetime | None = None,
) -> WorkerProcess:
    """Put a worker together over open connections, not started yet. Raises: InvalidConfigError."""
    store, notifier, clock = connections.store, connections.notifier, incarnation.clock
    inbox, artifacts = DecisionInbox(store.consent, connections.subscriber, ""), open_artifact_store(settings)
    agents = AgentStepRunner(
        store=store,
        notifier=notifier,
        inbox=inbox,
        incarnation=incarnation,
        artifacts=artifacts,
        clock=clock,
        settings=settings,
        config=config,
        watcher=watcher,
        pacer=pacer,
    )
    isolated = IsolatedCalls(
        tuple(settings.functions), tuple(settings.import_folders), config.commands.env, config.secret_env
    )
    lines = LineKeeper(store.runs, artifacts, notifier, clean)
    agents.flush_lines = lines.flush
    functions = FunctionStepRunner(settings.runs, isolated, artifacts, clean)
    celery = CeleryStepRunner(store, incarnation, clock, settings, agents.lent)
    runner = StepRunner(functions, agents, celery, clean, TaskLimits(store.budgets, clock), lines)
    connections.closers = (agents.close, inbox.close)
    runs = RunParts(runner, watcher, agents.additional, agents.lent, agents.lot.hurry)
    return WorkerProcess(connections, runs, settings, incarnation, clock, call_soon, lifetime)


def _pass_on(credential: str, parent: ParentPipe, pulse: Pulse, recycle_limits: RecycleLimits) -> None:
    if recycle_limits.left:
        Handover(recycle_limits.left, credential, recycle_limits.is_told_to_stop).pass_on()
    parent.pass_on()
    pulse.pass_on()


async def _drain(process: WorkerProcess, settings: Settings, recycle_limits: RecycleLimits) -> None:
    is_patient = recycle_limits.is_over and not recycle_limits.is_told_to_stop
    await process.drain(None if is_patient else timedelta(seconds=settings.drain_s))
