"""The first worker processes of a service, forked from it when everything is imported.

A worker imports what its service imports: the model library, Celery, SQLAlchemy. The service imports it once, before it
has a thread, a lock, a connection or a key, and forks: the workers share those pages, and none of them costs a start.
Each waits at a **gate** until the service has a database and a Redis. A worker that ends later is started again as a
program of its own (:meth:`soong.orchestrator.embedded.child.ServiceChild.spawn`), and so is each on a system without a
subreaper, or with a PYTHONPATH, whose meaning depends on the folder that a process starts in.

The module of the worker is named and not imported, as in the argv of a program.
"""

import asyncio
import contextlib
import ctypes
import gc
import importlib
import os
import runpy
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from soong.orchestrator.embedded.folders import PARENT_FD, STATUS_FD, child_environment, prepare_home, redis_url
from soong.shared.core import timing
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value
from soong.shared.sandbox import subreaper
from soong.shared.sandbox.command import HAS_SUBREAPER

MODULE: Final = "soong.worker"
LOADER_VARIABLES: Final = frozenset({"LD_LIBRARY_PATH", "LD_PRELOAD"})
"""Without these an interpreter may not start, and a subreaper needs no other."""
IMPORTED: Final = ("soong.worker.bootstrap", "soong.orchestrator.owner.bootstrap")
SQLITE: Final = "sqlalchemy.dialects.sqlite"


@dataclass(slots=True)
class PreforkedProcess:
    """The subreaper of a forked worker, with what a supervisor uses of :class:`asyncio.subprocess.Process`."""

    pid: int
    report: int
    """The pipe on which it reports, as one that is spawned does."""
    returncode: int | None = None

    async def wait(self) -> int:
        """Return how it ended. One task may wait."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        watch = os.pidfd_open(self.pid)
        loop.add_reader(watch, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(watch)
            os.close(watch)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])  # noqa: ASYNC222  # it has ended
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)


@dataclass(slots=True)
class PreforkedWorkers:
    """The workers of one service by name. ``control`` is the pipe whose end means that it has ended."""

    control: tuple[int, int]
    _gate: int
    _waiting: dict[str, PreforkedProcess] = field(default_factory=dict)

    @classmethod
    def fork(cls, settings: Settings) -> "PreforkedWorkers | None":
        """Fork the workers that the settings ask for; None where each has to be a program of its own.

        In a worker it does not return: it raises SystemExit when the worker has ended.
        Raises: InvalidConfigError, the home cannot be made.
        """
        if not HAS_SUBREAPER or os.environ.get("PYTHONPATH"):
            return None
        for name in (*IMPORTED, SQLITE) if settings.is_embedded else IMPORTED:
            importlib.import_module(name)
        if threading.active_count() > 1:
            return None  # a library has begun one: what it holds now would be held for ever in a child
        home = prepare_home(settings)
        if not settings.redis_url:
            settings = settings.model_copy(update={"redis_url": redis_url(settings.runtime_dir)})
        # Not searched for garbage first: that is a quarter of a second for some thousand objects.
        gc.freeze()
        waiting, gate = os.pipe()
        workers = cls(os.pipe(), gate)
        for number in range(1, settings.workers.least + 1):
            arguments = ("--name", f"worker-{number}", "--slots", str(settings.slots))
            beginning = _Beginning(arguments, child_environment(settings), home, workers.control[0], waiting)
            report, status = os.pipe()
            os.set_blocking(report, False)
            pid = os.fork()
            if not pid:
                beginning.run(status)
            os.close(status)
            workers._waiting[arguments[1]] = PreforkedProcess(pid, report)
        os.close(waiting)
        return workers

    def take(self, name: str) -> PreforkedProcess | None:
        """Return the worker of that name, once."""
        return self._waiting.pop(name, None)

    def begin(self) -> None:
        """Open the gate: there is a database and a Redis."""
        gate, self._gate = self._gate, -1
        os.write(gate, b"." * 1024)  # one byte for each: settings allow no more workers than that
        os.close(gate)

    def close(self) -> None:
        """Let the workers end that nobody has taken. Idempotent."""
        for process in self._waiting.values():
            os.close(process.report)
        self._waiting.clear()
        gate, self._gate = self._gate, -1
        if gate >= 0:
            os.close(gate)


class _Beginning(Value):
    """The input of a forked process that becomes a worker under its subreaper."""

    arguments: Sequence[str]
    environment: dict[str, str]
    home: Path
    control: int
    gate: int

    def run(self, status: int) -> None:
        """In the new process: keep a worker until it ends. Returns, by SystemExit, in the worker alone."""
        try:
            os.setpgid(0, 0)
            os.chdir(self.home)
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)
            os.dup2(2, 1)  # standard output belongs to the service's parent
            _close_all_but({0, 1, 2, status, self.control, self.gate})
            subreaper.keep(
                lambda pulse: self._become(status, pulse),
                self.control,
                status,
                timing.GRACE_S + timing.SHORT_LIMIT_S,
                self.arguments[1],
                {name: value for name, value in self.environment.items() if name in LOADER_VARIABLES},
            )
        except SystemExit:
            raise  # the worker has ended
        except BaseException:  # noqa: BLE001  # nothing of this process goes on in the service's name
            sys.excepthook(*sys.exc_info())
            os._exit(1)

    def _become(self, status: int, pulse: int) -> None:
        _close_all_but({0, 1, 2, status, self.control, self.gate, pulse})
        is_begun = os.read(self.gate, 1)
        os.close(self.gate)
        if not is_begun:
            os._exit(0)
        show_as((MODULE, *self.arguments))
        os.environ.clear()
        given = {STATUS_FD: status, PARENT_FD: self.control, subreaper.PULSE_FD: pulse}
        os.environ.update(self.environment, **{name: str(number) for name, number in given.items()})
        if not sys.flags.safe_path:
            del sys.path[0]
        sys.argv = [MODULE, *self.arguments]
        sys.orig_argv = [sys.executable, "-P", "-m", *sys.argv]  # by which a worker restarts in place
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
        raise SystemExit(0)


def show_as(words: Sequence[str]) -> None:
    """Have the process table show these words as our command line, as far as the one that is there has room."""
    facts = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(facts[45]), int(facts[46])
    text = "\0".join(words).encode()[: end - start - 1]
    if text:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, len(text))


def _close_all_but(kept: Collection[int]) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # numbers
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the one that lists them
                os.close(int(name))
