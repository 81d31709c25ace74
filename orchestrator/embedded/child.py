"""A child process of the service: what it is, its state, its last end; and how a service reports on its children."""

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec

from soong.orchestrator.embedded.control import ask_once
from soong.orchestrator.embedded.folders import STATUS_FD, kept_command
from soong.orchestrator.embedded.preforked_workers import PreforkedProcess
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.value import Value
from soong.shared.sandbox.command import HAS_SUBREAPER
from soong.shared.sandbox.subreaper import END_NOW

EXIT_USAGE: Final = 2
EXIT_RETIRED: Final = 3
"""An additional worker has been idle for long enough (:mod:`soong.worker.lifetime`)."""
HOPELESS_STARTS: Final = 3

_MAX_REPORT_BYTES: Final = 64 * 1024

_HINTS: Final = {signal.SIGKILL: "killed, perhaps out of memory"}
"""Facts that a signal's own name does not show."""

ChildState = Literal["starting", "running", "dead"]

DYING_AFTER: Final = 3
"""Ends in a row after which a worker counts as one that does not stay alive."""


@dataclass(slots=True)
class ServiceChild:
    """A process that is kept running. ``deaths`` counts those in a row; it spaces out the starts.

    A worker runs under a subreaper, so that everything that it starts ends with it; ``control`` is then the pipe that
    tells both when the service has ended. It reports on a pipe when it is ready, or why it cannot start.
    """

    name: str
    argv: Sequence[str]
    environment: dict[str, str]
    pass_fds: tuple[int, ...] = ()
    output: int = 2
    """Its output: our standard error, so that there is one log. Standard output belongs to our parent."""
    is_worker: bool = False
    control: int = -1
    retires_after_s: float = 0.0
    """An additional worker ends by itself after so long without a step; 0: it does not."""
    modules: "Mapping[str, ModuleFile]" = field(default_factory=dict)
    """Those that an additional worker has, and the first ones do not."""
    process: asyncio.subprocess.Process | PreforkedProcess | None = None
    deaths: int = 0
    last_exit: int | None = None
    last_words: str = ""
    """How it last ended, for people."""
    ends: int = 0
    """How often it has ended unexpectedly, in all; a restart followed each."""
    failed_starts: int = 0
    """How often in a row a worker ended before it was ready."""
    problem: str = ""
    """The reason why a worker did not start, in its own words."""
    _spawned_s: float = 0.0
    _report: int = -1
    _own_pid: int = 0
    _is_ready: bool = False
    _hung_s: str = ""
    """For how long a worker's event loop had not moved when its subreaper ended it; empty when that was not so."""

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def pid(self) -> int:
        """The id of the program itself, while it runs; 0 while it does not, and until its subreaper has reported it."""
        return self.own_pid if self.is_running else 0

    @property
    def own_pid(self) -> int:
        """The id of the program that runs or ran last."""
        if self.process is None or not self._is_kept:
            return 0 if self.process is None else self.process.pid
        self._read_report()
        return self._own_pid

    @property
    def state(self) -> ChildState:
        if not self.is_running:
            return "dead"
        self._read_report()
        return "running" if self._is_ready or not self.is_worker else "starting"

    @property
    def is_hopeless(self) -> bool:
        """Say whether it will not start: it named a setting that is wrong, or has failed again and again."""
        is_misconfigured = self.failed_starts > 0 and bool(self.problem) and self.last_exit == EXIT_USAGE
        return is_misconfigured or self.failed_starts >= HOPELESS_STARTS

    @property
    def _is_kept(self) -> bool:
        return self.is_worker and HAS_SUBREAPER

    async def spawn(self, folder: Path) -> None:
        """Start it, with ``folder`` as its working directory. Raises: OSError."""
        self._spawned_s = time.monotonic()
        argv, pass_fds, environment, status = self.argv, self.pass_fds, self.environment, -1
        self.close()
        if self.is_worker:
            self._report, status = os.pipe()
            os.set_blocking(self._report, False)
            argv = kept_command(argv, control=self.control, status=status)
            pass_fds, environment = (*pass_fds, status), {**environment, STATUS_FD: str(status)}
        try:
            self.process = await asyncio.create_subprocess_exec(
                *argv,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self.output,
                stderr=self.output,
                pass_fds=pass_fds,
                process_group=0,
                cwd=str(folder),
            )
        finally:
            if status >= 0:
                os.close(status)

    def adopt(self, process: PreforkedProcess) -> None:
        """Take a worker that runs already for its first start."""
        self._spawned_s = time.monotonic()
        self.process, self._report = process, process.report

    def note_end(self, code: int, *, is_steady: bool) -> None:
        """Take note of its end. One that was steady had proved itself: its end is the first of a new row."""
        self._read_report()
        self.last_exit, self.last_words = code, self.ending(code)
        self.ends += 1
        self.deaths = 1 if is_steady else self.deaths + 1
        self.failed_starts = 0 if self._is_ready else self.failed_starts + 1

    def has_retired(self, code: int, lived_s: float) -> bool:
        """Say whether it ended because it was idle. One that lived for less than its idle time did not."""
        return 0 < self.retires_after_s <= lived_s and code == EXIT_RETIRED

    def ending(self, code: int) -> str:
        """Return how the program ended, for people."""
        self._read_report()
        if self._hung_s:
            return f"its event loop hung for {self._hung_s} s, so its subreaper ended it"
        return exit_words(code)

    def ask_to_end(self) -> None:
        self._signal(signal.SIGTERM)

    def end_now(self) -> None:
        """End it and, where it has a subreaper, its family."""
        self._signal(END_NOW if self._is_kept else signal.SIGKILL)

    def kill(self) -> None:
        """End what :meth:`end_now` did not: the kernel ends a kept program with its subreaper."""
        self._signal(signal.SIGKILL)

    def pause_s(self) -> float:
        """Return how long to wait before the next start."""
        return timing.RESTART_S[min(max(1, self.deaths), len(timing.RESTART_S)) - 1]

    def health(self) -> "ChildHealth":
        up_s = int(time.monotonic() - self._spawned_s) if self.is_running else 0
        return ChildHealth(self.name, self.ends, self.deaths, self.last_words, up_s, self.pid, self.state, self.problem)

    def close(self) -> None:
        """Forget the report of the last start."""
        if self._report >= 0:
            os.close(self._report)
        self._report, self._own_pid, self._is_ready, self._hung_s = -1, 0, False, ""

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.is_running:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def _read_report(self) -> None:
        if self._report < 0:
            return
        with suppress(BlockingIOError):
            for line in os.read(self._report, _MAX_REPORT_BYTES).decode("utf-8", "replace").splitlines():
                match line.split(" ", 1):
                    case ["started", pid] if pid.isdigit():
                        self._own_pid = int(pid)
                    case ["ready"]:
                        self._is_ready, self.problem, self.failed_starts = True, "", 0
                    case ["failed", words]:
                        self.problem = words
                    case ["hung", seconds]:
                        self._hung_s = seconds
                    case _:
                        pass  # a program of the user's has written there


