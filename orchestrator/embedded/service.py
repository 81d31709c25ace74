"""The embedded service as one process: Redis, an orchestrator and workers, started, scaled and stopped in order.

Start: lock, folders, Redis, store and orchestrator, control socket, workers, record. Stop is the reverse: nobody may
attach, workers drain, the orchestrator releases its sessions, Redis ends, the record goes, the lock is let go.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

from soong.orchestrator.embedded import API_SOCKET
from soong.orchestrator.embedded.child import ModuleFile, ServiceHealth
from soong.orchestrator.embedded.control import ControlServer, ShutdownState
from soong.orchestrator.embedded.folders import CONTROL_SOCKET, prepare_home, redis_url, take_runtime_folder
from soong.orchestrator.embedded.listening import address_of, listen_after_former
from soong.orchestrator.embedded.own_modules import difference, kept_modules, module_files_of
from soong.orchestrator.embedded.preforked_workers import PreforkedWorkers
from soong.orchestrator.embedded.service_file import ServiceLock, expire_dead, own_record, take_home
from soong.orchestrator.embedded.supervisor import Supervisor, find_redis
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.installation import DISTRIBUTION
from soong.shared.core.jsontext import Json
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.core.startup import raise_open_files
from soong.shared.core.timing import SystemClock
from soong.shared.core.value import Value
from soong.shared.engine.runs.record import ListFilter
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.claims import lacking
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.tasks.step import Backlog, WaitingSteps
from soong.shared.storage.store import Store

log = get_logger(__name__)
State = Literal["starting", "ready", "stopping"]
BACKLOG: Final = 128


class Demand(Value):
    """The demand in the rows at one moment: ``held`` steps of ``live`` workers, and steps that wait for one of them."""

    live: int = 0
    held: int = 0
    waiting: frozenset[WaitingSteps] = frozenset()

    @classmethod
    def of(cls, workers: Sequence[Worker], backlog: Backlog) -> "Demand":
        """Leave out the steps that none of the workers is able to run: one more of them is not either."""
        live = [worker for worker in workers if worker.state is ProcessState.LIVE]
        able = frozenset(one for one in backlog.waiting if not lacking(one.pool, one.needs, live))
        return cls(len(live), sum(worker.busy for worker in live), able if backlog.ready else frozenset())

    @property
    def is_high(self) -> bool:
        """Return whether a worker has several steps at once, or steps have none, at this moment."""
        return self.live > 0 and (self.held > self.live or bool(self.waiting))

    def lasts_from(self, before: "Demand") -> bool:
        """Say whether it was as high before: the same steps still wait, or there are still several for one worker."""
        is_crowded = before.held > before.live and self.held > self.live
        return before.is_high and self.is_high and (is_crowded or not self.waiting.isdisjoint(before.waiting))


class WorkerScaler:
    """Adds one worker at a time. ``look`` reads the rows and may raise UnavailableError."""

    def __init__(
        self,
        may_grow: Callable[[], bool],
        grow: Callable[[], None],
        look: Callable[[], Awaitable[Demand]],
        load: Callable[[], Awaitable[None]],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._may_grow, self._grow, self._look, self._load, self._sleep = may_grow, grow, look, load, sleep
        self._hinted = asyncio.Event()

    def hint(self) -> None:
        """Note that there may be more work than before."""
        self._hinted.set()

    async def run(self) -> None:
        """Look after hints, until cancelled."""
        while True:
            await self._hinted.wait()
            await self._sleep(timing.HINTS_S)  # what a called worker claims, it has claimed by then
            self._hinted.clear()
            if await self._is_needed() and self._may_grow():
                self._grow()
            await self._sleep(timing.LEAST_PAUSE_S)

    async def _is_needed(self) -> bool:
        try:
            await self._load()
            seen = await self._look() if self._may_grow() else Demand()
            if not seen.is_high:
                return False
            # A start takes a second of CPU time, and on a busy machine a step that is about to be claimed waits 50 ms.
            await self._sleep(timing.LEAST_PAUSE_S)
            now = await self._look()
            if now.lasts_from(seen):
                log.info("workers_wanted", live=now.live, held=now.held, waiting=len(now.waiting & seen.waiting))
                return True
        except UnavailableError as error:
            log.warning("demand_unknown", error=str(error))
        except Exception:  # the service works on with the workers that it has
            log.exception("demand_unread")
        return False


async def demand_of(store: Store) -> Demand:
    """Read the demand of now. Raises: UnavailableError."""
    return Demand.of(await store.sessions.workers(), await store.claims.backlog(limit=1))


ServeHome = Callable[[socket.socket, Callable[[], Awaitable[object]]], Awaitable[None]]
"""Serves operations on a bound socket until the other returns (:func:`soong.orchestrator.http.server.serve_home`)."""
BuiltOwner: TypeAlias = "tuple[ServiceOwner, Store, ServeHome]"


class ServiceOwner(Protocol):
    """The orchestrator, as the service uses it (soong.orchestrator.owner.service)."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def worker_died(self, pid: int, how: str) -> None: ...

    async def is_working(self) -> bool: ...

    def on_work(self, hint: Callable[[], None]) -> None: ...


