"""A service in the process of a test: an orchestrator and a worker on one thread over SQLite; no Redis and no Celery.

Its parts are those of a deployment. Only the wires differ: notifications are calls
(:mod:`soong.shared.engine.wire.bus`), and the loop of the thread follows a clock that can be moved.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from soong.orchestrator.client.client import Client, Submission
from soong.orchestrator.client.plan_modules import PlanModules
from soong.orchestrator.embedded.folders import prepare_home
from soong.orchestrator.operations.preparation import Prepare, Work, prepared_here
from soong.orchestrator.owner.bootstrap import Wires
from soong.orchestrator.owner.bootstrap import assemble as assemble_orchestrator
from soong.orchestrator.sdk.service import IN_PROCESS, Soong, with_program_folder
from soong.orchestrator.sdk.sync import SyncSoong
from soong.shared.agents.model import REGISTERED
from soong.shared.agents.run_models import LocalPacer
from soong.shared.core import timing
from soong.shared.core.config import load_config, with_config
from soong.shared.core.errors import InvalidConfigError, UsageError
from soong.shared.core.secret_values import secret_values
from soong.shared.core.settings import Settings
from soong.shared.engine.tasks.claims import lacking
from soong.shared.engine.tasks.functions import known_agents, known_functions, known_scripts
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.sandbox.redact import redactor
from soong.shared.storage.sql.store import open_store
from soong.shared.toolsets.modules import import_own
from soong.testing.clock import ClockLoop, MovableClock
from soong.worker.bootstrap import assemble as assemble_worker
from soong.worker.flower import NoFlower
from soong.worker.heartbeat import Incarnation
from soong.worker.process import Connections, LoopThread, WorkerProcess

LEASES: Final = dict.fromkeys(("lease_s", "loop_stall_s", "responder_lease_s"), timing.LONGEST_S)
"""A clock that jumps ends no lease."""


class _NoQueue:
    """The broker of a service whose notifications are never lost: a called worker claims what there is."""

    def queued(self, pool: str) -> int:  # noqa: ARG002  # as its port
        return 0

    def send(self, pool: str, dispatch_ids: Sequence[str]) -> None: ...

    def close(self) -> None: ...


class LocalService(Soong):
    """The service of a test. ``clock`` moves its time; without ``project=`` its agents work in ``project``, an empty
    folder; ``home`` has its configuration, read at its start.
    """

    def __init__(self, host: "_Host") -> None:
        super().__init__(Client(host.store, host.bus, host.bus, host.clock, host.settings), host.settings)
        self._host = host
        self.clock, self.project, self.home = host.clock, host.project, host.settings.home

    @cached_property
    def sync(self) -> SyncSoong:
        """The same service for a test without an event loop: its methods wait."""
        return self._host.opened.enter_context(SyncSoong.embedded())

    def _common(self, project: str | Path, *more: Any, **fields: Any) -> dict[str, Any]:
        return super()._common(self.project if project == "." else project, *more, **fields)

    async def _prepared(self, prepare: Prepare[Work], body: Work) -> Submission:
        """Let a plan in a file name the modules next to it, as ``soong run`` does."""

        def make() -> Submission:
            file, known = Path(getattr(body, "source", "plan")), self._catalogue
            if file.is_file():
                known = PlanModules(self._settings, known, file).known()
            return prepared_here(prepare, body, known, self._settings)

        submission = await asyncio.to_thread(make)
        await asyncio.wrap_future(self._host.thread.submit(self._host.ensure_worker()))
        workers = await self._client.store.sessions.workers()
        for step in submission.task.steps:
            if words := lacking(step.pool, step.needs, workers):
                hint = "soong_settings can name `functions` (modules), `celery_app`, `pools` and `labels`"
                raise UsageError(f"step {step.step_id!r} would wait for ever: {words}; {hint}")
        return submission


class _Host:
    """The thread of a service, and what runs on it."""

    def __init__(self, settings: Settings, project: Path) -> None:
        self.settings, self.project = settings, project
        self.clock, self.bus = MovableClock(), MemoryBus()
        self.thread = LoopThread(ClockLoop(self.clock))
        self.opened = ExitStack()
        self._workers: list[WorkerProcess] = []
        self._known: tuple[frozenset[str], ...] = ()

    async def start(self) -> None:
        wires = Wires(self.bus, self.bus, self.bus, _NoQueue(), LocalPacer(self.clock.monotonic_s))
        self._orchestrator = await assemble_orchestrator(self.settings, self.clock, lambda _settings: wires)
        self.store = self._orchestrator.parts.store
        await self._orchestrator.start()
        await self.ensure_worker()

    async def ensure_worker(self) -> None:
        """Start a worker unless one has all functions and agents that this process knows now."""
        known = tuple(frozenset(names()) for names in (known_functions, known_scripts, known_agents))
        if known == self._known:
            return
        self._known = known
        config = load_config(self.settings.home)
        settings = with_program_folder(with_config(self.settings, config))
        clean = redactor(secret_values(settings, config.secret_env, config.secret_files))
        connections = Connections(await open_store(settings.effective_database_url), self.bus, self.bus)
        name = f"soong-test-{len(self._workers)}@localhost"
        sessions = connections.store.sessions
        incarnation = Incarnation(sessions, self.clock, name, settings.slots, settings.pools, settings.labels)
        incarnation.host = "soong.testing"  # a process with workers of this machine may answer nothing
        pacer = LocalPacer(self.clock.monotonic_s)
        worker = assemble_worker(settings, config, clean, connections, pacer, incarnation, self.thread.call, NoFlower())
        self._workers.append(worker)
        await worker.start()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Soong]:
        """Open another client, of the running event loop."""
        soong = LocalService(self)
        try:
            yield soong
        finally:
            await soong._service.close()  # noqa: SLF001  # of its base

    async def stop(self) -> None:
        for worker in self._workers:
            await worker.drain(timedelta(0))
            await worker.stop()
        await self._orchestrator.stop()
        # A slot still waits for a function that has not ended within the drain.
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=timing.SHORT_LIMIT_S)
        await asyncio.get_running_loop().shutdown_default_executor()


@contextmanager
def local_service(folder: Path, settings: Mapping[str, object]) -> Iterator[LocalService]:
    """Run a service below ``folder`` and let it take the place of every other in this process.

    Raises: InvalidConfigError, a setting is unknown or its value is wrong; names it.
    """
    if unknown := sorted(set(settings) - set(Settings.model_fields)):
        raise InvalidConfigError(f"soong_settings: there is no setting {', '.join(map(repr, unknown))}")
    project = folder / "project"
    project.mkdir(exist_ok=True)
    try:
        loaded = Settings.model_validate({"agent_home": folder / "soong-home", **settings, **LEASES})
    except ValidationError as error:
        raise InvalidConfigError(f"soong_settings: {error}") from error
    prepare_home(loaded)
    for module in loaded.functions:
        import_own(module, "soong_settings: functions", loaded.import_folders)
    host, models = _Host(loaded, project), dict(REGISTERED)
    with ExitStack() as stack:
        stack.callback(REGISTERED.update, models)
        stack.callback(REGISTERED.clear)
        host.thread.start()
        stack.callback(host.thread.stop)
        host.thread.submit(host.start()).result()
        stack.callback(lambda: host.thread.submit(host.stop()).result())
        IN_PROCESS.append(host.client)
        stack.callback(IN_PROCESS.remove, host.client)
        stack.enter_context(host.opened)
        yield LocalService(host)