def exit_words(code: int) -> str:
    """Return how a process ended, for people: its exit code, or its signal and what that means."""
    if code >= 0:
        return f"exit code {code}"
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"signal {-code}"
    hint = _HINTS.get(number) or (signal.strsignal(number) or "").lower()
    return f"{number.name}, {hint}" if hint else number.name


class ChildHealth(Value):
    """A child that the service keeps running: how often it ended by itself, how often in a row, and how last."""

    name: str
    ends: int = 0
    deaths: int = 0
    last_exit: str = ""
    up_s: int = 0
    """How long it has run since; 0 between two starts."""
    pid: int = 0
    state: ChildState = "dead"
    problem: str = ""

    @property
    def is_dying(self) -> bool:
        """Return whether it does not stay alive: it ended again and again, and has not run long since."""
        return self.deaths >= DYING_AFTER and self.up_s < timing.STEADY_AFTER_S

    @property
    def words(self) -> str:
        """A sentence on its unexpected ends, for people."""
        times = "once" if self.ends == 1 else f"{self.ends} times"
        row = f", {self.deaths} of them in a row" if 1 < self.deaths < self.ends else ""
        since = f"; it runs since {self.up_s} s" if self.up_s else ""
        return f"{self.name} ended unexpectedly {times}{row}, last by {self.last_exit}{since}"


class ModuleFile(Value):
    """A module's file, or its package's folder, and when it was last changed; without a path it is found nowhere."""

    path: str = ""
    changed_ns: int = 0


class ServiceHealth(Value):
    """The state of a service as it reports it.

    ``starting`` workers are not ready yet; with ``is_hopeless`` none will be, and ``problem`` is why. ``functions`` are
    the modules of ``SOONG_FUNCTIONS`` that the service was started with, ``folders`` are searched for them, ``files``
    are those found, ``log`` is its log file if it has one.
    """

    state: Literal["starting", "ready", "stopping"]
    pid: int
    version: str
    is_ephemeral: bool
    attached: int = 0
    children: tuple[ChildHealth, ...] = ()
    http: str = ""
    is_hopeless: bool = False
    starting: int = 0
    problem: str = ""
    functions: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    files: Mapping[str, ModuleFile] = {}
    log: str = ""

    @property
    def workers(self) -> tuple[ChildHealth, ...]:
        return tuple(child for child in self.children if child.name.startswith("worker-"))

    @property
    def modules(self) -> str:
        """Its modules of step functions, for people."""
        return f"{', '.join(self.functions)} (in {', '.join(self.folders)})" if self.functions else "none"


async def health_of(control: str | Path) -> ServiceHealth | None:
    """Ask the service; None when it does not answer: its supervisor finds out soon enough."""
    try:
        return msgspec.convert(await ask_once(control, "status"), ServiceHealth)
    except (UnavailableError, msgspec.ValidationError):
        return None