class HomeApiSocket:
    """The unix socket of the home on which commands reach the operations; serving begins with the first of them."""

    def __init__(self, path: Path, serve: ServeHome) -> None:
        self._path = path
        self._serve = serve
        self._stop = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._listener = socket.socket(socket.AF_UNIX)

    def open(self) -> None:
        """Bind the socket. The caller holds the service lock, so a socket that is there belongs to nobody."""
        self._path.unlink(missing_ok=True)
        self._listener.bind(str(self._path))
        self._path.chmod(0o600)
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)
        loop = asyncio.get_running_loop()

        def begin() -> None:
            loop.remove_reader(self._listener.fileno())
            self._serving = loop.create_task(self._run())

        loop.add_reader(self._listener.fileno(), begin)

    async def _run(self) -> None:
        try:
            await self._serve(self._listener, self._stop.wait)
        except Exception:  # commands then work in processes of their own
            log.exception("home_api_failed")
            self._path.unlink(missing_ok=True)
            self._listener.close()

    async def close(self) -> None:
        """Serve nobody any more."""
        self._path.unlink(missing_ok=True)
        self._stop.set()
        if self._serving is None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
        else:
            await self._serving
        self._listener.close()


@dataclass(slots=True)
class EmbeddedService:
    """One run of the service. ``build`` opens the store and makes the parts of the settings it is given."""

    settings: Settings
    build: Callable[[Settings], Awaitable[BuiltOwner]]
    is_ephemeral: bool = False
    log: str = ""
    """The file that its words go to; empty when that is a terminal or for its starter to know."""
    preforked: PreforkedWorkers | None = None
    state: State = "starting"
    _owner: ServiceOwner | None = None
    _store: Store | None = None
    _supervisor: Supervisor | None = None
    _control: ControlServer | None = None
    _listener: socket.socket | None = None
    _folder_lock: int = -1
    _home_api: "HomeApiSocket | None" = None
    _scaling: asyncio.Task[None] | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _ending: ShutdownState = ShutdownState.STOPPING
    _signals: int = 0
    _modules: dict[str, ModuleFile] = field(default_factory=dict)
    """As they were when the first worker imported them."""

    async def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until stopped (a signal, the control socket, a deleted home) or, if ephemeral, until nobody needs it.

        A staying service takes the home over from an ephemeral one.

        Raises:
            ServiceHeldError: the home has a service already; nothing was touched.
            UsageError, UnavailableError: a part cannot be started; what had been started is stopped again.
        """
        raise_open_files(self.settings.workers.most)
        lock = ServiceLock(prepare_home(self.settings), is_ephemeral=self.is_ephemeral)
        if self.is_ephemeral:
            lock.acquire()
        else:
            await take_home(lock, self.settings)
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self._signalled)
            await self._start(lock)
            ready()
            await self._until_stopped(lock)
        finally:
            await self._shut_down()
            if self._folder_lock >= 0:
                with suppress(OSError):  # not empty: a socket of a part that was killed lies in it
                    self.settings.runtime_dir.rmdir()
                os.close(self._folder_lock)
            lock.release()

    async def _start(self, lock: ServiceLock) -> None:
        self._modules = module_files_of(self.settings.functions, self.settings.import_folders)
        self._folder_lock = await take_runtime_folder(self.settings)
        folder = self.settings.runtime_dir
        self._control = ControlServer(folder / CONTROL_SOCKET, self._status, self._stop.set, self._hand_over)
        settings = self.settings
        if settings.http_port:
            # Before anything else is started: that the port is taken is a matter of moments.
            self._listener = await listen_after_former(settings)
        if not settings.redis_url:
            settings = settings.model_copy(update={"redis_url": redis_url(folder)})
        self._supervisor = Supervisor(settings, folder, self._worker_died, self.preforked)
        if not self.settings.redis_url:
            await self._supervisor.start_redis(find_redis())
        self._owner, self._store, serve_home = await self.build(settings)
        await expire_dead(self._store, max_lost_leases=settings.max_lost_leases, now_us=SystemClock().now_us())
        await self._owner.start()
        self._supervisor.start_workers()
        supervisor, store = self._supervisor, self._store
        load = partial(self._load_modules, supervisor, store)
        scaler = WorkerScaler(lambda: supervisor.may_grow, supervisor.grow, lambda: demand_of(store), load)
        self._owner.on_work(scaler.hint)
        scaler.hint()
        self._scaling = asyncio.get_running_loop().create_task(scaler.run())
        if self._listener is not None:
            self._supervisor.start_http(self._listener.fileno())
        self._home_api = HomeApiSocket(folder / API_SOCKET, serve_home)
        self._home_api.open()
        await self._control.start()
        self.state = "ready"
        lock.write(
            own_record(
                control=self._control.path,
                redis_url=settings.redis_url,
                database_url=settings.effective_database_url,
                version=version(DISTRIBUTION),
                is_ephemeral=self.is_ephemeral,
            )
        )

    async def _load_modules(self, supervisor: Supervisor, store: Store) -> None:
        """Start a worker for each task that runs and needs modules that no worker has. Raises: UnavailableError."""
        loaded = {**self._modules, **supervisor.modules}
        kept = {key: one for key, one in kept_modules(self.settings).items() if not loaded.keys() >= {*one.modules}}
        for task in await store.tasks.list_tasks(only=ListFilter(statuses=(TaskStatus.RUNNING,))) if kept else ():
            if (needed := kept.get(task.id)) is None:
                continue
            files = module_files_of(needed.modules, needed.folders)
            found = difference(files, {**self._modules, **supervisor.modules})
            if found.missing and not found.other:
                log.info("modules_wanted", modules=needed.modules, task=task.id)
                update = {"functions": needed.modules, "import_path": os.pathsep.join(needed.folders)}
                supervisor.grow(supervisor.settings.model_copy(update=update), files)

    def _hand_over(self) -> bool:
        """Begin to stop for a staying service; say whether we do."""
        if self.is_ephemeral:
            self._ending = ShutdownState.HANDED_OVER
            self._stop.set()
        return self.is_ephemeral

    async def _until_stopped(self, lock: ServiceLock) -> None:
        reasons = [self._stop.wait(), self._until_home_is_gone(lock)]
        if self.is_ephemeral:
            reasons.append(self._until_idle())
        tasks = [asyncio.ensure_future(reason) for reason in reasons]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_home_is_gone(self, lock: ServiceLock) -> None:
        while lock.holds():  # noqa: ASYNC110  # a deleted file tells nobody
            await asyncio.sleep(timing.POLL_ROWS_S)
        log.warning("home_is_gone", home=str(self.settings.agent_home))

    async def _until_idle(self) -> None:
        assert self._control is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(timing.SILENCE_S):
                while not self._control.ever_attached:
                    await self._changed()
        is_idle = False
        while True:
            is_needed = await self._is_needed()
            # A client that attached while the rows were read is not turned away.
            if not is_needed and (is_idle or self._control.is_in_the_way) and self._control.close_if_unattached():
                return
            try:
                # Attached clients announce their end; tasks that run without one are polled.
                async with asyncio.timeout(None if self._control.attached else timing.POLL_ROWS_S):
                    await self._changed()
                is_idle = False
            except TimeoutError:
                is_idle = not is_needed

    async def _changed(self) -> None:
        assert self._control is not None
        self._control.changed.clear()
        await self._control.changed.wait()

    async def _is_needed(self) -> bool:
        assert self._control is not None
        assert self._owner is not None
        if self._control.attached:
            return True
        if self._supervisor is not None and self._supervisor.is_hopeless:
            return False  # what waits can wait in its rows: nobody here could run it
        try:
            return await self._owner.is_working()
        except UnavailableError:
            return True  # not knowing is no reason to leave work behind

    async def _shut_down(self) -> None:
        """Stop what was started, in reverse; what fails on the way holds back nothing after it."""
        self.state = "stopping"
        if self._scaling is not None:
            self._scaling.cancel()
        async with AsyncExitStack() as parts:
            if self._control is not None:
                parts.push_async_callback(self._control.close)
            if self._supervisor is not None:
                parts.push_async_callback(self._supervisor.stop)
            if self._owner is not None:
                parts.push_async_callback(self._stop_owner)
            if self._supervisor is not None:
                parts.push_async_callback(self._supervisor.stop_workers, self.settings.drain_s + timing.END_LIMIT_S)
                parts.push_async_callback(self._supervisor.stop_http, timing.END_LIMIT_S)
            if self._home_api is not None:
                parts.push_async_callback(self._home_api.close)
            if self._listener is not None:
                parts.callback(self._listener.close)
            if self._control is not None:
                parts.push_async_callback(self._control.refuse, self._ending)

    async def _stop_owner(self) -> None:
        owner, self._owner = self._owner, None  # from now on nobody has to hear of dead workers
        if owner is not None:
            await owner.stop()

    async def _worker_died(self, pid: int, how: str) -> None:
        if self._owner is not None:
            await self._owner.worker_died(pid, how)

    def _signalled(self) -> None:
        """The first signal stops in order, the second ends the workers at once."""
        self._signals += 1
        self._stop.set()
        if self._signals > 1 and self._supervisor is not None:
            self._supervisor.kill_workers()

    def _status(self) -> Mapping[str, Json]:
        supervisor = self._supervisor
        modules = self._modules if supervisor is None else {**self._modules, **supervisor.modules}
        return ServiceHealth(
            self.state,
            os.getpid(),
            version(DISTRIBUTION),
            self.is_ephemeral,
            attached=0 if self._control is None else self._control.attached,
            children=() if supervisor is None else supervisor.health(),
            http="" if self._listener is None else address_of(self._listener),
            is_hopeless=supervisor is not None and supervisor.is_hopeless,
            starting=0 if supervisor is None else supervisor.starting,
            problem="" if supervisor is None else supervisor.problem,
            functions=tuple(modules),
            folders=self.settings.import_folders,
            files=modules,
            log=self.log,
        ).as_json()
